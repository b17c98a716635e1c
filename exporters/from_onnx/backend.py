"""``Backend``: the interface by which ONNX's own test suite, and tools built on it, run models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend as OnnxBackend
from onnx.backend.base import BackendRep, Device, DeviceType, namedtupledict

from exporters.errors import ExportError
from exporters.from_onnx.session import InferenceSession, SessionOptions
from rml_exec.errors import InputError

__all__ = ["Backend", "PreparedModel"]


class PreparedModel(BackendRep):
    """A model that is ready to run, as often as one likes, on inputs of any shapes and values that it allows."""

    def __init__(self, model: onnx.ModelProto, threads: int | None = None) -> None:
        """Imports a model; ``threads`` is the number that a run uses. Errors are those of :class:`InferenceSession`."""
        self._session = InferenceSession(model, SessionOptions(threads or 0))
        self._names = [arg.name for arg in self._session.get_inputs()]
        self._outputs = namedtupledict("Outputs", [arg.name for arg in self._session.get_outputs()])

    def run(self, inputs: Any, **_: Any) -> tuple[np.ndarray, ...]:
        """Returns the outputs, by position or name.

        Args:
            inputs: arrays in the order of the model's inputs, or by name, or the one array of a model with one input.

        Raises:
            RmlError: inputs that the model does not allow, or that it cannot be imported for.
        """
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        if not isinstance(inputs, Mapping):
            if len(inputs) != len(self._names):
                raise InputError.of("run", f"takes {len(self._names)} inputs ({', '.join(self._names)})", len(inputs))
            inputs = dict(zip(self._names, inputs, strict=True))
        results: tuple[np.ndarray, ...] = self._outputs(*self._session.run(None, inputs))
        return results


class Backend(OnnxBackend):
    """Runs ONNX models and single operators on the CPU.

    Shapes, axes, pads and the like may be inputs: what is prepared is imported again for values that were not there yet, and kept.
    """

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", *, threads: int | None = None, **kwargs: Any) -> PreparedModel:
        """Returns a model that is ready to run.

        Args:
            model: the model; it is checked by onnx.checker first.
            device: must be "CPU".
            threads: how many a run uses, None for as many as the process may use.
            **kwargs: taken for compatibility, not used.

        Raises:
            UnsupportedOperatorsError: operators that cannot be imported, all of them at once.
            ExportError: a model that cannot be imported for another reason, or another device.
        """
        _check_device(cls, device)
        super().prepare(model, device, **kwargs)
        return PreparedModel(model, threads)

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[np.ndarray, ...]:
        """Returns the outputs of a model; arguments and errors as of :meth:`prepare` and :meth:`PreparedModel.run`."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[np.ndarray, ...]:
        """Returns the outputs of one operator.

        Args:
            node: the operator.
            inputs: arrays in the order of the node's inputs, without those of an empty name; or by name.
            device: must be "CPU".
            outputs_info: taken for compatibility, not used.
            **kwargs: ``opset_version`` is the operator set of the node's domain, by default the newest of ONNX's own and 1 of others.

        Raises:
            RmlError: an operator that cannot be imported.
        """
        _check_device(cls, device)
        super().run_node(node, inputs, device, outputs_info, **kwargs)
        names = [name for name in node.input if name]
        feed = dict(inputs) if isinstance(inputs, Mapping) else dict(zip(names, map(np.asarray, inputs), strict=True))
        types = tuple((name, array.dtype, array.shape) for name, array in feed.items())
        return _prepared(node.SerializeToString(deterministic=True), types, kwargs.get("opset_version")).run(feed)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for the CPU."""
        try:
            return bool(Device(device).type == DeviceType.CPU)
        except (AttributeError, ValueError):
            return False


def _check_device(backend: type[Backend], device: str) -> None:
    if not backend.supports_device(device):
        raise ExportError.of("device", "must be CPU", repr(device))


@lru_cache(maxsize=64)
def _prepared(node: bytes, types: tuple[tuple[str, np.dtype, tuple[int, ...]], ...], opset: int | None) -> PreparedModel:
    """Returns the model of one node."""
    parsed = onnx.NodeProto.FromString(node)
    inputs = [onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(dtype), shape) for name, dtype, shape in types]
    outputs = [onnx.ValueInfoProto(name=name) for name in parsed.output if name]
    graph = onnx.helper.make_graph([parsed], "node", inputs, outputs)
    newest = onnx.defs.onnx_opset_version()
    versions = {"": newest, parsed.domain: opset or 1} if parsed.domain else {"": opset or newest}
    opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
    return PreparedModel(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=onnx.IR_VERSION))
