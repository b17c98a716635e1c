"""torch's control flow: ``cond``, ``while_loop``, ``scan`` and ``map`` become functions of the graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporters.dims import parse_dim
from exporters.errors import UnsupportedOperatorsError
from exporters.from_torch import export, to_graph
from rml_exec.ir.golden import read_golden
from rml_exec.ir.graph import Graph
from rml_exec.loading import load_graph
from rml_exec.runtime.executor import Executor

torch = pytest.importorskip("torch")
nn = torch.nn

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore::Warning")]


def values(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


class Model(nn.Module):
    """A function of weights and inputs."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("table", torch.arange(24.0).reshape(6, 4) / 24)
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def check(function: Callable[..., Any], inputs: list[Any], tmp_path: Path, **options: Any) -> Graph:
    """Exports the function, runs every golden on the executor, and returns the graph."""
    summary = export(Model(function).eval(), inputs, tmp_path / "m", **options)
    assert summary.golden_error < 1e-5
    graph = load_graph(tmp_path / "m")
    golden = read_golden(tmp_path / "m.golden.safetensors")
    results = Executor.create(graph, threads=1).run(golden.inputs)
    for name, expected in golden.outputs.items():
        np.testing.assert_allclose(results[name], expected, 1e-5, 1e-5)
    return graph


def ops(graph: Graph) -> Counter[str]:
    return Counter(node.op for body in (graph, *graph.functions.values()) for node in body.nodes)


@pytest.mark.parametrize("sign", [1, -1])
def test_a_condition_chooses_a_branch(sign: int, tmp_path: Path) -> None:
    def choose(m: Any, x: Any) -> Any:
        return torch.cond(x[0, 0] > 0, lambda x: m.first(x).relu(), lambda x: m.second(x) * 2 + m.table[:2], (x,))

    graph = check(choose, [values(2, 4).abs() * sign], tmp_path)
    assert ops(graph)["cond"] == 1
    keys = {constant.key for function in graph.functions.values() for constant in function.constants}
    assert {"first.weight", "second.weight"} <= keys


def test_branches_within_branches_and_several_results(tmp_path: Path) -> None:
    def inner(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: (x + 1, x.sum()), lambda x: (x - 1, -x.sum()), (x,))

    def outer(m: Any, x: Any) -> Any:
        y, total = torch.cond(x[0, 0] > -9, inner, lambda x: (x * 2, x.sum()), (x,))
        return {"y": m.first(y), "total": total}

    assert ops(check(outer, [values(3, 4)], tmp_path))["cond"] == 2


def test_a_condition_known_at_export_leaves_one_branch(tmp_path: Path) -> None:
    def choose(m: Any, x: Any) -> Any:
        return torch.cond(m.table.sum() > 0, lambda x: m.first(x), lambda x: m.second(x), (x,))

    assert ops(check(choose, [values(2, 4)], tmp_path)) == {"linear": 1}


def test_a_loop_with_a_counter_and_weights(tmp_path: Path) -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def loop(m: Any, x: Any, bound: Any) -> Any:
        scale = x.mean()  # read by the loop, changed by nothing
        return while_loop(lambda i, y: (i < 5) & (y.sum() < bound), lambda i, y: (i + 1, m.first(y).tanh() + scale), (torch.tensor(0), x))

    graph = check(loop, [values(2, 4), torch.tensor(100.0)], tmp_path)
    assert ops(graph)["while"] == 1
    (node,) = (node for node in graph.nodes if node.op == "while")
    assert len(node.inputs) == 4  # counter, state, bound, scale


def test_a_loop_that_runs_zero_times(tmp_path: Path) -> None:
    from torch._higher_order_ops.while_loop import while_loop

    check(lambda m, x: while_loop(lambda y: y.sum() > 1e9, lambda y: (y * 2,), (x,)), [values(2, 4)], tmp_path)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_a_scan_over_a_sequence(dim: int, reverse: bool, tmp_path: Path) -> None:
    from torch._higher_order_ops.scan import scan

    def recur(m: Any, x: Any) -> Any:
        def step(state: Any, element: Any) -> Any:
            state = torch.tanh(m.first(state) + m.second(element))
            return state, state * 2

        return scan(step, torch.zeros(3, 4), x, dim=dim, reverse=reverse)

    graph = check(recur, [values(*((5, 3, 4) if dim == 0 else (3, 5, 4)))], tmp_path)
    (node,) = (node for node in graph.nodes if node.op == "scan")
    assert (node.attrs["length"], node.attrs["num_carry"], node.attrs["num_consts"]) == (5, 1, 0)


def test_a_scan_reads_what_is_around_it(tmp_path: Path) -> None:
    from torch._higher_order_ops.scan import scan

    def recur(m: Any, x: Any, bias: Any) -> Any:
        scale = bias.exp()
        return scan(lambda c, e: (c * scale + e["a"], c + e["b"] + m.table[0]), x[0], {"a": x, "b": x * bias})

    graph = check(recur, [values(5, 3, 4), values(4, seed=1)], tmp_path)
    (node,) = (node for node in graph.nodes if node.op == "scan")
    assert (node.attrs["num_carry"], node.attrs["num_consts"]) == (1, 1)


def test_map_is_a_scan_without_a_state(tmp_path: Path) -> None:
    from torch._higher_order_ops.map import map as map_over

    graph = check(lambda m, x, y: map_over(lambda row, y: m.first(row) * y, x, y), [values(5, 3, 4), values(4, seed=1)], tmp_path)
    (node,) = (node for node in graph.nodes if node.op == "scan")
    assert (node.attrs["length"], node.attrs["num_carry"]) == (5, 0)


def test_blocks_without_gradients_or_autocast_are_transparent(tmp_path: Path) -> None:
    def blocks(m: Any, x: Any) -> Any:
        with torch.no_grad():
            y = m.first(x)
        with torch.autocast("cpu", enabled=False):
            return y + m.second(x)

    assert ops(check(blocks, [values(2, 4)], tmp_path)) == {"linear": 2, "add": 1}


def test_an_operator_without_a_lowering_is_refused() -> None:
    from torch.nn.attention.flex_attention import flex_attention

    with pytest.raises(UnsupportedOperatorsError, match=r"flex_attention \(1x\): this higher-order operator"):
        to_graph(Model(lambda m, q: flex_attention(q, q, q)).eval(), [values(1, 2, 8, 16)], name="t")


def test_an_operator_refused_in_a_branch_is_listed() -> None:
    def choose(m: Any, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x + torch.randn(4), lambda x: x * 2, (x,))

    with pytest.raises(UnsupportedOperatorsError) as caught:
        to_graph(Model(choose).eval(), [values(2, 4)], name="t")
    assert "aten.randn.default" in {operator.op for operator in caught.value.operators}


def test_symbolic_sizes_within_functions(tmp_path: Path) -> None:
    def choose(m: Any, x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: m.first(x).softmax(0), lambda x: x.flip(0), (x,))

    check(choose, [values(3, 4)], tmp_path, dims=[parse_dim("rows=2..9@x.0")], input_names=["x"])
