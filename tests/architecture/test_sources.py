"""Rules about the tree itself that no linter knows."""

import subprocess
import sys
from pathlib import Path

import pytest

from rml_exec import _native
from rml_exec.ops import all_ops
from rml_exec.runtime.lowering import registered_lowerings

ROOT = Path(__file__).parents[2]
SOURCES = [path for folder in ("rml_exec", "exporters", "bench", "reports", "tests") for path in (ROOT / folder).rglob("*")]


def test_no_file_exceeds_800_lines():
    code = [path for path in SOURCES if path.suffix in {".py", ".c", ".h", ".def"}]
    assert code
    assert {str(path): n for path in code if (n := len(path.read_text().splitlines())) > 800} == {}


@pytest.mark.parametrize(
    "folder",
    [
        "rml_exec",
        "rml_exec/ir",
        "rml_exec/ops",
        "rml_exec/passes",
        "rml_exec/plan",
        "rml_exec/runtime",
        "rml_exec/graph_run",
        "rml_exec/native",
        "exporters",
        "bench",
        "reports",
        "tests",
    ],
)
def test_every_room_has_a_readme(folder):
    assert (ROOT / folder / "README.md").read_text().startswith("# ")


def test_every_lowering_belongs_to_an_op():
    assert registered_lowerings() <= {op.name for op in all_ops()}


def test_the_native_steps_are_those_of_the_table():
    names = [
        line.split("(")[1].split(",")[0]
        for line in (ROOT / "rml_exec/native/kernels/steps.def").read_text().splitlines()
        if line.startswith("RML_STEP(")
    ]
    assert list(_native.step_kinds()) == names


def test_importing_the_executor_imports_nothing_heavy():
    heavy = "{'torch', 'jax', 'tensorflow', 'onnx', 'pandas', 'rich', 'exporters', 'bench', 'reports', 'safetensors.torch'}"
    code = f"import rml_exec, sys; found = {heavy} & set(sys.modules); assert not found, found"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_public_name_loads_and_nothing_else_does():
    import rml_exec

    assert all(getattr(rml_exec, name) is not None for name in rml_exec.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        rml_exec.nonsense  # noqa: B018


def test_importing_the_package_alone_loads_no_kernel():
    code = "import sys, rml_exec; assert not [name for name in sys.modules if name.startswith('rml_exec.')], sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
