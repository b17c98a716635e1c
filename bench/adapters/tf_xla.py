"""TensorFlow, compiled by XLA."""

from __future__ import annotations

from bench.adapters.framework import CompilingAdapter
from bench.adapters.tf_function import TensorFlowAdapter

__all__ = ["TensorFlowXlaAdapter"]


class TensorFlowXlaAdapter(TensorFlowAdapter, CompilingAdapter):
    """``tf.function(jit_compile=True)`` of what :class:`TensorFlowAdapter` calls. TensorFlow documents no cache of compiled code on disk."""

    jit_compile = True
