"""Walks the graph of a concrete function and builds the rml-graph: inlines calls, reads variables, folds constants, lists what is refused.

The graph is read as it was traced, not through a frozen GraphDef: variables keep their names and their ties, operations their source
lines, and the weights are never copied into protocol buffers (which end at 2 GB).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from exporters.errors import ExportError, Unsupported, UnsupportedOperatorsError
from exporters.from_tf import control, elementwise, indexing, linear, lists, neural, reductions, shapes
from exporters.from_tf.evaluation import array_of, body_of, evaluate
from exporters.from_tf.matching import Pattern
from exporters.from_tf.patterns import find_pattern
from exporters.from_tf.table import (
    TABLE,
    Constants,
    Context,
    Keys,
    Known,
    RefusalError,
    Sizes,
    TensorList,
    Value,
    Variable,
    dtype_of,
)
from exporters.from_tf.tracing import load_tensorflow
from rml_exec.errors import TypeInferenceError
from rml_exec.ir.builder import BodyBuilder, FunctionBuilder
from rml_exec.ir.graph import Graph
from rml_exec.ir.names import Names
from rml_exec.loading import GraphBuilder

__all__ = ["CALLS", "build_graph"]

LOWERINGS = (elementwise, indexing, linear, lists, neural, reductions, shapes)
"""The modules that fill the table of lowerings."""

CALLS = ("PartitionedCall", "StatefulPartitionedCall", "StatelessPartitionedCall")
_FOLD_ELEMENTS = 1024
_SIZES = {"StridedSlice": 1, "GatherV2": 1, "Prod": 1, "Cast": 1, "Pack": None, "Mul": None, "AddV2": None, "ConcatV2": -1}
"""Operators that give sizes if their operands (the first, all of them, all but the last) are sizes."""

_NO_FOLD = ("Transpose", "TensorList", "EmptyTensorList", "If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase")
"""Begins of operators that are not run on constants: a transposed variable would be stored twice, the others are followed instead."""

_REASONS = {
    "random numbers: is the model in training mode?": "Random StatelessRandom Multinomial",
    "changes a variable: is the model in training mode, or does it keep state between calls?": "Assign",
    "the variable is not part of the function: initialise it outside": "VarHandleOp",
    "control flow of TensorFlow 1: save the model with TensorFlow 2": "Enter NextIteration Switch Merge",
    "complex numbers are not supported": "RFFT FFT IFFT IRFFT BatchFFT Real Imag Complex Angle Conj",
    "linear algebra is not supported": "Matrix Cholesky Qr Svd Lu SelfAdjointEig Eig LogMatrixDeterminant TriangularSolve",
    "a special function that has no op": "Erfinv Ndtri Lgamma Digamma Igamma Bessel Zeta Polygamma Betainc",
    "the shape of its result depends on data": "Where Unique DynamicPartition NonMaxSuppression CombinedNonMaxSuppression ListDiff",
    "strings and tables are not tensors of numbers": "String AsString LookupTable HashTable Decode Sentencepiece StaticRegex Regex",
    "ragged and sparse tensors are not supported": "Ragged Sparse",
    "a fused cell of TensorFlow 1: use keras.layers.LSTM or GRU": "CudnnRNN BlockLSTM LSTMBlock GRUBlock",
    "its boxes are known at run time only": "CropAndResize",
    "positions within a pool are not supported": "MaxPoolWithArgmax",
    "counting is not supported": "Bincount RaggedBincount SparseBincount Histogram",
    "quantised numbers are not supported": "Quantize Dequantize FakeQuant",
    "comes from jax2tf: export the JAX function instead": "Xla",
    "runs Python": "PyFunc EagerPyFunc",
}
"""Why operators have no lowering: reason -> how their names begin."""


def build_graph(
    concrete: Any,
    outputs: Sequence[tuple[str, Any]],
    input_shapes: Mapping[str, Sequence[int]],
    *,
    name: str,
    producer: Mapping[str, Any],
    symbolic: bool = False,
    walked: list[tuple[Any, Mapping[str, Value | None]]] | None = None,
) -> Graph:
    """Returns the graph of a concrete function.

    Args:
        concrete: the concrete function, its arguments tensors only.
        outputs: (interface name, symbolic tensor) of each output.
        input_shapes: interface names of the arguments and their shapes, which the graph is specialised to.
        name: name of the graph.
        producer: its ``producer`` entry.
        symbolic: True if graphs for other shapes will be laid over this one: what depends on them is computed by nodes.
        walked: a list to add (FuncGraph, tensor name -> value) of every graph to, in the order in which they are walked.

    Raises:
        UnsupportedOperatorsError: operators without a lowering, all of them at once.
    """
    builder = GraphBuilder(name, producer=producer)
    walker = Walker(builder, _Shared.of(concrete.graph.variables, symbolic, [] if walked is None else walked))
    captured = {inner.name: outer for outer, inner in concrete.graph.captures}
    arguments = [tensor for tensor in concrete.graph.inputs if tensor.name not in captured]
    bound: dict[str, Value | None] = {inner: walker.captured(inner, outer) for inner, outer in captured.items()}
    try:
        for tensor, (input_name, shape) in zip(arguments, input_shapes.items(), strict=True):
            bound[tensor.name] = builder.input(input_name, dtype_of(tensor.dtype.as_numpy_dtype), shape)
    except RefusalError as refusal:
        raise ExportError.of(f"input '{input_name}'", str(refusal)) from None
    values = walker.walk(concrete.graph, bound, [tensor for _, tensor in outputs], prefix="", xla=False)
    if walker.unsupported:
        raise UnsupportedOperatorsError(walker.unsupported)
    for (output_name, _), value in zip(outputs, values, strict=True):
        builder.output(output_name, walker.operand(value))
    return _without_dead_nodes(builder.build())


def _without_dead_nodes(graph: Graph) -> Graph:
    """Returns the graph without what no output needs: nodes of which only the shape was asked for, which is known now."""
    read, live = {output.value for output in graph.outputs}, []
    for node in reversed(graph.nodes):
        if any(value.name in read for value in node.outputs):
            live.append(node)
            read |= {name for name in node.inputs if name is not None}
    return replace(graph, nodes=tuple(live[::-1]), constants=tuple(constant for constant in graph.constants if constant.name in read))


@dataclass(frozen=True)
class _Shared:
    """What the walkers of a graph and of its functions have in common.

    Attributes:
        tf: the module.
        variables: id of a variable's handle -> (variable, its name).
        keys: the names in the weights file.
        source_lines: finds the lines of operations.
        unsupported: what was refused so far.
        walked: the graphs that were walked, with the values of their tensors.
    """

    tf: Any
    variables: Mapping[int, tuple[Any, str]]
    keys: Keys
    source_lines: _SourceLines
    unsupported: list[Unsupported]
    walked: list[tuple[Any, Mapping[str, Value | None]]]

    @classmethod
    def of(cls, variables: Sequence[Any], symbolic: bool, walked: list[tuple[Any, Mapping[str, Value | None]]]) -> _Shared:
        tf, names = load_tensorflow(), Names()
        named = {id(variable.handle): (variable, names.take(variable.name.partition(":")[0])) for variable in variables}
        return cls(tf, named, Keys([name for _, name in named.values()], symbolic), _SourceLines(tf), [], walked)


class Walker:
    """Lowers the operations of a graph and of the functions that it calls. A value is None where its operation was refused."""

    def __init__(self, builder: BodyBuilder, shared: _Shared) -> None:
        self.tf = shared.tf
        self._builder = builder
        self._shared = shared
        self._constants = Constants(builder, shared.keys)
        self.unsupported = shared.unsupported

    def function(self, name: str) -> tuple[FunctionBuilder, Walker]:
        """Returns the builder of a function of the graph, and a walker that adds to it."""
        builder = self._builder.function(name)
        return builder, Walker(builder, self._shared)

    def scratch(self, name: str) -> tuple[GraphBuilder, Walker]:
        """Returns the builder of a graph of its own, and a walker that adds to it: to see what would become of some operations."""
        builder = GraphBuilder(name)
        return builder, Walker(builder, replace(self._shared, unsupported=[], walked=[]))

    def captured(self, name: str, outer: Any) -> Value:
        """Returns the value of a captured tensor: a variable, or an eager tensor that the function closes over. Neither is copied."""
        if outer.dtype != self.tf.resource:
            return Known(array_of(outer), name.partition(":")[0])
        variable, key = self._shared.variables.get(id(outer), (None, ""))
        return Variable(None if variable is None else Known(array_of(variable.read_value()), key, key))

    def operand(self, value: Value | None) -> str:
        """Returns the name in the graph of a tensor that was not refused."""
        if not isinstance(value, str | Known):
            raise RefusalError("its result is not a tensor")
        return self._constants.name(value) if isinstance(value, Known) else value

    def context(self, op: Any, name: str, xla: bool) -> Context:
        """Returns what lowers an operation to nodes of this body."""
        return Context(self._builder, self._constants, op, name, self._shared.source_lines.of(op), xla)

    def walk(self, graph: Any, bound: dict[str, Value | None], outputs: Sequence[Any], prefix: str, xla: bool) -> list[Value | None]:
        """Lowers what ``outputs`` need and returns their values.

        Args:
            graph: a FuncGraph.
            bound: values of its inputs, by tensor name, and of other tensors that are known beforehand; those of all tensors are added.
            outputs: symbolic tensors of the graph.
            prefix: what to put before the names of its operations.
            xla: True if XLA compiles the function.
        """
        self._shared.walked.append((graph, bound))
        patterns: dict[str, Pattern | None] = {}
        needed: set[str] = set()
        pending = list(outputs)
        while pending:
            tensor = pending.pop()
            op = tensor.op
            if tensor.name not in bound and op.name not in needed:
                needed.add(op.name)
                patterns[op.name] = pattern = find_pattern(op)
                pending += list(pattern.operands.values() if pattern else op.inputs)
        for op in graph.get_operations():
            if op.type.startswith("Assign") and op.type.endswith("VariableOp"):
                self._refuse(op, prefix, _reason(op.type))
            elif op.name in needed and op.type != "Placeholder":
                pattern = patterns[op.name]
                operands = [bound.get(tensor.name) for tensor in (pattern.operands.values() if pattern else op.inputs)]
                for tensor, value in zip(op.outputs, self._lower(op, operands, pattern, prefix, xla), strict=True):
                    bound[tensor.name] = value
        return [bound.get(tensor.name) for tensor in outputs]

    def _lower(self, op: Any, operands: list[Value | None], pattern: Pattern | None, prefix: str, xla: bool) -> Sequence[Value | None]:
        refused: list[Value | None] = [None] * len(op.outputs)
        lowering: Callable[..., Any] | None = pattern.lower if pattern else control.LOWERINGS.get(op.type) or TABLE.get(op.type)
        try:
            if op.type in CALLS:
                return self.inline(op, op.get_attr("f"), operands, prefix, xla)
            if op.type == "Const":
                return [Known(self.tf.make_ndarray(op.get_attr("value")), prefix + op.name)]
            if op.type == "ReadVariableOp":
                return [_read(operands[0])]
            if pattern is None and (folded := self._fold(op, operands, lowering, prefix, xla)) is not None:
                return folded
            if lowering is None:
                raise RefusalError(_reason(op.type))
            if None in operands:
                return refused
            context = self.context(op, prefix + op.name, xla)
            if op.type in control.LOWERINGS:
                return list(lowering(self, context, operands, prefix))
            if pattern is not None:
                return [lowering(context, **dict(zip(pattern.operands, operands, strict=True)), **pattern.attrs)]
            result = lowering(context, *operands)
            return [result] if isinstance(result, str | Known | Variable | TensorList) else list(result)
        except RefusalError as refusal:
            self._refuse(op, prefix, str(refusal))
        except TypeInferenceError as error:
            self._refuse(op, prefix, str(error))
        return refused

    def inline(self, op: Any, function: Any, operands: Sequence[Value | None], prefix: str, xla: bool) -> list[Value | None]:
        """Lowers the body of a library function in the place of its call."""
        graph = body_of(op, function)
        bound = {tensor.name: value for tensor, value in zip(graph.inputs, operands, strict=True)}
        default_name = op.type in op.name.rpartition("/")[2]
        inner = prefix + (op.name.rpartition("/")[0] if default_name else op.name)
        compiled = "_XlaMustCompile" in op.node_def.attr and op.get_attr("_XlaMustCompile")
        return self.walk(graph, bound, graph.outputs, f"{inner}/" if inner and not inner.endswith("/") else inner, xla or compiled)

    def _fold(
        self, op: Any, operands: list[Value | None], lowering: Callable[..., Any] | None, prefix: str, xla: bool
    ) -> list[Known] | None:
        """Returns the results of an operation on constants, computed by TensorFlow itself; None where it stays an operation of the graph.

        A result that is larger than its operands (an expanded scalar) stays one if it is not small, so that weight files do not swell. What
        varies with the sizes of a symbolic graph is computed all the same, so that shapes and masks are known, and lowered where it is read.
        """
        known = [value for value in operands if isinstance(value, Known)]
        if not op.outputs or len(known) != len(operands) or op.op_def.is_stateful or op.type.startswith(_NO_FOLD):
            return None
        if TABLE.get(op.type) in (shapes.lower_identity, shapes.lower_reshape):
            return None  # they keep the name of the variable
        try:
            results = [array_of(tensor) for tensor in evaluate(self.tf, op, [value.array for value in known])]
            for array in results:
                dtype_of(array.dtype)
        except (
            self.tf.errors.OpError,
            AttributeError,
            TypeError,
            ValueError,
            RefusalError,
        ):  # such as an operator without a Python function
            return None
        if any(value.varies for value in known):
            return [self._varying(op, index, array, known, lowering, prefix + op.name, xla) for index, array in enumerate(results)]
        room = max(_FOLD_ELEMENTS, sum(value.array.size for value in known))
        if lowering is not None and op.type != "Range" and sum(array.size for array in results) > room:
            return None
        return [Known(array, prefix + op.name) for array in results]

    def _varying(
        self,
        op: Any,
        output: int,
        array: np.ndarray,
        operands: Sequence[Known],
        lowering: Callable[..., Any] | None,
        name: str,
        xla: bool,
    ) -> Known:
        """Returns a result of an operation on what varies with sizes; it does not where TensorFlow itself knows it for all sizes."""
        tensor = op.outputs[output]
        if self.tf.get_static_value(tensor) is not None:
            return Known(array, name)
        if op.type in _SIZES and array.dtype.kind == "i" and tensor.shape.is_fully_defined():
            read = operands[: _SIZES[op.type]]
            if all(isinstance(value.recipe, Sizes) or (not value.varies and (value.array >= 0).all()) for value in read):
                return Known(array, name, varies=True, recipe=Sizes(array, name))
        if lowering is None:
            return Known(array, name, varies=True)

        def recipe(builder: BodyBuilder, constants: Constants) -> str:
            context = Context(builder, constants, op, name, self._shared.source_lines.of(op), xla)
            result = lowering(context, *operands)
            return context.operand(result if isinstance(result, str | Known) else result[output])

        return Known(array, name, varies=True, recipe=recipe)

    def _refuse(self, op: Any, prefix: str, reason: str) -> None:
        self.unsupported.append(Unsupported(op.type, prefix + op.name, self._shared.source_lines.of(op), reason))


def _reason(operator: str) -> str:
    """Returns why an operator has no lowering, empty if there just is none yet."""
    return next((reason for reason, begins in _REASONS.items() if operator.startswith(tuple(begins.split()))), "")


def _read(variable: Value | None) -> Known:
    if not isinstance(variable, Variable) or variable.known is None:
        raise RefusalError("the variable cannot be found")
    return variable.known


class _SourceLines:
    """Finds the line of the user's code, or else of the Keras layer, that made an operation."""

    def __init__(self, tf: Any) -> None:
        self._own = os.path.dirname(__file__)
        self._tensorflow = os.path.dirname(tf.__file__)
        keras = sys.modules.get("keras")
        self._keras = os.path.dirname(keras.__file__ or "") if keras is not None else None

    def of(self, op: Any) -> str:
        """Returns ``file.py:line``, empty if it is not known."""
        layer = ""
        for frame in reversed(list(op.traceback or ())):
            if frame.filename.startswith(self._own):
                break
            if self._keras and frame.filename.startswith(self._keras):
                if not layer and os.path.join("src", "layers", "") in frame.filename and os.path.basename(frame.filename) != "layer.py":
                    layer = f"{os.path.basename(frame.filename)}:{frame.lineno}"
            elif not frame.filename.startswith((self._tensorflow, "<")) and "__autograph_generated_file" not in frame.filename:
                return f"{os.path.basename(frame.filename)}:{frame.lineno}"
        return layer
