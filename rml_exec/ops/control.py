"""Control flow: ``call``, ``cond``, ``while`` and ``scan``, which run functions of the graph.

A function is closed: what it needs besides its arguments is an operand of the node, or a constant of the function itself. Operands are
bound to a function's inputs by position, its outputs become results by position; no names are matched. The references below are plain
Python loops and the definition of the ops.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rml_exec.ir.graph import Constant, Function, Node, Output, Value
from rml_exec.ops.registry import Attr, Callee, Case, Rule, Signature, case, define
from rml_exec.types import DType, TensorType

Arrays = tuple[np.ndarray, ...]


def _takes(what: str, function: Signature, operands: Sequence[TensorType]) -> None:
    """Requires a function to take exactly these operands."""
    if function.inputs != tuple(operands):
        raise Rule(f"{what} must take the operands' types ({', '.join(map(str, operands))})", function)


def _infer_call(*xs: TensorType, function: Signature) -> tuple[TensorType, ...]:
    _takes("function", function, xs)
    return function.outputs


def _run_call(*xs: np.ndarray, function: Callee) -> Arrays:
    return function(*xs)


def _infer_cond(index: TensorType, *xs: TensorType, branches: tuple[Signature, ...]) -> tuple[TensorType, ...]:
    if index.shape or index.dtype not in (DType.BOOL, DType.I32, DType.I64):
        raise Rule("index must be bool[], i32[] or i64[]", index)
    if not branches:
        raise Rule("branches must name one function at least")
    if index.dtype is DType.BOOL and len(branches) != 2:
        raise Rule("a bool index chooses among two branches, the one for false and the one for true", f"{len(branches)} branches")
    for number, branch in enumerate(branches):
        _takes(f"branches[{number}]", branch, xs)
        if branch.outputs != branches[0].outputs:
            raise Rule(f"branches[{number}] must give the types that branches[0] gives", f"{branch} and {branches[0]}")
    return branches[0].outputs


def _run_cond(index: np.ndarray, *xs: np.ndarray, branches: tuple[Callee, ...]) -> Arrays:
    return branches[min(max(int(index), 0), len(branches) - 1)](*xs)


def _infer_while(*xs: TensorType, cond: Signature, body: Signature) -> tuple[TensorType, ...]:
    if not xs:
        raise Rule("a loop must carry one value at least")
    _takes("cond", cond, xs)
    _takes("body", body, xs)
    if cond.outputs != (TensorType(DType.BOOL, ()),):
        raise Rule("cond must give one bool[]", cond)
    if body.outputs != xs:
        raise Rule("body must give the types that it takes", body)
    return xs


def _run_while(*xs: np.ndarray, cond: Callee, body: Callee) -> Arrays:
    while cond(*xs)[0]:
        xs = body(*xs)
    return xs


def _infer_scan(*xs: TensorType, body: Signature, length: int, reverse: bool, num_consts: int, num_carry: int) -> tuple[TensorType, ...]:
    if min(length, num_consts, num_carry) < 0:
        raise Rule("length, num_consts and num_carry must be at least 0", f"{length}, {num_consts}, {num_carry}")
    if num_consts + num_carry > len(xs):
        raise Rule("there must be num_consts + num_carry operands at least", f"{num_consts} + {num_carry} for {len(xs)} operands")
    scanned = xs[num_consts + num_carry :]
    for number, x in enumerate(scanned):
        if x.shape[:1] != (length,):
            raise Rule(f"the leading axis of a scanned operand must be the length {length}", f"{x} as scanned operand {number}")
    carry = xs[num_consts : num_consts + num_carry]
    _takes("body", body, (*xs[: num_consts + num_carry], *(TensorType(x.dtype, x.shape[1:]) for x in scanned)))
    if body.outputs[:num_carry] != carry:
        raise Rule("body must give first the types of the carry", body)
    return (*carry, *(TensorType(y.dtype, (length, *y.shape)) for y in body.outputs[num_carry:]))


def _run_scan(*xs: np.ndarray, body: Callee, length: int, reverse: bool, num_consts: int, num_carry: int) -> Arrays:
    consts, carry, scanned = xs[:num_consts], xs[num_consts : num_consts + num_carry], xs[num_consts + num_carry :]
    stacked = [np.empty((length, *y.shape), y.dtype.numpy) for y in body.signature.outputs[num_carry:]]
    for step in reversed(range(length)) if reverse else range(length):
        results = body(*consts, *carry, *(x[step] for x in scanned))
        carry = results[:num_carry]
        for y, result in zip(stacked, results[num_carry:], strict=True):
            y[step] = result
    return (*carry, *stacked)


def _function(name: str, inputs: Sequence[Value], nodes: Sequence[Node], outputs: Sequence[str], *constants: Constant) -> Function:
    """Returns a function of the test cases below."""
    results = tuple(Output(f"y{index}", value) for index, value in enumerate(outputs))
    return Function(name, tuple(inputs), results, constants, tuple(nodes))


def _case(id: str, shape: tuple[int, ...], *inputs: tuple[int, ...] | np.ndarray, **attrs: Any) -> Case:
    """Returns a case with functions of f32 values of one shape: ``grow(x) = x + x``, ``same(x) = x``, a counted loop, a running maximum."""
    type_, number, truth = TensorType(DType.F32, shape), TensorType(DType.I32, ()), TensorType(DType.BOOL, ())
    x, y, n = Value("x", type_), Value("y", type_), Value("n", number)
    one = Constant("one", number, np.array(1, np.int32))
    five = Constant("five", number, np.array(5, np.int32))
    grow = _function("grow", [x], [Node("add", "grow", ("x", "x"), (y,))], ["y"])
    same = _function("same", [x], [], ["x"])
    below = Node("compare", "below", ("n", "five"), (Value("go", truth),), {"dir": "lt"})
    step = (Node("add", "count", ("n", "one"), (Value("next", number),)), Node("neg", "flip", ("x",), (y,)))
    go, body = _function("go", [n, x], [below], ["go"], five), _function("body", [n, x], step, ["next", "y"], one)
    larger = Node("max", "larger", ("x", "y"), (Value("most", type_),))
    functions = grow, same, go, body, _function("most", [x, y], [larger], ["most", "most"])
    return replace(case(id, *inputs, **attrs), functions={function.name: function for function in functions})


_ZERO, _SEVEN = np.array(0, np.int32), np.array(7, np.int32)

call = define(
    name="call",
    inputs=("xs*",),
    outputs=("ys*",),
    attrs={"function": Attr("function")},
    infer=_infer_call,
    reference=_run_call,
    cases=(
        _case("odd", (3, 5), (3, 5), function="grow"),
        _case("empty", (0, 2), (0, 2), function="grow"),
        _case("scalar", (), (), function="same"),
    ),
    doc="""The results of `function` on the operands.""",
)

cond = define(
    name="cond",
    inputs=("index", "xs*"),
    outputs=("ys*",),
    attrs={"branches": Attr("functions")},
    infer=_infer_cond,
    reference=_run_cond,
    cases=(
        _case("true", (3, 5), np.array(True), (3, 5), branches=("same", "grow")),
        _case("clamped", (3,), np.array(7, np.int64), (3,), branches=("same", "grow", "grow")),
        _case("negative", (), np.array(-1, np.int32), (), branches=("grow",)),
        _case("empty", (0,), np.array(False), (0,), branches=("grow", "same")),
    ),
    doc="""The results of one of `branches` on `xs`; only that one runs. `index` is bool[] and `branches` are two, the first for false and
    the second for true; or it is i32[] or i64[], clamped to the range of `branches` (as `jax.lax.switch` does). All branches take the types
    of `xs` and give the same types.""",
)

while_ = define(
    name="while",
    inputs=("xs*",),
    outputs=("ys*",),
    attrs={"cond": Attr("function"), "body": Attr("function")},
    infer=_infer_while,
    reference=_run_while,
    cases=(
        _case("five", (3, 5), _ZERO, (3, 5), cond="go", body="body"),
        _case("zero_times", (7,), _SEVEN, (7,), cond="go", body="body"),
        _case("empty", (0, 3), _ZERO, (0, 3), cond="go", body="body"),
    ),
    doc="""Carries the values `xs`: as long as `cond` of them is true, `body` of them replaces them; the results are the last ones, the
    operands themselves if `cond` is false at once. Both functions take all carried values; `cond` gives one bool[], `body` the types that
    it takes.""",
)

scan = define(
    name="scan",
    inputs=("xs*",),
    outputs=("ys*",),
    attrs={"body": Attr("function"), "length": Attr("int"), "reverse": Attr("bool"), "num_consts": Attr("int"), "num_carry": Attr("int")},
    infer=_infer_scan,
    reference=_run_scan,
    cases=(
        _case("most", (3, 5), (3, 5), (4, 3, 5), body="most", length=4, reverse=False, num_consts=0, num_carry=1),
        _case("reverse", (3,), (3,), (5, 3), body="most", length=5, reverse=True, num_consts=0, num_carry=1),
        _case("const", (3,), (3,), (3, 3), body="most", length=3, reverse=False, num_consts=1, num_carry=0),
        _case("length_0", (3,), (3,), (0, 3), body="most", length=0, reverse=False, num_consts=0, num_carry=1),
        _case("empty", (0,), (0,), (2, 0), body="most", length=2, reverse=False, num_consts=0, num_carry=1),
    ),
    doc="""Runs `body` `length` times. Operands: `num_consts` values that every step sees, `num_carry` values that a step replaces for the
    next one, then scanned values with leading axis `length`, of which step t sees element t. `body` takes (consts, carry, elements) and
    gives (carry, elements of ys); the results are the last carry, then each of ys stacked along a new leading axis, step t at position t.
    `reverse` takes the steps from `length - 1` down to 0. With `length` 0 the carry comes back as it is.""",
)
