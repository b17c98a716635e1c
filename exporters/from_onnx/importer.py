"""Walks an ONNX graph and builds the rml-graph: known values computed, functions inlined, all that is refused listed at once."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from exporters import __version__
from exporters.errors import ExportError, Unsupported, UnsupportedOperatorsError
from exporters.from_onnx.context import ONNX, Body, Context, Known, RefusedError, Store
from exporters.from_onnx.formulas import simplified
from exporters.from_onnx.lifetimes import Made, annotated
from exporters.from_onnx.reading import MOST_NODES, Model, NotATensorError, dense_of, domain_of, dtype_of, free_names
from rml_exec.errors import KernelError, TypeInferenceError
from rml_exec.ir.builder import INLINE_ELEMENTS, BodyBuilder
from rml_exec.ir.graph import Function, Graph, Node
from rml_exec.ir.names import Names
from rml_exec.loading import GraphBuilder
from rml_exec.ops import get_op

__all__ = ["Imported", "Walker", "build_graph", "graph_inputs"]

_TABLES = (
    "elementwise",
    "control",
    "shapes",
    "indexing",
    "reductions",
    "linear",
    "signal",
    "vision",
    "neural",
    "recurrent",
    "attention",
    "quantised",
    "contrib",
)
"""The modules that fill the table of lowerings."""

for _table in _TABLES:
    if importlib.util.find_spec(f"exporters.from_onnx.{_table}"):
        importlib.import_module(f"exporters.from_onnx.{_table}")

FULL_OPSET = 7
"""Operator sets from here on are supported as a whole; of older ones the operators that did not change until then."""

_OLD_FORMS = {"Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "PRelu", "Pow", "Sub", "Xor"}
_OLD_FORMS |= {"AveragePool", "BatchNormalization", "Dropout", "GRU", "Gemm", "LSTM", "RNN"}
"""Operators whose form of the operator set before that is supported too."""

_REASONS = {
    "random numbers: is the model in training mode?": "Random Multinomial Bernoulli",
    "sequences are not tensors": "Sequence SplitToSequence ConcatFromSequence",
    "optional values are not tensors": "Optional",
    "strings are not tensors of numbers": "String Regex TfIdf LabelEncoder ImageDecoder",
    "training is not supported": "Gradient Adam Adagrad Momentum",
}
"""Why operators have no lowering: reason -> how their names begin."""


@dataclass(slots=True)
class _Shared:
    """What the walks over a model's graphs and functions have in common.

    Attributes:
        model: the model.
        store: the known arrays.
        functions: the model's own functions, by (domain, name, overload).
        unsupported: what was refused so far.
        nodes: number of nodes lowered so far.
    """

    model: Model
    store: Store
    functions: Mapping[tuple[str, str, str], onnx.FunctionProto]
    unsupported: list[Unsupported] = field(default_factory=list)
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class Imported:
    """A static graph, and what was known when it was built.

    Attributes:
        graph: the graph.
        store: the known arrays.
        names: ONNX name -> name in the graph, of the values and constants that are in it.
    """

    graph: Graph
    store: Store
    names: Mapping[str, str]


class Walker:
    """Lowers the nodes of one body: the graph, or a function of it.

    Attributes:
        body: what is being built.
        shared: what all walks of the import share.
        prefix: put before the names of nodes, inside a function that is inlined.
        made: the nodes that were lowered, and what each became.
    """

    def __init__(self, body: Body, shared: _Shared, opsets: Mapping[str, int], prefix: str = "") -> None:
        self.body = body
        self.shared = shared
        self.prefix = prefix
        self.made: list[Made] = []
        self._opsets = opsets

    def inside(self, builder: BodyBuilder, prefix: str | None = None) -> Walker:
        """Returns a walker for a subgraph that becomes a function being built, or another ``prefix`` within this body."""
        body = self.body if builder is self.body.builder else Body(builder, self.shared.store)
        return Walker(body, self.shared, self._opsets, self.prefix if prefix is None else prefix)

    def subgraph(self, graph: onnx.GraphProto, values: dict[str, str | None]) -> list[str | None]:
        """Lowers a subgraph and returns the values of its outputs; ``values`` are those of its inputs and of the names around it."""
        wanted = [output.name for output in graph.output]
        self.walk(graph.node, values, wanted, graph)
        return [_defined(values, name, "the graph's outputs") for name in wanted]

    def walk(
        self,
        nodes: Sequence[onnx.NodeProto],
        values: dict[str, str | None],
        wanted: Iterable[str],
        graph: onnx.GraphProto | None = None,
    ) -> None:
        """Lowers the nodes that ``wanted`` names need, and adds the values of their outputs to ``values``.

        ``graph`` is the graph that the nodes are in, for its initializers.
        """
        needed, kept = set(wanted), []
        for node in reversed(nodes):
            if not needed.isdisjoint(node.output):
                kept.append(node)
                needed.update(free_names(node))
        if graph is not None:
            self._add_initializers(graph, values, needed)
        for node in reversed(kept):
            results = self._lower(node, values)
            values.update((name, result) for name, result in zip(node.output, results, strict=False) if name)
            values.update((name, None) for name in node.output[len(results) :] if name)

    def _add_initializers(self, graph: onnx.GraphProto, values: dict[str, str | None], needed: set[str]) -> None:
        model, top = self.shared.model, graph is self.shared.model.proto.graph
        for tensor in (*graph.initializer, *(sparse.values for sparse in graph.sparse_initializer)):
            if tensor.name not in needed or (top and tensor.name in values):
                continue
            if not top or tensor.name not in model.weights:
                try:
                    sparse = next((sparse for sparse in graph.sparse_initializer if sparse.values.name == tensor.name), None)
                    array = model.array(tensor) if sparse is None else dense_of(model, sparse)
                except NotATensorError as error:
                    self.shared.unsupported.append(Unsupported("initializer", tensor.name, "", str(error)))
                    values[tensor.name] = None
                    continue
                if top:
                    model.weights[tensor.name] = array
            array = model.weights[tensor.name] if top else array
            values[tensor.name] = self.shared.store.add(Known(array, tensor.name, tensor.name))

    def _lower(self, node: onnx.NodeProto, values: Mapping[str, str | None]) -> Sequence[str | None]:
        refused: list[str | None] = [None] * len(node.output)
        self.shared.nodes += 1
        if self.shared.nodes > MOST_NODES:
            raise ExportError.of(
                self.shared.model.where, f"must have at most {MOST_NODES:,} nodes, functions inlined and loops written out"
            )
        if None in [_defined(values, name, f"{_name(node)} '{node.name}'") for name in free_names(node)]:
            if (reason := self._unknown(node)) is not None:
                self._refuse(node, reason)
            return refused
        first = self.body.builder.node_count
        try:
            results = self._results(node, values)
        except (RefusedError, NotATensorError, TypeInferenceError, KernelError) as error:
            self._refuse(node, f"the model is malformed: {error}" if self._is_malformed(node, values) else str(error))
            return refused
        except MemoryError:
            self._refuse(node, "its result must fit into memory")
            return refused
        except (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            types = [str(self.body.type(value)) for name in node.input if name and (value := values[name]) is not None]
            self._refuse(node, f"{_malformed(node, error)}; its inputs are {', '.join(types) or 'none'}")
            return refused
        self.made.append(Made(node, first, self.body.builder.node_count))
        return results

    def _results(self, node: onnx.NodeProto, values: Mapping[str, str | None]) -> Sequence[str | None]:
        domain = domain_of(node.domain)
        function = self.shared.functions.get((domain, node.op_type, node.overload))
        opset = self._opsets.get(domain)
        lowering = ONNX.get(_name(node))
        if opset is None and function is None:
            raise RefusedError(f"the model imports no operator set of domain '{domain or 'ai.onnx'}'")
        inputs = [values[name] if name else None for name in node.input]
        context = Context(self, node, opset or 1, inputs, _source(node), values)
        if function is not None:
            return self._inline(context, function)
        if not domain and opset is not None and opset < FULL_OPSET:
            _check_old(node, opset)
        result = lowering(context, node) if lowering is not None else self._expand(context)
        return [result] if isinstance(result, str) else list(result)

    def _refuse(self, node: onnx.NodeProto, reason: str) -> None:
        name = self.prefix + (node.name or next(filter(None, node.output), node.op_type))
        self.shared.unsupported.append(Unsupported(_name(node), name, _source(node).get("where", ""), reason))

    def _unknown(self, node: onnx.NodeProto) -> str | None:
        """Returns why an operator that nothing here defines has no lowering, None for one that has or may have."""
        domain = domain_of(node.domain)
        if ONNX.get(_name(node)) is not None or (domain, node.op_type, node.overload) in self.shared.functions:
            return None
        if (opset := self._opsets.get(domain)) is None:
            return f"the model imports no operator set of domain '{domain or 'ai.onnx'}'"
        reason = next((reason for reason, begins in _REASONS.items() if node.op_type.startswith(tuple(begins.split()))), "")
        try:
            schema = onnx.defs.get_schema(node.op_type, opset, domain)
        except onnx.defs.SchemaError:
            contrib = domain.startswith("com.microsoft")
            return reason or ("contrib operator without a lowering" if contrib else f"onnx {onnx.__version__} knows no such operator")
        return reason if reason or not (schema.has_function or schema.has_context_dependent_function) else None

    def _is_malformed(self, node: onnx.NodeProto, values: Mapping[str, str | None]) -> bool:
        """True if ONNX's own rules for the operator do not allow what a lowering refused."""
        if self._unknown(node) is not None:
            return False
        opset, given = self._opsets.get(domain_of(node.domain)), [(name, value) for name in node.input if name and (value := values[name])]
        types, data = {}, {}
        try:
            for name, value in given:
                type_, known = self.body.type(value), self.shared.store.known.get(value)
                element = onnx.helper.np_dtype_to_tensor_dtype(type_.dtype.numpy)
                types[name] = onnx.helper.make_tensor_type_proto(element, type_.shape)
                if known is not None and known.array.size <= INLINE_ELEMENTS:
                    data[name] = onnx.numpy_helper.from_array(known.array, name)
            schema = onnx.defs.get_schema(node.op_type, opset or 1, domain_of(node.domain))
            opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in self._opsets.items()]
            onnx.shape_inference.infer_node_outputs(schema, node, types, data, opset_imports=opsets)
        except (onnx.shape_inference.InferenceError, onnx.checker.ValidationError):
            return True
        except (onnx.defs.SchemaError, RuntimeError, TypeError, ValueError, KeyError, UnicodeDecodeError):
            pass  # it says nothing about this operator
        return False

    def _expand(self, context: Context) -> Sequence[str | None]:
        """Returns the results of a node by the function body that the operator's schema gives it."""
        node = context.node
        if (reason := self._unknown(node)) is not None:
            raise RefusedError(reason)
        schema = onnx.defs.get_schema(node.op_type, context.opset, domain_of(node.domain))
        function = onnx.FunctionProto()
        if schema.has_function:
            version = _latest(schema.function_opset_versions, context.opset)
            function.ParseFromString(schema.get_function_with_opset_version(version))
        else:
            version = _latest(schema.context_dependent_function_opset_versions, context.opset)
            types = [_type_proto(context, value) for value in context.inputs]
            body = schema.get_context_dependent_function_with_opset_version(version, node.SerializeToString(), types)
            function.ParseFromString(body)
        for name, attribute in schema.attributes.items():
            if name in function.attribute and attribute.default_value.name:
                function.attribute_proto.append(attribute.default_value)
        return self._inline(context, function)

    def _inline(self, context: Context, function: onnx.FunctionProto) -> Sequence[str | None]:
        """Returns the results of a function's body on the node's inputs."""
        node = context.node
        attributes = {attribute.name: attribute for attribute in (*function.attribute_proto, *node.attribute)}
        given = [*context.inputs, *[None] * (len(function.input) - len(context.inputs))]
        values: dict[str, str | None] = {name: value for name, value in zip(function.input, given, strict=True) if value is not None}
        absent = {name for name in function.input if name not in values}
        opsets = {**self._opsets, **{domain_of(opset.domain): opset.version for opset in function.opset_import}}
        inner = Walker(self.body, self.shared, opsets, f"{context.name}/")
        inner.walk([_bound(part, attributes, absent) for part in function.node], values, function.output)
        return [values.get(name) for name in function.output]


def _check_old(node: onnx.NodeProto, opset: int) -> None:
    """Refuses the old form of an operator that no lowering knows."""
    try:
        old, new = (onnx.defs.get_schema(node.op_type, version, "").since_version for version in (opset, FULL_OPSET))
    except onnx.defs.SchemaError:
        raise RefusedError(f"onnx {onnx.__version__} knows no such operator of operator set {opset}") from None
    if old != new and (opset < FULL_OPSET - 1 or node.op_type not in _OLD_FORMS):
        raise RefusedError(f"its form of operator set {opset} is not supported: onnx.version_converter.convert_version makes a newer one")
    if node.op_type in ("BatchNormalization", "Dropout") and not any(a.name == "is_test" and a.i for a in node.attribute):
        raise RefusedError("the model is in training mode")


def _latest(versions: Sequence[int], opset: int) -> int:
    return max((version for version in versions if version <= opset), default=min(versions))


def _defined(values: Mapping[str, str | None], name: str, where: str) -> str | None:
    if name not in values:
        raise ExportError.of(where, f"reads '{name}', which is no input, no initializer, and what no node gives")
    return values[name]


def _malformed(node: onnx.NodeProto, error: Exception) -> str:
    """Returns what is wrong with a node that a lowering stumbled over."""
    try:
        onnx.checker.check_node(node)
    except onnx.checker.ValidationError as found:
        return "it is malformed: " + " ".join(str(found).split("==>")[0].split()).rstrip(".")
    except (RuntimeError, UnicodeDecodeError):
        pass
    return f"its operands or attributes do not fit: {type(error).__name__}: {error}"


def _type_proto(context: Context, value: str | None) -> bytes:
    if value is None:
        return b""
    type_ = context.type(value)
    element_type = onnx.helper.np_dtype_to_tensor_dtype(type_.dtype.numpy)
    return onnx.helper.make_tensor_type_proto(element_type, type_.shape).SerializeToString()


def _bound(node: onnx.NodeProto, attributes: Mapping[str, onnx.AttributeProto], absent: set[str]) -> onnx.NodeProto:
    """Returns a function's node with the attributes of the call in it, and without operands that the call leaves out."""
    bound = onnx.NodeProto()
    bound.CopyFrom(node)
    del bound.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name and attribute.ref_attr_name not in attributes:
            continue
        copy = bound.attribute.add()
        copy.CopyFrom(attributes[attribute.ref_attr_name] if attribute.ref_attr_name else attribute)
        copy.name = attribute.name
        for graph in ([copy.g] if copy.HasField("g") else []) + list(copy.graphs):
            inner = [_bound(part, attributes, absent) for part in graph.node]
            del graph.node[:]
            graph.node.extend(inner)
    inputs = ["" if name in absent else name for name in bound.input]
    del bound.input[:]
    bound.input.extend(inputs)
    return bound


def _name(node: onnx.NodeProto) -> str:
    domain = domain_of(node.domain)
    return f"{domain}.{node.op_type}" if domain else node.op_type


def _source(node: onnx.NodeProto) -> dict[str, str]:
    """Returns the origin of a node's results: the operator and, where the model's exporter noted it, the user's innermost line."""
    traces = [entry.value for entry in node.metadata_props if entry.key.endswith("stack_trace")]
    frames = re.findall(r'File "(.+?)", line (\d+)', traces[0]) if traces else []
    own = [frame for frame in frames if "site-packages" not in frame[0]] or frames
    source = {"op": _name(node)}
    return {**source, "where": f"{os.path.basename(own[-1][0])}:{own[-1][1]}"} if own else source


def graph_inputs(model: Model) -> list[onnx.ValueInfoProto]:
    """Returns the inputs that must be given: old files list initializers among them."""
    constants = {tensor.name for tensor in model.proto.graph.initializer}
    constants.update(sparse.values.name for sparse in model.proto.graph.sparse_initializer)
    return [value for value in model.proto.graph.input if value.name not in constants]


def build_graph(
    model: Model, *, name: str, known: Mapping[str, np.ndarray], shapes: Mapping[str, Sequence[int]], varying: frozenset[str] = frozenset()
) -> Imported:
    """Returns the static graph of a model.

    Args:
        model: the model.
        name: name of the graph.
        known: inputs and initializers that are to be constants of these elements, by name.
        shapes: shapes of all other inputs.
        varying: known values that depend on symbolic dims, by the names that an import at other sizes gave them: they are computed by nodes.

    Raises:
        UnsupportedOperatorsError: operators without a lowering, or used in a way that cannot be imported: all of them at once.
        ExportError: a model that cannot be imported for another reason.
    """
    proto = model.proto
    options = {"producer": f"{proto.producer_name} {proto.producer_version}".strip(), "ir_version": proto.ir_version}
    producer = {"framework": "onnx", "framework_version": onnx.__version__, "exporter_version": __version__, "options": options}
    builder = GraphBuilder(name, producer=producer, metadata={entry.key: entry.value for entry in proto.metadata_props})
    shared = _Shared(model, Store(varying), {(domain_of(f.domain), f.name, f.overload): f for f in proto.functions})
    opsets = {domain_of(opset.domain): opset.version for opset in proto.opset_import}
    walker = Walker(Body(builder, shared.store), shared, opsets)
    values: dict[str, str | None] = {key: shared.store.add(Known(np.asarray(array), key)) for key, array in known.items()}
    problems = []
    try:
        for value in graph_inputs(model):
            if value.name not in known:
                kind = value.type.WhichOneof("value") or "unknown"
                try:
                    if kind != "tensor_type":
                        raise NotATensorError(f"type {kind.removesuffix('_type').replace('_', ' ')} is not supported")
                    values[value.name] = builder.input(value.name, dtype_of(value.type.tensor_type.elem_type), shapes[value.name])
                except NotATensorError as error:
                    problems.append(f"input '{value.name}': {error}")
        if problems:
            raise ExportError.of(model.where, "must take tensors of numbers", "; ".join(problems))
        results = walker.subgraph(proto.graph, values)
    except RecursionError:
        raise ExportError.of(model.where, "must not be nested so deeply") from None
    except UnicodeDecodeError as error:
        raise ExportError.of(model.where, "must hold names in UTF-8", str(error)) from None
    if shared.unsupported:
        raise UnsupportedOperatorsError(shared.unsupported)
    names = Names()
    for output, result in zip(proto.graph.output, results, strict=True):
        assert result is not None
        builder.output(names.take(output.name), walker.body.operand(result))
    graph = builder.build()
    placed = {key: walker.body.placed(value) for key, value in values.items() if value is not None}
    present = {key: value for key, value in placed.items() if value is not None}
    graph = annotated(replace(graph, functions=_called(graph)), proto.graph, walker.made, present)
    if not any(key.startswith("rml.") for node in graph.nodes for key in node.metadata):  # annotations are of the nodes as they are
        graph = simplified(graph)
    return Imported(graph, shared.store, present)


def _called(graph: Graph) -> dict[str, Function]:
    """Returns the functions that a graph calls; attempts to lower a loop may have left others."""
    found: dict[str, Function] = {}
    pending: list[Node] = list(graph.nodes)
    while pending:
        node = pending.pop()
        for name in get_op(node.op).calls(node.attrs):
            if name not in found:
                found[name] = graph.functions[name]
                pending += found[name].nodes
    return {name: function for name, function in graph.functions.items() if name in found}
