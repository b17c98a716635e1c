"""Executors of a model that is given no sizes beforehand: one for all shapes where that is possible, else one per shapes and shape-like values.

What makes the shape of a result (a target shape, axes, pads, the k of TopK) is often an input in ONNX, and a graph here has the shapes of its
results. So an import that is refused is tried again with the elements of small inputs as constants, and those that turn out to matter are
part of what an executor is kept by.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx

from exporters.errors import ExportError, UnsupportedOperatorsError
from exporters.from_onnx.context import ONNX
from exporters.from_onnx.dims import InputShapes, import_model
from exporters.from_onnx.importer import graph_inputs
from exporters.from_onnx.reading import Model, NotATensorError, dtype_of
from rml_exec.errors import InputError, RmlError
from rml_exec.runtime.executor import Executor
from rml_exec.runtime.plan_cache import PlanCache

__all__ = ["Specialiser"]

_MOST = 8
"""Special executors that are kept. Each has its own packed weights."""

_SHAPE_LIKE = 64
"""Most elements of an input that may say something about shapes."""

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class _Special:
    """An executor and the inputs that it takes; the others are constants of it."""

    executor: Executor
    inputs: tuple[str, ...]


class Specialiser:
    """Runs a model on inputs of any shape that it allows; any number of threads may do so at once."""

    def __init__(self, model: Model, threads: int | None) -> None:
        """Imports the model, for all sizes that it leaves open.

        Args:
            model: the model.
            threads: as of :meth:`Executor.create`.

        Raises:
            RmlError: a model that no inputs could make importable.
        """
        self._model, self._threads = model, threads
        self._inputs = tuple(value.name for value in graph_inputs(model))
        self._needed: tuple[str, ...] = ()
        self._cache: PlanCache[_Special] = PlanCache(_MOST, lambda _: 1)
        self._general: Executor | None = None
        try:
            shapes = InputShapes(model, {}, {}, {})
            self._general = self._executor(shapes, {})
        except (UnsupportedOperatorsError, ExportError) as error:
            if _is_hopeless(error) or not self._could_help():
                raise

    def run(self, feed: Arrays) -> list[np.ndarray]:
        """Returns the outputs in the model's order.

        Args:
            feed: an array for every input of the model, of its element type and a shape that it allows.

        Raises:
            RmlError: a model that cannot be imported at these shapes; a step that failed.
        """
        if self._general is not None:
            try:
                return list(self._general.run([feed[name] for name in self._inputs]).values())
            except InputError:
                pass  # a size outside the range of the general graph, or sizes that differ where it has one dim
        special = self._special(feed)
        return list(special.executor.run([feed[name] for name in special.inputs]).values())

    @property
    def output_ranks(self) -> list[int] | None:
        """The number of axes of each output, None before it is known."""
        if self._general is None:
            return None
        types = self._general.graph.types()
        return [types[output.value].rank for output in self._general.graph.outputs]

    def _could_help(self) -> bool:
        """True if a model that is refused as it stands could be imported for given inputs."""
        values = graph_inputs(self._model)
        return all(map(_is_tensor, values)) and any(_is_open(value.type.tensor_type) for value in values)

    def _special(self, feed: Arrays) -> _Special:
        """Returns the executor for the shapes of these inputs, and for the elements of those that shapes depend on."""
        needed = self._needed
        try:
            return self._kept(feed, needed)
        except RmlError as error:
            needed = self._needed = self._found(feed, needed, error)
        return self._kept(feed, needed)

    def _kept(self, feed: Arrays, needed: Sequence[str]) -> _Special:
        """Returns the executor that holds the elements of the needed inputs; makes it if it is not there."""
        shapes = tuple(feed[name].shape for name in self._inputs)
        key = (shapes, *((name, feed[name].tobytes()) for name in needed))
        return self._cache.get(key, lambda: self._made(feed, needed))

    def _made(self, feed: Arrays, needed: Sequence[str]) -> _Special:
        shapes = InputShapes(self._model, {}, {name: feed[name].shape for name in self._inputs}, {})
        executor = self._executor(shapes, {name: feed[name].copy() for name in needed})  # the caller may write to his
        return _Special(executor, tuple(name for name in self._inputs if name not in needed))

    def _found(self, feed: Arrays, needed: Sequence[str], error: RmlError) -> tuple[str, ...]:
        """Returns the inputs whose elements an import needs, as few as possible; raises ``error``, with which it failed, if none help."""
        more = [name for name in self._inputs if name not in needed and feed[name].ndim <= 1 and feed[name].size <= _SHAPE_LIKE]
        if not more or _is_hopeless(error):
            raise error
        if (cause := self._problem(feed, [*needed, *more])) is not None:
            raise cause  # which says more than what the first import said: all is known that can be
        for name in list(more):
            fewer = [other for other in more if other != name]
            if self._problem(feed, [*needed, *fewer]) is None:
                more = fewer
        return (*needed, *more)

    def _problem(self, feed: Arrays, needed: Sequence[str]) -> RmlError | None:
        """Returns why an import that knows the elements of these inputs fails, None if it does not."""
        try:
            self._made(feed, needed)
        except RmlError as error:
            return error
        return None

    def _executor(self, shapes: InputShapes, known: Arrays) -> Executor:
        name = self._model.proto.graph.name or "model"
        return Executor.create(import_model(self._model, shapes, name=name, known=known).graph, threads=self._threads)


def _is_hopeless(error: RmlError) -> bool:
    """True if no inputs can make an import succeed: some operator has no lowering at all."""
    return isinstance(error, UnsupportedOperatorsError) and any(ONNX.get(operator.op) is None for operator in error.operators)


def _is_tensor(value: onnx.ValueInfoProto) -> bool:
    try:
        dtype_of(value.type.tensor_type.elem_type)
    except NotATensorError:
        return False
    return True


def _is_open(type_: onnx.TypeProto.Tensor) -> bool:
    """True for an input that has no fixed shape, or whose elements may say something about shapes."""
    return (
        not type_.HasField("shape")
        or len(type_.shape.dim) <= 1
        or any(not dim.HasField("dim_value") or dim.dim_value < 0 for dim in type_.shape.dim)
    )
