"""Sizes of a model's inputs: those that the file gives, those that the caller fixes, and those that stay open as symbolic dims."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from exporters.dims import Dim, generalise, share_constants, trial_sizes
from exporters.errors import ExportError, UnsupportedOperatorsError
from exporters.from_onnx.importer import Imported, build_graph, graph_inputs
from exporters.from_onnx.options import Size
from exporters.from_onnx.reading import Model
from rml_exec.errors import RmlError
from rml_exec.ir.dims import MAX_LENGTH, parse_expr
from rml_exec.ir.graph import Graph, Node
from rml_exec.ir.names import Names
from rml_exec.types import TensorType

__all__ = ["InputShapes", "import_model", "window_counts"]

_LARGE = 64
"""Smallest size that is tried where small ones failed."""

_FINEST = 1000
"""Largest denominator that a scale is taken for."""

_USUAL = 8
"""Hint of a dim that is not a batch size."""


class InputShapes:
    """The shapes of a model's inputs, with names for the sizes that are open.

    Attributes:
        dims: the dims that are open.
        hint: their sizes in the graph that is bound to the hints.
        tried: the dims with the range that sizes to try are taken from.
    """

    def __init__(
        self, model: Model, sizes: Mapping[str, Size], given: Mapping[str, Sequence[int | str]], examples: Mapping[str, np.ndarray]
    ) -> None:
        """Takes what the caller fixes.

        Args:
            model: the model.
            sizes: sizes of dims by their names, as in the file or as reported.
            given: whole shapes by input.
            examples: example inputs, whose sizes become the hints.

        Raises:
            ExportError: names that the model has not, shapes that contradict the file, or an input of unknown rank.
        """
        self._where = model.where
        self._names: dict[str, str] = {}
        self._taken = Names(["min", "max"])
        inputs = graph_inputs(model)
        if unknown := sorted(set(given) - {value.name for value in inputs}):
            got = ", ".join(map(repr, unknown))
            raise ExportError.of(model.where, "shapes can be given to its inputs only", got, hint=f"it has {[v.name for v in inputs]}")
        shapes: dict[str, tuple[int | str, ...]] = {}
        for value in inputs:
            declared = self._declared(value.name, value.type.tensor_type)
            shape = given.get(value.name)
            if shape is not None and declared is not None:
                fits = [not isinstance(a, int) or not isinstance(b, int) or a == b for a, b in zip(shape, declared, strict=False)]
                if len(shape) != len(declared) or not all(fits):
                    raise ExportError.of(f"input '{value.name}'", f"the model says {_shown(declared)}", _shown(shape))
            if shape is None and declared is None and value.type.WhichOneof("value") == "tensor_type":
                hint = f"--input-shape {value.name}=SIZE,SIZE"
                raise ExportError.of(f"input '{value.name}'", "the model does not say how many axes it has", hint=hint)
            shapes[value.name] = tuple(shape if shape is not None else declared or ())
        open_names = {dim for shape in shapes.values() for dim in shape if isinstance(dim, str)}
        sizes = {self._names.get(name, name): size for name, size in sizes.items()}
        if unknown := sorted(set(sizes) - open_names):
            got = ", ".join(map(repr, unknown))
            rule = "a size can be given to a dim that the model leaves open"
            raise ExportError.of(model.where, rule, got, hint=f"it leaves open {', '.join(sorted(open_names)) or 'none'}")
        fixed = {name: size for name, size in sizes.items() if isinstance(size, int)}
        ranges = {name: size for name, size in sizes.items() if not isinstance(size, int)}
        self._shapes = {
            name: tuple(fixed.get(dim, dim) if isinstance(dim, str) else dim for dim in shape) for name, shape in shapes.items()
        }
        self._axes: dict[str, list[tuple[str, int]]] = {}
        for name, shape in self._shapes.items():
            for axis, dim in enumerate(shape):
                if isinstance(dim, str):
                    self._axes.setdefault(dim, []).append((name, axis))
        self.dims = [Dim(name, *ranges.get(name, (1, None)), axes=tuple(axes)) for name, axes in self._axes.items()]
        self.hint = {dim.name: self._hint(dim, examples) for dim in self.dims}
        self.tried = self.dims

    def _declared(self, name: str, tensor_type: object) -> tuple[int | str, ...] | None:
        """Returns the shape that the file gives an input, None if it gives none; a dim without a name is called after input and axis."""
        if not tensor_type.HasField("shape"):  # type: ignore[attr-defined]
            return None
        shape: list[int | str] = []
        for axis, dim in enumerate(tensor_type.shape.dim):  # type: ignore[attr-defined]
            if dim.HasField("dim_value") and dim.dim_value >= 0:
                shape.append(int(dim.dim_value))
                continue
            label = dim.dim_param or f"{name}_dim{axis}"
            if label not in self._names:
                word = re.sub(r"\W+", "_", label, flags=re.ASCII).strip("_")
                self._names[label] = self._taken.take(word if word[:1].isalpha() else f"dim_{word}")
            shape.append(self._names[label])
        return tuple(shape)

    def _hint(self, dim: Dim, examples: Mapping[str, np.ndarray]) -> int:
        sizes = {examples[name].shape[axis] for name, axis in self._axes[dim.name] if name in examples and axis < examples[name].ndim}
        if sizes:
            return int(min(sizes))
        usual = 1 if all(axis == 0 for _, axis in self._axes[dim.name]) else _USUAL
        return max(dim.low, min(usual, dim.high or usual))

    def grow(self) -> bool:
        """Makes larger what is tried, other than batch sizes: images must often have some pixels. False if nothing can grow."""
        grown = [
            replace(dim, low=_LARGE) if dim.low == 1 and dim.high is None and any(axis for _, axis in self._axes[dim.name]) else dim
            for dim in self.dims
        ]
        if grown == self.tried:
            return False
        self.tried = grown
        self.hint = {dim.name: max(self.hint[dim.name], dim.low) for dim in grown}
        return True

    def at(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of all inputs at sizes of the dims."""
        return {name: tuple(sizes[dim] if isinstance(dim, str) else dim for dim in shape) for name, shape in self._shapes.items()}

    def must_be_fixed(self, problem: RmlError) -> ExportError:
        """Returns the report of a model that cannot be imported with these dims open."""
        lines = [f"  these are options of: python -m exporters --from onnx {self._where} --out PREFIX"]
        for dim in self.dims:
            places = ", ".join(f"axis {axis} of '{name}'" for name, axis in self._axes[dim.name])
            lines.append(f"  {dim.name} ({places}): --dim {dim.name}={self.hint[dim.name]}")
        for name, shape in self._shapes.items():
            if any(isinstance(dim, str) for dim in shape):
                sizes = ",".join(str(self.hint[dim] if isinstance(dim, str) else dim) for dim in shape)
                lines.append(f"  all of '{name}': --input-shape {name}={sizes}")
        rule = "some of the dims that it leaves open must be fixed, or bounded (NAME=LOW..HIGH)"
        return ExportError("\n".join([str(ExportError.of(self._where, rule)), *lines, f"What stood in the way: {problem}"]))


def _shown(shape: Sequence[int | str]) -> str:
    return f"[{','.join(map(str, shape))}]"


def import_model(model: Model, inputs: InputShapes, *, name: str, known: Mapping[str, np.ndarray]) -> Imported:
    """Returns the graph of a model; with open dims the one that stands for all sizes, bound to the hints.

    Raises:
        UnsupportedOperatorsError: operators that cannot be imported, all of them at once.
        ExportError: a model that cannot be imported, or not with these dims open: then with the options that fix them.
    """
    if not inputs.dims:
        return build_graph(model, name=name, known=known, shapes=inputs.at({}))

    def fixed(sizes: Mapping[str, int]) -> Imported:
        return build_graph(model, name=name, known=known, shapes=inputs.at(sizes))

    while True:
        try:
            return _import_symbolic(model, inputs, name, known)
        except (UnsupportedOperatorsError, ExportError) as error:
            if (cause := _cause(fixed, inputs)) is not None:
                raise cause from None
            if not inputs.grow():
                raise inputs.must_be_fixed(error) from error


def _cause(fixed: Callable[[Mapping[str, int]], Imported], inputs: InputShapes) -> RmlError | None:
    """Returns what keeps a model from being imported whatever its dims are: what is said in the same words of two fixed imports."""
    found: list[RmlError] = []
    for sizes in (inputs.hint, trial_sizes(inputs.tried, inputs.hint)[-1]):
        try:
            fixed(sizes)
        except (UnsupportedOperatorsError, ExportError) as error:
            found.append(error)
        else:
            return None
    first, second = (re.sub(r" (Inputs: |its inputs are )[^\n]*|\[[\d,]*\]", "", str(error)) for error in found)  # without shapes
    return found[0] if first == second else None


def _import_symbolic(model: Model, inputs: InputShapes, name: str, known: Mapping[str, np.ndarray]) -> Imported:
    """Imports at several sizes, lays the graphs over each other, and holds the result against imports at other sizes.

    What is known and differs between sizes is computed by nodes in a second round. A size at which the result is wrong is one more to fit.
    """

    def build(sizes: Mapping[str, int]) -> Imported:
        return build_graph(model, name=name, known=known, shapes=inputs.at(sizes), varying=varying)

    trials, varying = trial_sizes(inputs.tried, inputs.hint), frozenset[str]()
    found = [build(sizes) for sizes in trials]
    if varying := _varying(found):
        found = [build(sizes) for sizes in trials]
    graphs: list[tuple[Mapping[str, int], Graph]] = []
    for sizes, imported in zip(trials, found, strict=True):
        graphs.append((sizes, share_constants(imported.graph, graphs)))
    probes = [sizes for sizes in _probes(inputs.tried) if sizes not in trials]
    while True:
        graph = generalise(graphs, inputs.dims, inputs.hint, window_counts(graphs, [dim.name for dim in inputs.dims]))
        wrong = next(((sizes, probed) for sizes in probes if not _is_same(graph.bind(**sizes), probed := build(sizes).graph)), None)
        if wrong is None:
            return Imported(graph, found[0].store, found[0].names)
        graphs.append((wrong[0], share_constants(wrong[1], graphs)))
        probes.remove(dict(wrong[0]))


def _probes(dims: Sequence[Dim]) -> list[dict[str, int]]:
    """Returns sizes that show expressions which hold by chance: remainders by 2, 3 and 4 in all combinations are among them."""
    return [
        {dim.name: _within(dim, max(dim.low, 2) + step * (place + 1)) for place, dim in enumerate(dims)} for step in (2, 4, 5, 7, 12, 17)
    ]


def _within(dim: Dim, size: int) -> int:
    return size if dim.high is None else min(size, dim.high)


def _is_same(a: Graph, b: Graph) -> bool:
    """True if two static graphs have the same nodes."""
    return all(
        repr((first.inputs, first.nodes, first.outputs)) == repr((second.inputs, second.nodes, second.outputs))
        for first, second in zip((a, *a.functions.values()), (b, *b.functions.values()), strict=True)
    )


def window_counts(graphs: Sequence[tuple[Mapping[str, int], Graph]], names: Sequence[str]) -> list[str]:
    """Returns expressions for the sizes that convolutions and pools with strides give, and for paddings that depend on sizes.

    Args:
        graphs: (sizes, static graph) of the same model at several sizes.
        names: the dims.

    Raises:
        ExportError: sizes that are too small for a window.
    """
    texts = {tuple(sizes[name] for sizes, _ in graphs): name for name in names}
    types = [graph.types() for _, graph in graphs]
    found: dict[str, None] = {}
    for nodes in zip(*(graph.nodes for _, graph in graphs), strict=False):
        attrs = nodes[0].attrs
        if {node.op for node in nodes} == {"resize"} and attrs["scales"] is not None:
            found |= dict.fromkeys(_scaled_counts(nodes, graphs, types, texts))
        if len({node.op for node in nodes}) > 1 or not {"strides", "pads", "data_layout"} <= attrs.keys():
            continue
        first = 2 if attrs["data_layout"] == "NCHW" else 1
        windows = attrs["window"] if "window" in attrs else types[0][nodes[0].inputs[1] or ""].shape[2:]
        for place, (stride, window) in enumerate(zip(attrs["strides"], windows, strict=True)):
            before = tuple(type_[node.inputs[0] or ""].shape[first + place] for type_, node in zip(types, nodes, strict=True))
            after = tuple(node.outputs[0].type.shape[first + place] for node in nodes)
            if min(after) == 0:
                raise ExportError.of(f"{nodes[0].op} '{nodes[0].name}'", "its windows must fit into their operand", f"sizes {before}")
            reach = (window - 1) * attrs.get("dilations", (1,) * len(windows))[place] + 1
            pads = {node.attrs["pads"][place] for node in nodes}
            text = _text(before, texts)
            if text is None or len(set(after)) == 1 or after in texts:
                continue
            if len(pads) > 1:  # as many as it takes to give ceil(size / stride) windows
                total = f"max({reach - 1} - ({text} - 1) % {stride}, 0)"
                found |= dict.fromkeys([total, f"{total} // 2", f"({total} + 1) // 2"])
                result = f"({text} - 1) // {stride} + 1"
            else:
                shift = sum(pads.pop()) + stride - reach
                result = f"({text} {'-' if shift < 0 else '+'} {abs(shift)}) // {stride}"
            if len(result) <= MAX_LENGTH and tuple(parse_expr(result).evaluate(sizes) for sizes, _ in graphs) == after:
                texts[after] = result
                found[result] = None
    return [text for text in found if len(text) <= MAX_LENGTH]


def _scaled_counts(
    nodes: Sequence[Node],
    graphs: Sequence[tuple[Mapping[str, int], Graph]],
    types: Sequence[Mapping[str, TensorType]],
    texts: dict[tuple[int, ...], str],
) -> list[str]:
    """Returns expressions for the sizes that a ``resize`` by scales gives, which ``texts`` gets too: at scale 0.7 ``w * 7 // 10``."""
    found = []
    first = 2 if nodes[0].attrs["data_layout"] == "NCHW" else 1
    for place, scale in enumerate(nodes[0].attrs["scales"]):
        before = tuple(type_[node.inputs[0] or ""].shape[first + place] for type_, node in zip(types, nodes, strict=True))
        after = tuple(node.outputs[0].type.shape[first + place] for node in nodes)
        text, ratio = _text(before, texts), Fraction(scale).limit_denominator(_FINEST)
        if text is None or len(set(after)) == 1 or after in texts:
            continue
        result = f"({text}) * {ratio.numerator} // {ratio.denominator}"
        if len(result) <= MAX_LENGTH and tuple(parse_expr(result).evaluate(sizes) for sizes, _ in graphs) == after:
            texts[after] = result
            found.append(result)
    return found


def _text(values: tuple[int, ...], texts: Mapping[tuple[int, ...], str]) -> str | None:
    """Returns an expression for the values at all sizes, which may be a known one and a number more or less."""
    for known, text in texts.items():
        offsets = {value - base for value, base in zip(values, known, strict=True)}
        if len(offsets) == 1:
            offset = offsets.pop()
            return f"{text} + {offset}" if offset > 0 else f"{text} - {-offset}" if offset else text
    return None


def _varying(found: Sequence[Imported]) -> frozenset[str]:
    """Returns the known values that are not the same at all sizes."""
    first, *others = (imported.store.known for imported in found)
    return frozenset(
        value
        for value, known in first.items()
        if known.key is None and any(value not in other or not _same(known.array, other[value].array) for other in others)
    )


def _same(a: np.ndarray, b: np.ndarray) -> bool:
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
