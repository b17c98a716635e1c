"""TensorFlow, one ``tf.function`` on the CPU."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from bench.adapters.base import ArmFacts, UnavailableError

__all__ = ["TensorFlowAdapter"]


class TensorFlowAdapter:
    """A concrete function of the zoo's Keras model or function (``training=False``), tensors in and out, oneDNN left at its default."""

    def load(self, model: str, graphs: str, threads: int) -> None:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
        os.environ.setdefault("KERAS_BACKEND", "tensorflow")
        start = time.perf_counter_ns()
        try:
            import tensorflow as tf
        except ImportError as error:
            raise UnavailableError(f"TensorFlow is not installed ({error}); pip install rml-exec[tensorflow]") from error
        imported = time.perf_counter_ns()
        from exporters.models.zoo import get_model

        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(1)
        self._tf = tf
        built, _ = get_model(model).build()
        self._function = tf.function((lambda *x: built(*x, training=False)) if hasattr(built, "layers") else built)
        self._facts = ArmFacts(
            framework_version=tf.__version__,
            import_ms=(imported - start) / 1e6,
            load_ms=(time.perf_counter_ns() - imported) / 1e6,
            options={"mode": "tf.function", "intra_op_threads": threads, "inter_op_threads": 1},
        )

    def bind(self, inputs: Mapping[str, np.ndarray]) -> None:
        self._inputs = [self._tf.constant(array) for array in inputs.values()]
        self._concrete: Any = None

    def call(self) -> Any:
        if self._concrete is None:  # here and not in bind, so that the first call's time has the tracing in it
            self._concrete = self._function.get_concrete_function(*self._inputs)
        return self._concrete(*self._inputs)

    def outputs(self, result: Any) -> dict[str, np.ndarray]:
        from exporters.lowering import name_outputs

        return {name: leaf.numpy() for name, leaf in name_outputs(result)}

    def facts(self) -> ArmFacts:
        return self._facts
