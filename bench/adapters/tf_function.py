"""TensorFlow, one ``tf.function`` on the CPU."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.adapters.framework import FrameworkAdapter, build_model

__all__ = ["TensorFlowAdapter"]


class TensorFlowAdapter(FrameworkAdapter):
    """A concrete function of the zoo's Keras model or function (``training=False``), tensors in and out, oneDNN left at its default.

    Tuned: as many threads within an operation as granted, one operation at a time, no TF32. Installed: ``tf.function``, and nothing else.
    """

    framework = "TensorFlow"
    extra = "tensorflow"
    jit_compile: bool | None = None

    def start(self) -> str:
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
        os.environ.setdefault("KERAS_BACKEND", "tensorflow")
        import tensorflow as tf

        self._tf = tf
        if self.tuned:
            tf.config.threading.set_intra_op_parallelism_threads(self.threads)
            tf.config.threading.set_inter_op_parallelism_threads(1)
            tf.config.experimental.enable_tensor_float_32_execution(False)
        return str(tf.__version__)

    def build(self, model: str, prefix: Path) -> None:
        self._built = build_model(model)
        self._function = self.make_function()

    def make_function(self) -> Any:
        """Returns a new ``tf.function`` of the model, not yet traced."""
        built = self._built
        return self._tf.function(
            (lambda *x: built(*x, training=False)) if hasattr(built, "layers") else built, jit_compile=self.jit_compile
        )

    def options(self) -> dict[str, Any]:
        config = self._tf.config
        return {
            "mode": "tf.function",
            "jit_compile": bool(self.jit_compile),
            "intra_op_threads": config.threading.get_intra_op_parallelism_threads(),
            "inter_op_threads": config.threading.get_inter_op_parallelism_threads(),
            "tensor_float_32": config.experimental.tensor_float_32_execution_enabled(),
        }

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

    def product(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        right = self._tf.constant(w)
        product: np.ndarray = self._tf.function(lambda left: left @ right, jit_compile=self.jit_compile)(self._tf.constant(x)).numpy()
        return product
