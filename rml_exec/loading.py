"""Where the structure of a graph (:mod:`rml_exec.ir`) meets the meaning of its ops (:mod:`rml_exec.ops`): load, save, check, build."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from rml_exec.errors import GraphFormatError, InputError, TypeInferenceError
from rml_exec.ir import builder
from rml_exec.ir.format import encode, file_stamps, model_paths, weights_of
from rml_exec.ir.graph import Body, Function, Graph, Node
from rml_exec.ir.reading import decode
from rml_exec.ir.verify import Problems, verify_graph
from rml_exec.ir.weights import Tensor, read_tensors, write_file, write_tensors
from rml_exec.ops.registry import all_ops, get_op
from rml_exec.types import TensorType

__all__ = ["IMPORTERS", "GraphBuilder", "Source", "check_graph", "enough_memory", "find_model", "load_graph", "save_graph"]

IMPORTERS = "rml_exec.importers"
"""Group of the entry points that open other types of file: ``onnx`` for ``.onnx``. One is called as ``importer(path, golden=False)``, makes a
model of the file, keeps it for the next time, and returns its path prefix. Its golden holds inputs, and with ``golden`` outputs to check
against. So importers can be installed beside this package, which knows none."""

Source = str | os.PathLike[str] | bytes | IO[bytes]
"""A path, the content itself, or a file object to read it from."""


class GraphBuilder(builder.GraphBuilder):
    """Makes a :class:`Graph` node by node; see :class:`rml_exec.ir.builder.GraphBuilder` for the methods.

    Args:
        name: name of the graph.
        producer: ``framework``, ``framework_version``, ``exporter_version``, ``options``.
        metadata: string -> string.
    """

    def __init__(self, name: str, *, producer: Mapping[str, Any] | None = None, metadata: Mapping[str, str] | None = None) -> None:
        super().__init__(name, infer=infer_types, producer=producer, metadata=metadata)


@contextmanager
def enough_memory(where: str) -> Iterator[None]:
    """Raises InputError for a MemoryError inside the block: a model may ask for results of any size."""
    try:
        yield
    except MemoryError as error:
        raise InputError.of(where, "its values must fit into memory", str(error).rstrip(".") or None) from None


def find_model(source: str | os.PathLike[str], *, golden: bool = False) -> str | os.PathLike[str]:
    """Returns the path prefix of a model: ``source`` itself, or where an importer put what it made of a file of another type.

    Args:
        source: path prefix, path of the ``.json``, or a file of a type that an importer is installed for (:data:`IMPORTERS`).
        golden: True if a file that is imported needs outputs to check against.

    Raises:
        GraphFormatError: a file of a type without an importer.
        RmlError: what the importer raises.
    """
    path = Path(source)
    if path.suffix in ("", ".json") or model_paths(source).graph.exists():
        return source
    from importlib.metadata import entry_points  # only where it is needed: it reads what is installed

    importers = tuple(entry_points(group=IMPORTERS, name=path.suffix[1:]))
    if not path.is_file():
        if importers:
            raise GraphFormatError.of(str(path), "cannot be read", "a folder" if path.is_dir() else "no such file")
        return source
    if not importers:
        known = ", ".join(sorted({f".{entry.name}" for entry in entry_points(group=IMPORTERS)})) or "none"
        rule = f"there is neither {model_paths(source).graph.name} beside it nor an importer for files of its type"
        raise GraphFormatError.of(str(path), rule, hint=f"importers are installed for: {known}")
    importer: Callable[..., str | os.PathLike[str]] = importers[0].load()
    return importer(path, golden=golden)


def load_graph(source: Source, weights: Source | None = None) -> Graph:
    """Reads and checks a graph. Its weights are mapped, not read: a page of the file costs time and memory when a run first touches it.

    Args:
        source: path prefix (``models/mlp``), path of the ``.json``, its content as bytes, or a file object; or the path of a file that an
            importer is installed for, such as ``model.onnx`` (:func:`find_model`).
        weights: path, content or file object of the safetensors file; the NAME.safetensors beside NAME.json when not given.

    Returns:
        The graph, bound to the hints of its dims if it has any.

    Raises:
        GraphFormatError: a missing, damaged or malformed file.
        VerifyError: a graph whose structure breaks a rule.
        TypeInferenceError: a node that its op does not allow, or a recorded type that is not the inferred one.
    """
    path: Path | None = None
    stamp = None
    if isinstance(source, str | os.PathLike):
        source = find_model(source)
        path = model_paths(source).graph
        try:
            if weights is None:
                weights = model_paths(source).weights
                stamp = file_stamps(source) if weights.exists() else None  # before the content: what comes later shows
            content = path.read_bytes()
        except OSError as error:
            hint = "a model is given by its path prefix or its .json file"
            raise GraphFormatError.of(str(path), "cannot be read", error.strerror, hint=hint) from None
    else:
        content = _content(source)
    where = "graph" if path is None else str(path)

    def open_weights() -> dict[str, Tensor]:
        if weights is None:
            raise GraphFormatError.of(where, "has constants in a weights file, which was not given", hint="load_graph(source, weights=...)")
        return read_tensors(weights if isinstance(weights, str | os.PathLike) else _content(weights))[0]

    graph = decode(content, open_weights, _attr_kinds, where)
    if path is not None:
        graph = replace(graph, source_path=os.path.abspath(path), source_stamp=stamp)
    check_graph(graph)
    return graph


def save_graph(graph: Graph, prefix: str | os.PathLike[str]) -> None:
    """Checks a graph and writes PREFIX.safetensors, then PREFIX.json, each in one step; the same graph gives the same bytes.

    Raises:
        GraphFormatError: something that the format cannot hold, or files that cannot be written.
        VerifyError, TypeInferenceError: a graph that could not be loaded again.
    """
    paths = model_paths(prefix)
    check_graph(graph)
    weights = weights_of(graph)
    content = encode(graph)
    decode(content, lambda: weights, _attr_kinds, str(paths.graph))  # never write what cannot be read
    write_tensors(paths.weights, weights)
    with write_file(paths.graph) as file:
        file.write(content)


def check_graph(graph: Graph) -> None:
    """Checks the structure of a graph, and that every node's op exists and gives exactly the recorded types.

    Raises:
        VerifyError: listing all that is wrong with the structure.
        TypeInferenceError: listing all nodes at fault.
    """
    where = graph.source_path or f"graph '{graph.name}'"
    verify_graph(graph, where, _called_functions)
    problems = Problems(where)
    _check_types(graph, "$", graph.functions, problems)
    for name, function in graph.functions.items():
        _check_types(function, f"$.functions['{name}']", graph.functions, problems)
    problems.raise_any(TypeInferenceError)


def _check_types(body: Body, path: str, functions: Mapping[str, Function], problems: Problems) -> None:
    types = body.types()
    for index, node in enumerate(body.nodes):
        where = f"{path}.nodes[{index}] {node.op} '{node.name}'"
        operands = [None if name is None else types[name] for name in node.inputs]
        try:
            inferred = infer_types(node.op, where, operands, node.attrs, functions)
        except TypeInferenceError as error:
            problems.add_text(str(error), (body, index))
            continue
        recorded = tuple(value.type for value in node.outputs)
        if recorded != inferred:
            got = f"recorded {_listed(recorded)} but {node.op} gives {_listed(inferred)}"
            problems.add(where, "the recorded type of an output must be the inferred one", got, at=(body, index))


def _listed(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types))


def infer_types(
    op: str, where: str, types: Sequence[TensorType | None], attrs: Mapping[str, Any], functions: Mapping[str, Function]
) -> tuple[TensorType, ...]:
    """Returns the output types of a node, which may call ``functions``; raises TypeInferenceError, its message beginning with ``where``."""
    try:
        record = get_op(op)
    except KeyError:
        raise TypeInferenceError(f"{where}: {_no_such_op(op)}.") from None
    return record.infer_types(where, types, attrs, functions)


def _attr_kinds(op: str) -> dict[str, str]:
    try:
        record = get_op(op)
    except KeyError:
        raise LookupError(_no_such_op(op)) from None
    if record.internal:
        raise LookupError(f"op '{op}' is made by passes and cannot stand in a file")
    return {name: attr.kind for name, attr in record.attrs.items()}


def _no_such_op(name: str) -> str:
    import difflib  # only where something is wrong already

    similar = difflib.get_close_matches(name, [op.name for op in all_ops()], 3)
    return f"there is no op '{name}'" + (f" (similar: {', '.join(similar)})" if similar else "")


def _called_functions(node: Node) -> Iterator[str]:
    try:
        record = get_op(node.op)
        record.check_attrs(node.op, node.attrs)
    except (KeyError, TypeInferenceError):
        return  # reported with the types
    yield from record.calls(node.attrs)


def _content(source: bytes | IO[bytes]) -> bytes:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if not hasattr(source, "read"):
        raise InputError.of("load_graph", "takes a path, the content as bytes, or a file object", type(source).__name__)
    content: bytes | str = source.read()
    return content.encode() if isinstance(content, str) else content
