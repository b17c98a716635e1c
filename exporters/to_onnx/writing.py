"""Writes the ONNX file: model, checks, external data, and the comparison with the golden."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from exporters.errors import ExportError, UnsupportedOperatorsError
from exporters.progress import report
from exporters.to_onnx import (
    DEFAULT_OPSET,
    LOWEST_OPSET,
    OnnxSummary,
    control,
    elementwise,
    indexing,
    neural,
    products,
    recurrent,
    reductions,
    shapes,
    windows,
)
from exporters.to_onnx.context import Held, Model
from exporters.to_onnx.control import value_info
from exporters.to_onnx.walk import Walk, rename
from rml_exec.graph_run import compare_with_golden
from rml_exec.ir.dims import Expr
from rml_exec.ir.golden import read_golden
from rml_exec.ir.graph import Graph
from rml_exec.loading import load_graph

__all__ = ["build", "write"]

FAMILIES = (control, elementwise, indexing, neural, products, recurrent, reductions, shapes, windows)
"""The modules that fill the table of lowerings."""

_EXTERNAL_BYTES = 1_500_000_000
_FILE_BYTES = 1024  # smaller tensors stay in the model file


def write(
    graph: Graph | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    opset: int | None,
    external_data: bool | None,
    edge_cases: bool,
    check: bool,
) -> OnnxSummary:
    """What :func:`exporters.to_onnx.to_onnx` does."""
    where = f"export to '{path}'"
    target = Path(path)
    if not target.parent.is_dir():
        raise ExportError.of(where, "its directory must be there", target.parent)
    source = graph if isinstance(graph, Graph) else load_graph(graph)
    model = build(source, opset, edge_cases)
    weight_bytes = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    outside = weight_bytes > _EXTERNAL_BYTES if external_data is None else external_data
    beside = target.with_name(target.name + ".data")
    nodes, golden = _count(model.graph), "not checked"
    try:
        with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as folder:
            written = Path(folder) / target.name
            report("writing")
            _save(model, written, beside.name if outside else None)
            if check:
                report("checking")
                onnx.checker.check_model(str(written), full_check=True)
                names = [output.name for output in source.outputs]
                golden = "absent" if isinstance(graph, Graph) else _check_golden(written, Path(graph), names)
            outside = (written.parent / beside.name).exists()
            if outside:
                os.chmod(written.parent / beside.name, written.stat().st_mode)  # onnx lets nobody else read it
                os.replace(written.parent / beside.name, beside)
            os.replace(written, target)
    except OSError as error:
        raise ExportError.of(where, "its directory must be writable and have room", str(error).rstrip(".")) from error
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ExportError.of(where, "onnx.checker must accept it, which is a bug of this exporter", str(error).strip()) from error
    return OnnxSummary(target, model.opset_import[0].version, nodes, weight_bytes, beside if outside else None, golden)


def build(graph: Graph, opset: int | None, edge_cases: bool) -> onnx.ModelProto:
    """Returns the ONNX model of a graph, unchecked."""
    newest = onnx.defs.onnx_opset_version()
    version_ = DEFAULT_OPSET if opset is None else opset
    if not LOWEST_OPSET <= version_ <= newest:
        raise ExportError.of("export to ONNX", f"opset must be {LOWEST_OPSET} to {newest}, the newest of the installed onnx", version_)
    symbolic = graph.template or graph
    functions = {name: (function, symbolic.functions[name]) for name, function in graph.functions.items()}
    model = Model(version_, edge_cases, functions, _dim_places(symbolic))
    for value in graph.inputs:
        model.name(value.name)
    inputs = {value.name for value in graph.inputs}
    free = [output.name for output in graph.outputs if output.name not in inputs]
    for name in free:
        model.name(name)
    # ONNX has one namespace: an output called like an input gets another name, and the metadata say which it had.
    names = [output.name if output.name not in inputs else model.name(f"{output.name}_out") for output in graph.outputs]
    top = model.top
    for value, template in zip(graph.inputs, symbolic.inputs, strict=True):
        top.values[value.name] = Held(value.type, template.type.shape, {(): value.name})
    walk = Walk(model)
    results = walk.body(top, graph, symbolic)
    if walk.refused:
        raise UnsupportedOperatorsError(walk.refused)
    _name_outputs(model, names, results)
    types = graph.types()
    made = onnx.helper.make_graph(
        top.nodes,
        graph.name,
        [value_info(value.name, value.type, template.type.shape) for value, template in zip(graph.inputs, symbolic.inputs, strict=True)],
        [value_info(name, types[output.value], held.shape) for name, output, held in zip(names, graph.outputs, results, strict=True)],
        model.initializers,
    )
    renamed = {} if len(free) == len(names) else {"rml.output_names": ";".join(output.name for output in graph.outputs)}
    return _model(made, graph, version_, renamed)


def _dim_places(symbolic: Graph) -> Mapping[str, tuple[str, int]]:
    """Returns, for each dim, an input axis whose size it is by itself."""
    places: dict[str, tuple[str, int]] = {}
    for value in symbolic.inputs:
        for axis, size in enumerate(value.type.shape):
            if isinstance(size, Expr) and size.text in symbolic.dims:
                places.setdefault(size.text, (value.name, axis))
    return places


def _name_outputs(model: Model, names: Sequence[str], results: Sequence[Held]) -> None:
    """Makes the results known by the names of outputs: what a node computes is called so, a second output of it is a copy."""
    top = model.top
    top.label = "results"
    tensors = [top.tensor(held) for held in results]
    computed = {name for node in top.nodes for name in node.output}
    renamed: dict[str, str] = {}
    for name, tensor in zip(names, tensors, strict=True):
        if tensor in computed and tensor not in renamed:
            renamed[tensor] = name
        else:
            top.nodes.append(onnx.helper.make_node("Identity", [tensor], [name], name=model.node_name(f"{name}/Identity")))
    rename(top.nodes, renamed)


def _model(graph: onnx.GraphProto, source: Graph, opset: int, metadata: Mapping[str, str]) -> onnx.ModelProto:
    opsets = [onnx.helper.make_opsetid("", opset)]
    needed = onnx.helper.find_min_ir_version_for(opsets)
    noted = any(node.metadata_props for node in graph.node)
    try:
        release = version("rml-exec")
    except PackageNotFoundError:
        release = ""
    model = onnx.helper.make_model(
        graph, opset_imports=opsets, ir_version=max(needed, 10) if noted else needed, producer_name="rml-exec", producer_version=release
    )
    origin = {f"rml.{key}": source.producer[key] for key in ("framework", "framework_version") if key in source.producer}
    onnx.helper.set_model_props(model, {**origin, **metadata, **source.metadata})
    return model


def _count(graph: onnx.GraphProto) -> int:
    subgraphs = (attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g"))
    return len(graph.node) + sum(map(_count, subgraphs))


def _save(model: onnx.ModelProto, path: Path, beside: str | None) -> None:
    options: dict[str, Any] = {}
    if beside is not None:
        options = {"save_as_external_data": True, "all_tensors_to_one_file": True, "location": beside, "size_threshold": _FILE_BYTES}
    onnx.save_model(model, str(path), **options)


def _check_golden(path: Path, prefix: Path, names: Sequence[str]) -> str:
    """Runs the file on the golden of an export and compares; returns ``pass`` or why nothing was compared.

    Raises:
        ExportError: the outputs differ, or ONNX Runtime cannot run the file.
    """
    golden_path = prefix.with_name(prefix.name + ".golden.safetensors")
    if not golden_path.exists():
        return "absent"
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError:
        return "not run: onnxruntime is not installed"
    report("running the golden")
    golden = read_golden(golden_path)
    feed = {name: np.array(array) for name, array in golden.inputs.items()}
    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        results = session.run(None, feed)
    except Exception as error:  # its own exceptions have no base
        text = str(error).splitlines()[0]
        if "NOT_IMPLEMENTED" in text:
            return f"not run: {text}"
        raise ExportError.of(f"export to '{path.name}'", "ONNX Runtime must run it", text) from error
    comparison = compare_with_golden(dict(zip(names, results, strict=True)), golden)
    if not comparison.passed:
        raise ExportError.of(f"export to '{path.name}'", "ONNX Runtime must give the golden's outputs", comparison.reason)
    return "pass"
