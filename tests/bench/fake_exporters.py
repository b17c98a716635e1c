"""Stands in for ``python -m exporters``: ``fake_exporters.py LOG --models A,B --out DIR``; a model's name says what happens."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

DATA = Path(__file__).parent.parent / "data"


def main() -> int:
    log, models, out = sys.argv[1], sys.argv[3], Path(sys.argv[5])
    with open(log, "a") as file:
        print(models, file=file)
    out.mkdir(parents=True, exist_ok=True)
    code = 0
    for name in models.split(","):
        what = name.partition("_")[2]
        if what == "crash":
            print("Fatal: out of luck", file=sys.stderr, flush=True)
            os.abort()
        elif what == "hang":
            time.sleep(600)
        elif what == "refused":
            print(f"{name}: export: 2 operators cannot be exported.\n  odd (2x)", file=sys.stderr)
            code = max(code, 2)
        elif what == "missing":
            print(f"{name}: its framework must be installed. Hint: pip install rml-exec[x].", file=sys.stderr)
            code = max(code, 5)
        else:
            for path in DATA.glob("tiny_mlp.*"):
                shutil.copy(path, out / path.name.replace("tiny_mlp", name))
            print(f"{name}: 5 nodes", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
