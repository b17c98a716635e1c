"""Runs operations of a graph at export, on what is known: constant folding, and the counters of loops."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

__all__ = ["Evaluation", "array_of", "body_of", "evaluate", "origin", "sources"]

_ALIASES = ("Identity", "StopGradient", "PreventGradient", "Snapshot")
_NO_EVALUATION = ("Placeholder", "TensorList", "EmptyTensorList", "PartitionedCall", "Stateless", "While", "If", "Case", "ReadVariableOp")


def body_of(op: Any, function: Any) -> Any:
    """Returns the graph of a function that an operation names in an attribute."""
    return op.graph._get_function(function.name).graph


def origin(tensor: Any) -> Any:
    """Returns the tensor that this one is only another name of."""
    while tensor.op.type in _ALIASES:
        tensor = tensor.op.inputs[0]
    return tensor


def sources(tensors: Iterable[Any], stop: Iterable[str] = ()) -> set[str]:
    """Returns the names of the placeholders that tensors of one graph depend on, not looking behind the tensors in ``stop``."""
    found: set[str] = set()
    seen = set(stop)
    pending = list(tensors)
    while pending:
        tensor = pending.pop()
        if tensor.name not in seen:
            seen.add(tensor.name)
            if tensor.op.type == "Placeholder":
                found.add(tensor.name)
            pending += tensor.op.inputs
    return found


def array_of(tensor: Any) -> np.ndarray:
    """Returns the elements of an eager tensor, not copied where NumPy has the element type itself."""
    array: np.ndarray = tensor.numpy() if tensor.dtype.name == "bfloat16" else np.asarray(tensor)
    return array


def evaluate(tf: Any, op: Any, arrays: Sequence[np.ndarray]) -> list[Any]:
    """Runs one operation eagerly on arrays and returns its results."""
    definition, remaining = op.op_def, list(arrays)
    arguments: dict[str, Any] = {}
    inferred: set[str] = set()
    for argument in definition.input_arg:
        inferred |= {argument.type_attr, argument.number_attr, argument.type_list_attr}
        if argument.number_attr or argument.type_list_attr:
            count = op.get_attr(argument.number_attr) if argument.number_attr else len(op.get_attr(argument.type_list_attr))
            arguments[argument.name], remaining = [tf.constant(array) for array in remaining[:count]], remaining[count:]
        else:
            arguments[argument.name] = tf.constant(remaining.pop(0))
    arguments |= {attr.name: op.get_attr(attr.name) for attr in definition.attr if attr.name not in inferred}
    operation = getattr(tf.raw_ops, op.type)
    parameters = inspect.signature(operation).parameters
    renamed = [name for name in arguments if name not in parameters]  # such as reduction_indices, which Python calls axis
    free = [name for name in parameters if name not in arguments and name != "name"]
    for old, new in zip(renamed, free, strict=True):
        arguments[new] = arguments.pop(old)
    result = operation(**arguments)
    return list(result) if isinstance(result, list | tuple) else [result]


class Evaluation:
    """The values of one graph for one set of inputs, computed when they are asked for.

    Args:
        tf: the module.
        known: tensor name -> array for inputs; constants of the graph are found by themselves.
        constants: what evaluations of one graph share.
    """

    def __init__(self, tf: Any, known: Mapping[str, np.ndarray], constants: dict[str, np.ndarray]) -> None:
        self._tf = tf
        self._known = dict(known)
        self._constants = constants

    def of(self, tensor: Any) -> np.ndarray:
        """Returns a tensor's value; its inputs must be known and all operations on the way as :meth:`possible` says."""
        tensor = origin(tensor)
        if tensor.op.type == "Const":
            if tensor.name not in self._constants:
                self._constants[tensor.name] = self._tf.make_ndarray(tensor.op.get_attr("value"))
            return self._constants[tensor.name]
        if tensor.name not in self._known:
            results = evaluate(self._tf, tensor.op, [self.of(operand) for operand in tensor.op.inputs])
            self._known |= {output.name: array_of(result) for output, result in zip(tensor.op.outputs, results, strict=True)}
        return self._known[tensor.name]

    @staticmethod
    def possible(tensor: Any, known: Iterable[str]) -> bool:
        """True if a tensor can be computed from inputs of these names by operations that only compute."""
        import tensorflow as tf

        names, pending, seen = set(known), [tensor], set()
        while pending:
            tensor = pending.pop()
            if tensor.name in names or tensor.name in seen:
                continue
            seen.add(tensor.name)
            op = tensor.op
            if op.op_def.is_stateful or not hasattr(tf.raw_ops, op.type) or (op.type != "Const" and op.type.startswith(_NO_EVALUATION)):
                return False
            pending += op.inputs
        return True
