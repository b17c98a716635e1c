"""What the tests of the exporters share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from exporters.bundle import derive_tolerances
from exporters.errors import ExportError
from rml_exec.ir.graph import Graph
from rml_exec.loading import GraphBuilder
from rml_exec.runtime.reference import run_reference

Arrays = Mapping[str, np.ndarray]


@pytest.fixture(scope="session")
def tf() -> Any:
    """TensorFlow, with the settings that the exporter gives it."""
    from exporters.from_tf.tracing import load_tensorflow

    return load_tensorflow()


@pytest.fixture(scope="session")
def keras(tf: Any) -> Any:
    import keras

    return keras


@pytest.fixture
def assert_graph_gives() -> Callable[[Graph, Arrays, Arrays], None]:
    """Returns a function that compares what the reference interpreter makes of a graph, in both precisions, with what a framework gave."""

    def check(graph: Graph, inputs: Arrays, outputs: Arrays) -> None:
        assert [output.name for output in graph.outputs] == list(outputs)
        wide = run_reference(graph, inputs, precision="f64")
        single = run_reference(graph, inputs, precision="f32")
        wrong = []
        for name, expected in outputs.items():
            try:
                tolerances = derive_tolerances(name, expected, wide[name])
                assert single[name].dtype == expected.dtype, name
                np.testing.assert_allclose(single[name], expected, tolerances.rtol, tolerances.atol, err_msg=name)
            except (ExportError, AssertionError) as error:
                wrong.append(str(error))
        assert not wrong, "\n".join(wrong)

    return check


@pytest.fixture
def small_graph() -> Graph:
    """Returns y = relu(x @ w^T + b), n = argmax(y) with a weight big enough to be stored in the weights file."""
    generator = np.random.default_rng(7)
    builder = GraphBuilder("small", producer={"framework": "numpy", "framework_version": "2", "exporter_version": "0.1.0", "options": {}})
    x = builder.input("x", "f32", (2, 8))
    weight = builder.constant(generator.standard_normal((5, 8)).astype(np.float32), "weight")
    bias = builder.constant(generator.standard_normal(5).astype(np.float32), "bias")
    y = builder.add("relu", [builder.add("linear", [x, weight, bias], weight_layout="oi")])
    builder.output("y", y)
    builder.output("n", builder.add("argreduce", [y], kind="max", axis=1, keepdims=False, tie="first", nan="first", index_dtype="i64"))
    return builder.build()


@pytest.fixture
def small_run(small_graph: Graph) -> dict[str, Any]:
    """Returns inputs and the outputs in float32 of ``small_graph``, as ``write_export`` takes them."""
    inputs = {"x": np.random.default_rng(8).standard_normal((2, 8)).astype(np.float32)}
    outputs = run_reference(small_graph, inputs, precision="f32")
    return {"inputs": inputs, "outputs": outputs, "framework": "numpy", "framework_version": "2", "seed": 0, "threads": 1}
