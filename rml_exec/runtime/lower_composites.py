"""Lowerings of ops onto kernels made for others: recurrent layers, RMS and group normalisation, enlarging by repetition."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from rml_exec.ir.graph import Node
from rml_exec.ops.decompose import Primitives
from rml_exec.plan.aliases import View, contiguous_strides, reads_contiguous
from rml_exec.runtime.formulas import Formula
from rml_exec.runtime.lower_elementwise import Tensor
from rml_exec.runtime.lower_linear import gemm_step, pack_step, packed
from rml_exec.runtime.lowering import LowerContext, NativeStep, Operand, Part, Scratch, copy_step, float_bits, lowers
from rml_exec.runtime.shared import shared_data
from rml_exec.types import DType, TensorType

_F32_BYTES = 4
_MEAN = 1  # of the reduce kernel


def _dense(operand: Operand, *shape: int) -> Tensor:
    return Tensor(operand, TensorType(DType.F32, shape), contiguous_strides(shape))


# ---- recurrent layers ------------------------------------------------------------------------------------------------------------------
# One GEMM multiplies all time steps with w. Then, step by step, a GEMM multiplies the state with r and one elementwise step does the gates.


def _floats(ctx: LowerContext, count: int) -> Scratch:
    return ctx.scratch(count * _F32_BYTES)


def _behind(operand: Operand, floats: int) -> Operand:
    """Returns the operand from an element on."""
    match operand:
        case None:
            return None
        case str():
            return Part(operand, floats * _F32_BYTES)
        case Part():
            return Part(operand.value, operand.byte_offset + floats * _F32_BYTES)
        case Scratch():
            return Scratch(operand.offset + floats * _F32_BYTES, operand.nbytes - floats * _F32_BYTES)
    return operand.reshape(-1)[floats:]


class _Product:
    """The product with rows ``first`` to ``first + n`` of a weight matrix [rows, k] plus bias: packed once, used by many steps."""

    def __init__(self, ctx: LowerContext, weight: str, bias: str | None, first: int, n: int) -> None:
        self._n, self._k = n, ctx.type(weight).shape[1]
        self._bias = None if bias is None else _behind(ctx.contiguous(bias), first)
        data = ctx.constant(weight)
        if data is not None:
            self._panels: Operand = packed(data, self._k, n, 1, self._k, first * self._k)
            self.prologue: list[NativeStep] = []
        else:
            pack = pack_step(ctx, _behind(ctx.contiguous(weight), first * self._k), 1, self._k, n, 0, 1, self._k)
            self._panels, self.prologue = pack.operands[0], [pack]

    def of(self, target: Operand, x: Operand, rows: int) -> NativeStep:
        """Returns the step ``target = x @ weight^T + bias``, x [rows, k]."""
        return gemm_step(target, x, self._panels, self._bias, 1, rows, self._n, self._k, self._k, self._n, 0, 0, 0)


class _Sequence:
    """What the lowerings of LSTM and GRU share: sizes, the product of x with w, and the walk over time."""

    def __init__(self, node: Node, ctx: LowerContext, gates: int) -> None:
        x, w, _, bias, *_ = node.inputs
        assert x is not None and w is not None
        self.node, self.ctx = node, ctx
        self.y = node.outputs[0].name
        self.time, self.batch, self.hidden = node.outputs[0].type.shape
        self.columns = gates * self.hidden
        self.state = TensorType(DType.F32, (self.batch, self.hidden))
        self._from_x = _floats(ctx, self.time * self.batch * self.columns)
        product = _Product(ctx, w, bias, 0, self.columns)
        self.prologue = [*product.prologue, product.of(self._from_x, ctx.contiguous(x), self.time * self.batch)]

    def initial(self, state: str | None) -> Operand:
        """Returns the state before the first step; zeros for an absent one."""
        if state is not None:
            return self.ctx.contiguous(state)
        count = self.state.size
        return shared_data(None, ("zeros", count), lambda: np.zeros(count, np.float32))

    def gate(self, name: str, columns: int) -> Tensor:
        """Returns one gate's [batch, hidden] of a matrix of so many columns; ``name`` stands for the place."""
        return Tensor(name, self.state, (columns, 1))

    def walk(self) -> Iterator[tuple[Operand, Operand]]:
        """Yields, step by step, what came from x and where the step's result goes."""
        steps = range(self.time) if self.node.attrs["direction"] == "forward" else range(self.time - 1, -1, -1)
        for step in steps:
            yield _behind(self._from_x, step * self.batch * self.columns), _behind(self.y, step * self.state.size)

    def copied(self, target: str, source: Operand) -> NativeStep:
        """Returns the step that copies a state."""
        return copy_step(target, source, self.state, contiguous_strides(self.state.shape))


def _bound(step: NativeStep, places: dict[str, Operand]) -> NativeStep:
    """Returns the step with places for the names that stand for them."""
    operands = tuple(places[operand] if isinstance(operand, str) else operand for operand in step.operands)
    return NativeStep(step.kernel, step.params, operands)


def _lowered(node: Node) -> bool:
    """True for f32 with something to compute at every step."""
    return node.outputs[0].type.dtype is DType.F32 and node.outputs[0].type.size > 0


@lowers("lstm")
def lower_lstm(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """Two native calls per time step; see the top of this part."""
    if not _lowered(node):
        return None
    r, h0, c0 = node.inputs[2], node.inputs[4], node.inputs[5]
    assert r is not None
    run = _Sequence(node, ctx, 4)
    size, columns = run.hidden, run.columns
    tensors = {f"x{gate}": run.gate(f"x{gate}", columns) for gate in "ifgo"}
    tensors |= {f"h{gate}": run.gate(f"h{gate}", columns) for gate in "ifgo"} | {"c": run.gate("c", size)}
    formula = Formula({name: tensor.type for name, tensor in tensors.items()})
    p = Primitives(formula)
    i, f, g, o = (p("add", f"x{gate}", f"h{gate}") for gate in "ifgo")
    c = p("add", p("mul", p("sigmoid", f), "c"), p("mul", p("sigmoid", i), p("tanh", g)))
    h = p("mul", p("sigmoid", o), p("tanh", c))
    gates = formula.step(tensors, {h: "to h", c: "to c"})
    product = _Product(ctx, r, None, 0, columns)
    from_h, cell = _floats(ctx, run.batch * columns), _floats(ctx, run.state.size)
    steps = [*run.prologue, *product.prologue]
    state, memory = run.initial(h0), run.initial(c0)
    for number, (from_x, target) in enumerate(run.walk()):
        to_c: Operand = node.outputs[2].name if number == run.time - 1 else cell
        places: dict[str, Operand] = {"to h": target, "to c": to_c, "c": memory}
        for index, gate in enumerate("ifgo"):
            places[f"x{gate}"], places[f"h{gate}"] = _behind(from_x, index * size), _behind(from_h, index * size)
        steps += [product.of(from_h, state, run.batch), _bound(gates, places)]
        state, memory = target, to_c
    return [*steps, run.copied(node.outputs[1].name, state)]


@lowers("gru")
def lower_gru(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """Two native calls per time step, four where the reset gate comes before the product."""
    if not _lowered(node):
        return None
    r, recurrent_bias, h0 = node.inputs[2], node.inputs[4], node.inputs[5]
    assert r is not None
    run = _Sequence(node, ctx, 3)
    steps = list(run.prologue)
    state = run.initial(h0)
    cell = _ResetAfter if node.attrs["reset"] == "after" else _ResetBefore
    step = cell(run, r, recurrent_bias)
    steps += step.prologue
    for from_x, target in run.walk():
        steps += step.of(from_x, state, target)
        state = target
    return [*steps, run.copied(node.outputs[1].name, state)]


class _ResetAfter:
    """A step of a GRU whose reset gate scales the product with the state."""

    def __init__(self, run: _Sequence, r: str, bias: str | None) -> None:
        self._run = run
        tensors = {f"{source}{gate}": run.gate(f"{source}{gate}", run.columns) for source in "xh" for gate in "rzn"}
        tensors["h"] = run.gate("h", run.hidden)
        formula = Formula({name: tensor.type for name, tensor in tensors.items()})
        p = Primitives(formula)
        reset, update = (p("sigmoid", p("add", f"x{gate}", f"h{gate}")) for gate in "rz")
        new = p("tanh", p("add", "xn", p("mul", reset, "hn")))
        self._gates = formula.step(tensors, {_mixed(p, update, new): "to h"})
        self._product = _Product(run.ctx, r, bias, 0, run.columns)
        self._from_h = _floats(run.ctx, run.batch * run.columns)
        self.prologue = self._product.prologue

    def of(self, from_x: Operand, state: Operand, target: Operand) -> list[NativeStep]:
        """Returns the native calls of one time step."""
        places: dict[str, Operand] = {"to h": target, "h": state}
        for index, gate in enumerate("rzn"):
            places[f"x{gate}"] = _behind(from_x, index * self._run.hidden)
            places[f"h{gate}"] = _behind(self._from_h, index * self._run.hidden)
        return [self._product.of(self._from_h, state, self._run.batch), _bound(self._gates, places)]


class _ResetBefore:
    """A step of a GRU whose reset gate scales the state before its product."""

    def __init__(self, run: _Sequence, r: str, bias: str | None) -> None:
        self._run, size = run, run.hidden
        gates = {f"x{gate}": run.gate(f"x{gate}", run.columns) for gate in "rz"}
        gates |= {f"h{gate}": run.gate(f"h{gate}", 2 * size) for gate in "rz"} | {"h": run.gate("h", size)}
        formula = Formula({name: tensor.type for name, tensor in gates.items()})
        p = Primitives(formula)
        reset, update = (p("sigmoid", p("add", f"x{gate}", f"h{gate}")) for gate in "rz")
        self._gates = formula.step(gates, {p("mul", reset, "h"): "to kept", update: "to z"})
        rest = {"xn": run.gate("xn", run.columns), "hn": run.gate("hn", size), "h": run.gate("h", size), "z": run.gate("z", size)}
        formula = Formula({name: tensor.type for name, tensor in rest.items()})
        p = Primitives(formula)
        self._mix = formula.step(rest, {_mixed(p, "z", p("tanh", p("add", "xn", "hn"))): "to h"})
        self._first, self._second = _Product(run.ctx, r, bias, 0, 2 * size), _Product(run.ctx, r, bias, 2 * size, size)
        self._from_h = _floats(run.ctx, run.batch * 2 * size)
        self._kept, self._update, self._from_kept = (_floats(run.ctx, run.state.size) for _ in range(3))
        self.prologue = [*self._first.prologue, *self._second.prologue]

    def of(self, from_x: Operand, state: Operand, target: Operand) -> list[NativeStep]:
        """Returns the native calls of one time step."""
        size, batch = self._run.hidden, self._run.batch
        places: dict[str, Operand] = {"to kept": self._kept, "to z": self._update, "h": state}
        for index, gate in enumerate("rz"):
            places[f"x{gate}"], places[f"h{gate}"] = _behind(from_x, index * size), _behind(self._from_h, index * size)
        rest = {"to h": target, "xn": _behind(from_x, 2 * size), "hn": self._from_kept, "h": state, "z": self._update}
        return [
            self._first.of(self._from_h, state, batch),
            _bound(self._gates, places),
            self._second.of(self._from_kept, self._kept, batch),
            _bound(self._mix, rest),
        ]


def _mixed(p: Primitives, update: str, new: str) -> str:
    """Returns (1 - z) * n + z * h."""
    return p("add", p("mul", p("sub", 1.0, update), new), p("mul", update, "h"))


# ---- normalisation ---------------------------------------------------------------------------------------------------------------------


@lowers("rms_norm")
def lower_rms_norm(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """Squares, their mean per row, one over its root, and the product."""
    x, scale = node.inputs
    result, first = node.outputs[0], node.attrs["axes"][0]
    assert x is not None
    if not _lowered(node):
        return None
    shape = result.type.shape
    rows, n = math.prod(shape[:first]), math.prod(shape[first:])
    tensors = {"x": Tensor(x, result.type, ctx.strides(x))}
    squares, factors = _floats(ctx, rows * n), _floats(ctx, rows)
    square = Formula({"x": result.type})
    steps = [square.step(tensors, {Primitives(square)("mul", "x", "x"): squares})]
    steps.append(NativeStep("reduce", (rows, n, 1, _MEAN, 0), (factors, squares)))
    mean = {"mean": _dense(factors, rows)}
    root = Formula({"mean": mean["mean"].type})
    p = Primitives(root)
    inverse = p("div", 1.0, p("sqrt", p("add", "mean", node.attrs["eps"])), rounding="true")
    steps.append(root.step(mean, {inverse: factors}))
    tensors["factor"] = _dense(factors, *shape[:first], *(1,) * (len(shape) - first))
    if scale is not None:
        tensors["scale"] = Tensor(scale, ctx.type(scale), ctx.strides(scale))
    product = Formula({name: tensor.type for name, tensor in tensors.items()})
    p = Primitives(product)
    y = p("mul", "x", "factor")
    return [*steps, product.step(tensors, {y if scale is None else p("mul", y, "scale"): result.name})]


@lowers("group_norm")
def lower_group_norm(node: Node, ctx: LowerContext) -> list[NativeStep] | None:
    """Layer norm over the rows of the groups with channels first, then scale and bias per channel, in the layout of the result."""
    x, *vectors = node.inputs
    result, groups, axis = node.outputs[0], node.attrs["groups"], node.attrs["axis"]
    assert x is not None
    if not _lowered(node):
        return None
    shape = result.type.shape
    order = [0, axis, *(other for other in range(1, len(shape)) if other != axis)]
    rows = shape[0] * groups
    given = {name: vector for name, vector in zip(("scale", "bias"), vectors, strict=True) if vector is not None}
    whole = order == sorted(order) and not given
    normal: Operand = result.name if whole else ctx.scratch(result.type.nbytes)
    steps = [
        NativeStep(
            "layer_norm", (rows, result.type.size // rows, float_bits(node.attrs["eps"])), (normal, moved(ctx, x, order), None, None)
        )
    ]
    if whole:
        return steps
    dense = contiguous_strides(tuple(shape[at] for at in order))
    tensors = {"y": Tensor(normal, result.type, tuple(dense[order.index(at)] for at in range(len(shape))))}
    along = (shape[axis],) + (1,) * (len(shape) - axis - 1)
    for name, vector in given.items():
        tensors[name] = Tensor(vector, TensorType(DType.F32, along), (ctx.strides(vector)[0],) + (0,) * (len(along) - 1))
    formula = Formula({name: tensor.type for name, tensor in tensors.items()})
    p = Primitives(formula)
    y = p("mul", "y", "scale") if "scale" in given else "y"
    y = p("add", y, "bias") if "bias" in given else y
    if not given:
        return [*steps, copy_step(result.name, normal, result.type, tensors["y"].strides)]
    return [*steps, formula.step(tensors, {y: result.name})]


def moved(ctx: LowerContext, x: str, order: Sequence[int]) -> Operand:
    """Returns x in C order with its axes in another order: itself where it lies so already, else a copy in scratch."""
    type_ = TensorType(ctx.type(x).dtype, tuple(ctx.type(x).shape[at] for at in order))
    strides = tuple(ctx.strides(x)[at] for at in order)
    if reads_contiguous(View(x, 0, strides), type_.shape):
        return x
    part = ctx.scratch(type_.nbytes)
    ctx.prologue.append(copy_step(part, x, type_, strides))
    return part
