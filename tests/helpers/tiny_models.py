"""The committed models of tests/data, which need no framework: ``python -m tests.helpers.tiny_models`` writes them anew.

Their goldens are computed here with plain NumPy, not with rml_exec.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rml_exec.ir.format import model_paths
from rml_exec.ir.golden import Golden, graph_hashes, write_golden
from rml_exec.ir.graph import Graph
from rml_exec.loading import save_graph
from tests.helpers.graphs import chain_graph, cnn_graph, mlp_graph, pattern

DATA = Path(__file__).parent.parent / "data"


def run_mlp(graph: Graph, x: np.ndarray) -> np.ndarray:
    """Returns the output of :func:`mlp_graph` in the precision of ``x``."""
    weights = {constant.name: constant.data.astype(x.dtype) for constant in graph.constants}
    for index in range(len(weights) // 2):
        x = np.maximum(x, 0) if index else x
        x = x @ weights[f"fc{index}.weight"].T + weights[f"fc{index}.bias"]
    return x


def run_cnn(graph: Graph, x: np.ndarray) -> np.ndarray:
    """Returns the output of :func:`cnn_graph` (NCHW) in the precision of ``x``."""
    weights = {constant.name: constant.data.astype(x.dtype) for constant in graph.constants}
    y = np.maximum(_conv3x3(x, weights["conv0.weight"]) + weights["conv0.bias"][:, None, None], 0)
    n, c, h, w = y.shape
    y = y.reshape(n, c, h // 2, 2, w // 2, 2).max((3, 5))
    return _conv3x3(y, weights["conv1.weight"]).mean((2, 3)) @ weights["head"].T


def run_chain(graph: Graph, x: np.ndarray) -> np.ndarray:
    """Returns the output of :func:`chain_graph` in the precision of ``x``."""
    y = x
    for node in graph.nodes:
        y = y + x if node.op == "add" else y * x
    return y


def _conv3x3(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", windows, weight)


TINY_MODELS: dict[str, tuple[Callable[[], Graph], Callable[[Graph, np.ndarray], np.ndarray]]] = {
    "tiny_mlp": (mlp_graph, run_mlp),
    "tiny_cnn": (cnn_graph, run_cnn),
    "tiny_chain": (chain_graph, run_chain),
}


def write_tiny_models(directory: str | os.PathLike[str]) -> None:
    """Writes each model with its golden; graphs and weights come out with the same bytes on every machine."""
    for name, (build, run) in TINY_MODELS.items():
        graph = build()
        paths = model_paths(Path(directory) / name)
        save_graph(graph, Path(directory) / name)
        (source,) = graph.inputs
        x = pattern(*source.type.shape, step=29)
        y, exact = run(graph, x), run(graph, x.astype(np.float64))
        rms = float(np.sqrt(np.mean(exact**2)))
        metadata = {"framework": "numpy", "framework_version": "2", "seed": "0", "threads": "1", **graph_hashes(paths.graph)}
        metadata |= {"rtol.y": "2e-05", "atol.y": repr(2e-5 * rms), "rms_error.y": repr(float(np.sqrt(np.mean((y - exact) ** 2))))}
        write_golden(paths.golden, Golden({source.name: x}, {"y": y}, metadata))


if __name__ == "__main__":
    write_tiny_models(DATA)
