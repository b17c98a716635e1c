"""``bench_frameworks`` with fake arms, for tests that need it as a process: ``python -m tests.bench.fake_cli ARM=CLASS,... ARGUMENTS``.

CLASS is one of ``fake_arms``, or ``module:class`` of a real one.

Its zoo is two models of the "torch" kind, ``torch_one`` and ``torch_two``.
"""

from __future__ import annotations

import functools
import sys

import bench.cli
import bench.options
from bench.adapters.base import ARMS, Arm
from bench.settings import Settings
from exporters.models.zoo import ZooModel

ZOO = {name: ZooModel(name, "torch", lambda: (None, None), f"the fake {name}", default=True) for name in ("torch_one", "torch_two")}

if __name__ == "__main__":
    ARMS.clear()
    for pair in sys.argv[1].split(","):
        arm, _, cls = pair.partition("=")
        ARMS[arm] = Arm(cls if ":" in cls else f"tests.bench.fake_arms:{cls}", ("torch",))
    bench.cli.all_models = lambda: ZOO
    bench.options.Settings = functools.partial(Settings, warm_up_s=0.0, min_rounds=2, max_rounds=2, idle_s=0.01)
    sys.exit(bench.cli.main(sys.argv[2:]))
