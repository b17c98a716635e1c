from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from rml_exec import _native

_REPORT = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("_native", sys.argv[1])
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
print(native.current_isa(), native.isa_info()["name"], native.isa_error, sep="|")
"""


def _report(rml_isa: str | None) -> list[str]:
    """Returns current_isa, isa_info's name and isa_error of a process started with that RML_ISA."""
    environment = {name: value for name, value in os.environ.items() if name != "RML_ISA"}
    if rml_isa is not None:
        environment["RML_ISA"] = rml_isa
    command = [sys.executable, "-c", _REPORT, _native.__file__]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip().split("|")


def test_isa_names_begin_with_the_baseline_and_match_isa_info(isa):
    assert _native.isa_names()[0] == "baseline"
    info = _native.isa_info(isa)
    assert info["name"] == isa
    assert info["available"] == _native.isa_names()
    assert info["gemm_nr"] % info["lanes"] == 0


def test_rml_isa_picks_the_kernels(isa):
    assert _report(isa) == [isa, isa, "None"]


@pytest.mark.parametrize("unset", [None, ""])
def test_without_rml_isa_the_widest_is_taken(unset):
    assert _report(unset)[0] == _native.isa_names()[-1]


def test_an_isa_that_the_machine_lacks_is_an_error_text():
    name, _, error = _report("mmx")
    assert name == "baseline"
    assert error.startswith("RML_ISA: must be one of baseline")
    assert error.endswith("got 'mmx'.")


def test_peak_flops_is_positive(isa):
    assert _native.peak_flops(1e-4, isa=isa) > 0


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
@pytest.mark.skipif("avx2" not in _native.isa_names(), reason="looks for x86 registers")
def test_wide_registers_are_used_by_the_wide_kernels_only():
    """The core and the baseline kernels are linked first; nothing up to the last of them may touch a ymm or zmm register."""
    listing = subprocess.run(["objdump", "-d", "--no-show-raw-insn", _native.__file__], capture_output=True, text=True, check=True).stdout
    assert "__baseline>:" in listing, "the extension is stripped: no kernel has a name"
    first_wide, last_narrow = re.search(r"%[yz]mm", listing).start(), listing.rindex("__baseline>:")
    assert last_narrow < first_wide
