"""The files of a model, and the writing of the graph's JSON form ("rml-graph", version 1.0). :mod:`rml_exec.ir.reading` reads it."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rml_exec.errors import GraphFormatError
from rml_exec.ir.builder import INLINE_ELEMENTS
from rml_exec.ir.dims import Expr
from rml_exec.ir.graph import Body, Constant, Graph, Node, Value
from rml_exec.ir.weights import Tensor
from rml_exec.types import DType

__all__ = ["FORMAT_VERSION", "ModelPaths", "encode", "model_paths", "weights_of"]

FORMAT_VERSION = (1, 0)

_EXACT = 2**53  # integers beyond it do not survive readers that parse numbers as doubles: they are written as strings


class ModelPaths(NamedTuple):
    """The files of one exported model."""

    graph: Path
    weights: Path
    golden: Path

    @property
    def name(self) -> str:
        """Name of the model: that of its files."""
        return self.graph.name.removesuffix(".json")


def model_paths(source: str | os.PathLike[str]) -> ModelPaths:
    """Returns the files of a model given by its path prefix (``models/mlp``) or the path of its ``.json``."""
    prefix = os.fspath(source).removesuffix(".json")
    return ModelPaths(Path(f"{prefix}.json"), Path(f"{prefix}.safetensors"), Path(f"{prefix}.golden.safetensors"))


def file_stamps(source: str | os.PathLike[str]) -> tuple[tuple[int, ...], ...]:
    """Returns what tells the graph and weights files of a model from others of the same name: device, inode, size and time of the last change.

    Raises:
        OSError: one of them is missing.
    """
    found = (os.stat(path) for path in model_paths(source)[:2])
    return tuple((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in found)


def encode(graph: Graph) -> bytes:
    """Returns the JSON document of a graph, in its symbolic form if it has dims; the same graph gives the same bytes.

    Raises:
        GraphFormatError: an attribute that the format cannot hold, such as the body of a fused group.
    """
    form = graph.template or graph
    document: dict[str, Any] = {"format": "rml-graph", "format_version": list(FORMAT_VERSION), "name": form.name, "producer": form.producer}
    if form.dims:
        document["dims"] = form.dims
    document |= _body(form)
    document["functions"] = {name: _body(function) for name, function in form.functions.items()}
    document["metadata"] = dict(form.metadata)
    try:
        return (_layout(document, "") + "\n").encode()
    except (TypeError, ValueError) as error:  # a producer option that JSON lacks, a lone surrogate
        raise GraphFormatError.of(f"graph '{graph.name}'", "cannot be written as JSON", error) from None


def weights_of(graph: Graph) -> dict[str, Tensor]:
    """Returns what belongs into the weights file: the constants that do not stand inline, by key.

    Raises:
        GraphFormatError: two constants of one key that differ.
    """
    found: dict[str, Tensor] = {}
    for body in (graph, *graph.functions.values()):
        for constant in body.constants:
            if (key := _key(constant)) is None:
                continue
            tensor = Tensor(constant.type, constant.data)
            other = found.setdefault(key, tensor)
            if other.data is not tensor.data and (other.type != tensor.type or other.data.tobytes() != tensor.data.tobytes()):
                raise GraphFormatError.of(f"constant '{constant.name}'", f"key '{key}' already stands for other data", tensor.type)
    return found


def _key(constant: Constant) -> str | None:
    return constant.key or (None if constant.type.size <= INLINE_ELEMENTS else constant.name)


def _body(body: Body) -> dict[str, Any]:
    return {
        "inputs": [_value(value) for value in body.inputs],
        "outputs": [{"name": output.name, "value": output.value} for output in body.outputs],
        "constants": [_constant(constant) for constant in body.constants],
        "nodes": [_node(node) for node in body.nodes],
    }


def _value(value: Value) -> dict[str, Any]:
    tag = {} if value.tag is None else {"tag": value.tag}
    return {"name": value.name, "dtype": value.type.dtype.value, "shape": _plain(value.type.shape), **tag}


def _constant(constant: Constant) -> dict[str, Any]:
    found = {"name": constant.name, "dtype": constant.type.dtype.value, "shape": _plain(constant.type.shape)}
    if (key := _key(constant)) is not None:
        return found | {"key": key}
    return found | {"data": [_element(item, constant.type.dtype) for item in constant.data.reshape(-1)]}


def _element(item: np.generic, dtype: DType) -> Any:
    if not dtype.is_float:
        return _plain(item.item())
    number = float((np.uint32(item) << np.uint32(16)).view(np.float32)) if dtype is DType.BF16 else float(item)
    return number.hex() if math.isfinite(number) else _plain(number)


def _node(node: Node) -> dict[str, Any]:
    try:
        attrs = {name: _plain(value) for name, value in node.attrs.items()}
    except TypeError as error:
        raise GraphFormatError.of(f"{node.op} '{node.name}'", f"cannot be written: {error}") from None
    return {
        "op": node.op,
        "name": node.name,
        "inputs": list(node.inputs),
        "outputs": [_value(value) for value in node.outputs],
        "attrs": attrs,
        "metadata": dict(node.metadata),
        "source": dict(node.source),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, Expr):
        return value.text
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, int) and abs(value) > _EXACT:
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"the format has no {type(value).__name__}")


def _layout(document: dict[str, Any], indent: str) -> str:
    def compact(value: Any) -> str:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)

    def laid_out(key: str, value: Any) -> str:
        if key in ("inputs", "outputs", "constants", "nodes") and value:
            return "[\n" + ",\n".join(f"{indent}  {compact(item)}" for item in value) + f"\n{indent} ]"
        if key == "functions" and value:
            functions = [f"{indent}  {compact(name)}: {_layout(item, indent + '  ')}" for name, item in value.items()]
            return "{\n" + ",\n".join(functions) + f"\n{indent} }}"
        return compact(value)

    return "{\n" + ",\n".join(f"{indent} {compact(key)}: {laid_out(key, value)}" for key, value in document.items()) + f"\n{indent}}}"
