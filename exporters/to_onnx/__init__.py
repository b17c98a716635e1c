"""The way out to ONNX: a graph of ours as an ``.onnx`` file for other runtimes.

    from exporters.to_onnx import to_onnx

    summary = to_onnx("models/graphs/torch_resnet50", "resnet50.onnx")

onnx itself is imported by the first call.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exporters.errors import import_framework
from rml_exec.ir.graph import Graph

__all__ = ["DEFAULT_OPSET", "LOWEST_OPSET", "OnnxSummary", "to_model", "to_onnx"]

LOWEST_OPSET = 17
DEFAULT_OPSET = 21
"""The oldest with one operator each for gelu and group norm; ONNX Runtime reads it since 1.20, OpenVINO since 2025."""


@dataclass(frozen=True, slots=True)
class OnnxSummary:
    """What was written.

    Attributes:
        path: the model file.
        opset: version of the operator set.
        nodes: number of ONNX nodes, subgraphs included.
        weight_bytes: size of all initializers.
        external: the file beside it that holds the large ones, None if they stand in the model file.
        golden: how the golden check ended: ``pass``, or why there was none.
    """

    path: Path
    opset: int
    nodes: int
    weight_bytes: int
    external: Path | None
    golden: str

    def __str__(self) -> str:
        beside = f", weights in {self.external.name}" if self.external else ""
        return f"{self.path}: opset {self.opset}, {self.nodes} nodes, {self.weight_bytes / 1e6:.2f} MB{beside}, golden {self.golden}"


def to_onnx(
    graph: Graph | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    opset: int | None = None,
    external_data: bool | None = None,
    edge_cases: bool = False,
    check: bool = True,
) -> OnnxSummary:
    """Writes a graph as an ONNX file.

    The file holds standard operators only. It is checked by ``onnx.checker`` with shape inference, and, if a golden lies beside the
    prefix and ONNX Runtime is installed, run and compared with it. Nothing is left where a check fails; a file that stood there stays.

    Args:
        graph: the graph, or the path prefix of an exported one. Symbolic dims become ``dim_param``s.
        path: the file to write.
        opset: version of the ONNX operator set, 17 to the newest that the installed onnx knows; None: :data:`DEFAULT_OPSET`.
        external_data: whether large weights go into ``PATH.data`` beside the file; None: only above 1.5 GB, for protobuf ends at 2 GB.
        edge_cases: follow NaN and out-of-range indices also where that costs nodes in operators that models spend their time in.
        check: run the checker and the golden.

    Raises:
        MissingFrameworkError: onnx is not installed.
        UnsupportedOperatorsError: nodes that ONNX has no way to say, all at once.
        ExportError: an unknown opset, a missing directory, a file that cannot be written, outputs that differ from the golden.
        GraphFormatError: the prefix holds no valid graph.
    """
    import_framework("onnx")
    from exporters.to_onnx.writing import write

    return write(graph, path, opset=opset, external_data=external_data, edge_cases=edge_cases, check=check)


def to_model(graph: Graph, *, opset: int | None = None, edge_cases: bool = False) -> Any:
    """Returns the ``onnx.ModelProto`` of a graph, unchecked; arguments and errors as for :func:`to_onnx`."""
    import_framework("onnx")
    from exporters.to_onnx.writing import build

    return build(graph, opset, edge_cases)
