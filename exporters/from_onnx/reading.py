"""Reads a model file that nobody vouches for: protobuf, external data inside the model's folder, tensors as arrays, names that are read."""

from __future__ import annotations

import heapq
import math
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper

from exporters.errors import ExportError
from rml_exec.types import DType

__all__ = [
    "MOST_NODES",
    "Model",
    "NotATensorError",
    "Source",
    "all_nodes",
    "dense_of",
    "domain_of",
    "dtype_of",
    "free_names",
    "names_read",
    "read_model",
]

_OLDEST_OPSET = 1
_OLDEST_IR = 3

MOST_NODES = 1_000_000
"""A model that has more nodes when its functions are inlined and its loops written out is not imported."""

_DTYPES = {
    getattr(onnx.TensorProto, name): dtype
    for name, dtype in {
        "FLOAT": DType.F32,
        "DOUBLE": DType.F64,
        "FLOAT16": DType.F16,
        "INT8": DType.I8,
        "INT16": DType.I16,
        "INT32": DType.I32,
        "INT64": DType.I64,
        "UINT8": DType.U8,
        "UINT16": DType.U16,
        "UINT32": DType.U32,
        "UINT64": DType.U64,
        "BOOL": DType.BOOL,
    }.items()
}

Source: TypeAlias = str | os.PathLike[str] | bytes | onnx.ModelProto
"""A model: the path of its file, the content of the file, or the message itself."""


_Key: TypeAlias = tuple[str, str, str]
"""Domain, name and overload of a function."""

_LISTED = 8
"""Most nodes that an error names."""


class NotATensorError(Exception):
    """Says why something is not a tensor that the graph could hold."""


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """A model that was read.

    Attributes:
        proto: the message; its external data are not in it.
        where: what to call it in errors: its path, or "model".
        folder: the folder that its external data lie in, None where there is none.
        weights: name -> elements of the initializers of its graph that were read; imports of the model at several sizes share them.
    """

    proto: onnx.ModelProto
    where: str
    folder: Path | None = None
    weights: dict[str, np.ndarray] = field(default_factory=dict)

    def array(self, tensor: onnx.TensorProto) -> np.ndarray:
        """Returns a tensor's elements; those of external data are mapped, not read.

        Raises:
            NotATensorError: an element type that the graph has not, or data that are not as many as its shape says.
            ExportError: external data that are missing, or lie outside the model's folder.
        """
        dtype, shape = dtype_of(tensor.data_type), tuple(tensor.dims)
        size = math.prod(shape)
        if min(shape, default=0) < 0:
            raise NotATensorError(f"tensor '{tensor.name}' has the shape {list(shape)}")
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            return self._external(tensor, dtype, shape)
        if tensor.HasField("raw_data") and len(tensor.raw_data) != size * dtype.itemsize:
            raise NotATensorError(f"tensor '{tensor.name}' of {size} elements has {len(tensor.raw_data)} bytes of data")
        try:
            return np.asarray(numpy_helper.to_array(tensor)).reshape(shape)
        except (TypeError, ValueError, OverflowError):
            raise NotATensorError(f"tensor '{tensor.name}' has no data, or not as many as its shape {list(shape)} says") from None

    def external_files(self) -> list[str]:
        """Returns the locations of external data in the model's graph and its subgraphs, relative to its folder."""
        tensors = list(self.proto.graph.initializer)
        for node in all_nodes(self.proto.graph.node):
            for attribute in node.attribute:
                tensors += [attribute.t, *attribute.tensors, *attribute.g.initializer]
        locations = [entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"]
        for location in dict.fromkeys(locations):
            self._external_path(f"{self.where}: external data", location)
        return list(dict.fromkeys(locations))

    def _external(self, tensor: onnx.TensorProto, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        where = f"{self.where}: external data of tensor '{tensor.name}'"
        path = self._external_path(where, entries.get("location", ""))
        nbytes = math.prod(shape) * dtype.itemsize
        try:
            offset, length = int(entries.get("offset", 0)), int(entries.get("length", nbytes))
            found = os.stat(path)
        except ValueError:
            raise ExportError.of(where, "offset and length must be whole numbers", str(entries)) from None
        except OSError as error:
            raise ExportError.of(where, "must be readable", f"{path}: {error.strerror}") from None
        if not stat.S_ISREG(found.st_mode):
            raise ExportError.of(where, "must be an ordinary file", path)
        if length != nbytes or offset < 0 or offset + nbytes > found.st_size:
            got = f"{length} bytes from {offset} on of a file of {found.st_size}"
            raise ExportError.of(where, f"must be {nbytes} bytes within the file", got)
        if not nbytes:
            return np.zeros(shape, dtype.numpy)
        try:
            return np.memmap(path, dtype.numpy, "r", offset, shape)
        except OSError as error:
            raise ExportError.of(where, "must be readable", f"{path}: {error.strerror}") from None

    def _external_path(self, where: str, location: str) -> str:
        """Returns the path of external data. A model must not read what its sender could not: it reaches no file outside its own folder."""
        if self.folder is None:
            raise ExportError.of(where, "cannot be found: the model was not read from a file", hint="give the path of the model")
        parts = re.split(r"[/\\]", location)
        if not location or "\0" in location or os.path.isabs(location) or ".." in parts or ":" in parts[0]:
            raise ExportError.of(where, "must be a file in the model's folder", repr(location))
        folder, path = os.path.realpath(self.folder), os.path.realpath(self.folder / location)
        if os.path.commonpath([folder, path]) != folder:
            raise ExportError.of(where, "must be a file in the model's folder, also behind links", repr(location))
        return path


def dtype_of(element_type: int) -> DType:
    """Returns the graph's element type of an ONNX one; raises NotATensorError where there is none."""
    if element_type not in _DTYPES:
        known = element_type in onnx.TensorProto.DataType.values()
        name = onnx.TensorProto.DataType.Name(element_type).lower() if known else f"number {element_type}"
        raise NotATensorError(f"element type {name} is not supported")
    return _DTYPES[element_type]


def dense_of(model: Model, sparse: onnx.SparseTensorProto) -> np.ndarray:
    """Returns a sparse tensor's elements, the others 0; raises NotATensorError for one whose parts do not fit."""
    values, indices = model.array(sparse.values), model.array(sparse.indices)
    array = np.zeros(tuple(sparse.dims), values.dtype)
    try:
        if indices.ndim == 1:
            array.reshape(-1)[indices] = values
        else:
            array[tuple(indices.T)] = values
    except (IndexError, ValueError) as error:
        raise NotATensorError(f"the indices of sparse tensor '{sparse.values.name}' do not fit it: {error}") from None
    return array


def domain_of(domain: str) -> str:
    """Returns a domain's one name: ONNX's own is empty."""
    return "" if domain == "ai.onnx" else domain


def read_model(source: Source | Model) -> Model:
    """Returns a model of which protobuf, versions and functions are in order.

    Raises:
        ExportError: a file that cannot be read or is no ONNX model, or one of an operator set that is too old or too new.
    """
    if isinstance(source, Model):
        return source
    if isinstance(source, onnx.ModelProto):
        model = Model(source, "model")
    elif isinstance(source, bytes | bytearray | memoryview):
        model = Model(_parsed(bytes(source), "model"), "model")
    else:
        path = Path(source)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ExportError.of(str(path), "cannot be read", error.strerror) from None
        model = Model(_parsed(content, str(path)), str(path), path.parent)
    _check(model)
    return _ordered(model)


def _parsed(content: bytes, where: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except (DecodeError, RuntimeError) as error:
        raise ExportError.of(where, "is no ONNX model, or a part of one", " ".join(str(error).split())) from None
    return proto


def _check(model: Model) -> None:
    proto, where = model.proto, model.where
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise ExportError.of(where, "is no ONNX model", "a file without a graph")
    if not _OLDEST_IR <= proto.ir_version <= onnx.IR_VERSION:
        got = f"version {proto.ir_version}, and onnx {onnx.__version__} knows {_OLDEST_IR} to {onnx.IR_VERSION}"
        raise ExportError.of(where, "must have a known version of the file format", got, hint="pip install --upgrade onnx")
    newest = onnx.defs.onnx_opset_version()
    for opset in proto.opset_import:
        if domain_of(opset.domain) == "" and not _OLDEST_OPSET <= opset.version <= newest:
            hint = "pip install --upgrade onnx" if opset.version > newest else "onnx.version_converter.convert_version makes a newer one"
            rule = f"must be of an operator set from {_OLDEST_OPSET} to {newest}, which onnx {onnx.__version__} knows"
            raise ExportError.of(where, rule, opset.version, hint=hint)
    _check_functions(model)


def _check_functions(model: Model) -> None:
    """Raises ExportError where functions of the model call each other in a circle."""
    functions = {(domain_of(f.domain), f.name, f.overload): f for f in model.proto.functions}
    calls = {
        key: [call for node in all_nodes(function.node) if (call := (domain_of(node.domain), node.op_type, node.overload)) in functions]
        for key, function in functions.items()
    }
    done: dict[_Key, None] = {}
    for start in calls:
        path: list[_Key] = []
        pending = [(start, False)]
        while pending:
            key, leaving = pending.pop()
            if leaving:
                path.pop()
                done[key] = None
            elif key in path:
                circle = " calls ".join(name for _, name, _ in [*path[path.index(key) :], key])
                raise ExportError.of(model.where, "its functions must not call themselves", circle)
            elif key not in done:
                path.append(key)
                pending += [(key, True), *((call, False) for call in calls[key])]
    _check_count(model, functions, list(done))


def _check_count(model: Model, functions: Mapping[_Key, onnx.FunctionProto], order: Sequence[_Key]) -> None:
    """Raises ExportError where there are too many nodes once functions are inlined: a few that call each other twice make billions."""
    counts: dict[_Key, int] = {}

    def count(nodes: Iterable[onnx.NodeProto]) -> int:
        return sum(1 + counts.get((domain_of(node.domain), node.op_type, node.overload), 0) for node in all_nodes(nodes))

    for key in order:
        counts[key] = count(functions[key].node)
    if (total := count(model.proto.graph.node)) > MOST_NODES:
        got = f"{total:,}" if total < 10**15 else f"about 10^{int(math.log10(total))}"
        raise ExportError.of(model.where, f"must have at most {MOST_NODES:,} nodes with its functions inlined", got)


def _ordered(model: Model) -> Model:
    """Returns a model whose nodes are in an order in which they can run: its own, where that is one; else the nearest to it.

    Raises:
        ExportError: nodes that wait for each other in a circle, or a name that is given twice.
    """
    bodies = _bodies(model.proto)
    orders = [_order(body, model.where) for body in bodies]
    if all(order == list(range(len(order))) for order in orders):
        return model
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)  # the caller's own stays as it is
    for body, order in zip(_bodies(proto), orders, strict=True):
        nodes = [onnx.NodeProto.FromString(body.node[index].SerializeToString()) for index in order]
        del body.node[:]
        body.node.extend(nodes)
    return replace(model, proto=proto)


def _bodies(proto: onnx.ModelProto) -> list[onnx.GraphProto | onnx.FunctionProto]:
    """Returns the graph, the functions, and their subgraphs; inner ones first, as their places change with the order of outer nodes."""
    found: list[onnx.GraphProto | onnx.FunctionProto] = [proto.graph, *proto.functions]
    for body in found:  # which grows
        found += [graph for node in body.node for attribute in node.attribute for graph in (attribute.g, *attribute.graphs) if graph.node]
    return found[::-1]


def _order(body: onnx.GraphProto | onnx.FunctionProto, where: str) -> list[int]:
    """Returns the places of nodes in an order in which they can run: always the first one that can."""
    makers: dict[str, int] = {}
    given = {tensor.name for tensor in body.initializer} if isinstance(body, onnx.GraphProto) else set()
    given |= {value if isinstance(value, str) else value.name for value in body.input}
    for index, node in enumerate(body.node):
        for name in filter(None, node.output):
            if name in makers or name in given:
                raise ExportError.of(where, f"every value must be given once, but '{name}' is given again by {node.op_type} '{node.name}'")
            makers[name] = index
    waits = [{makers[name] for name in free_names(node) if name in makers} for node in body.node]
    readers: dict[int, list[int]] = {}
    for index, sources in enumerate(waits):
        for source in sources:
            readers.setdefault(source, []).append(index)
    left = [len(sources) for sources in waits]
    ready = [index for index, count in enumerate(left) if not count]
    order = []
    while ready:
        order.append(heapq.heappop(ready))
        for reader in readers.get(order[-1], ()):
            left[reader] -= 1
            if not left[reader]:
                heapq.heappush(ready, reader)
    if len(order) < len(left):
        waiting = [node for index, node in enumerate(body.node) if left[index]]
        got = ", ".join(f"{node.op_type} '{node.name or next(iter(node.output), '')}'" for node in waiting[:_LISTED])
        raise ExportError.of(where, "its nodes must not wait for each other in a circle", got)
    return order


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Yields nodes and those of their subgraphs."""
    pending = list(nodes)
    while pending:
        node = pending.pop()
        yield node
        for attribute in node.attribute:
            pending += [inner for graph in (attribute.g, *attribute.graphs) for inner in graph.node]


def free_names(node: onnx.NodeProto) -> list[str]:
    """Returns the names that a node reads: its inputs, and what its subgraphs read from around them."""
    names = dict.fromkeys(name for name in node.input if name)
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
            names.update(dict.fromkeys(names_read(graph)))
    return list(names)


def names_read(graph: onnx.GraphProto) -> list[str]:
    """Returns the names that a subgraph reads from around it."""
    inside = {value.name for value in (*graph.input, *graph.initializer)} | {sparse.values.name for sparse in graph.sparse_initializer}
    inside.update(name for node in graph.node for name in node.output)
    reads = [name for node in graph.node for name in free_names(node)] + [output.name for output in graph.output]
    return [name for name in dict.fromkeys(reads) if name not in inside]
