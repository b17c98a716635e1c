"""The table of zoo models. A model is a build function in a ``*_models.py`` of this folder, decorated with :func:`zoo_model`."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import exporters.models
from exporters.bundle import ExportSummary
from exporters.errors import ExportError, MissingFrameworkError

__all__ = ["SIZES", "ZooModel", "all_models", "export_model", "get_model", "zoo_model"]

SIZES = ("full", "tiny")

_EXTRAS = {
    "torch": "torch",
    "jax": "jax",
    "tf": "tensorflow",
    "tensorflow": "tensorflow",
    "keras": "tensorflow",
    "transformers": "zoo",
    "flax": "zoo",
}
"""Framework or module -> the extra of rml-exec that installs it."""


@dataclass(frozen=True, slots=True)
class ZooModel:
    """One model of the zoo.

    Attributes:
        name: ``FRAMEWORK_MODEL``, such as ``torch_resnet50``; of a variant with what it varies, ``torch_resnet50-tiny-b8``. Its files are
            called so.
        framework: ``torch``, ``jax`` or ``tf``: its exporter is ``exporters.from_FRAMEWORK``.
        function: the decorated function. It may take ``size`` and ``batch``, by these names.
        description: one line for ``--list``.
        parameters: number of elements of its weights at full size, None if not stated.
        flops: floating-point operations of one run at full size and batch 1, None if not stated.
        default: whether the benchmark measures it when no model is named.
        size: ``full``, or ``tiny``: the same architecture with a few thousand parameters, for tests.
        batch: number of rows of the example inputs.
    """

    name: str
    framework: str
    function: Callable[..., tuple[Any, Any]]
    description: str
    parameters: int | None = None
    flops: int | None = None
    default: bool = False
    size: str = "full"
    batch: int = 1

    @property
    def sizes(self) -> tuple[str, ...]:
        """The sizes it comes in; a model without a tiny twin is small enough for tests."""
        return SIZES if "size" in inspect.signature(self.function).parameters else SIZES[:1]

    def variant(self, *, size: str = "full", batch: int = 1) -> ZooModel:
        """Returns the model in another size or for another batch; raises ExportError if it does not vary in that."""
        parameters = inspect.signature(self.function).parameters
        if size not in self.sizes:
            raise ExportError.of(f"model {self.name}", f"size must be one of {', '.join(self.sizes)}", repr(size))
        if batch < 1 or (batch > 1 and "batch" not in parameters):
            raise ExportError.of(f"model {self.name}", "batch must be a positive number" if batch < 1 else "comes for batch 1 only", batch)
        name = self.name + (f"-{size}" if size != "full" else "") + (f"-b{batch}" if batch > 1 else "")
        return replace(self, name=name, size=size, batch=batch)

    def build(self) -> tuple[Any, Any]:
        """Returns (model or function, example inputs): every call the same weights and inputs, in evaluation mode.

        Raises:
            MissingFrameworkError: a package is not installed; the message says how to install it.
        """
        given = {"size": self.size, "batch": self.batch}
        taken = {name: value for name, value in given.items() if name in inspect.signature(self.function).parameters}
        try:
            return self.function(**taken)
        except ImportError as error:
            extra = _EXTRAS.get((error.name or "").partition(".")[0], _EXTRAS[self.framework])
            raise MissingFrameworkError.of(
                f"model {self.name}", "what it is written in must be installed", str(error), hint=f"pip install rml-exec[{extra}]"
            ) from error


_MODELS: dict[str, ZooModel] = {}


def zoo_model(
    name: str, *, description: str, parameters: int | None = None, flops: int | None = None, default: bool = False
) -> Callable[[Callable[..., tuple[Any, Any]]], Callable[..., tuple[Any, Any]]]:
    """Adds the decorated build function to the zoo; the framework is the part of ``name`` before the first underscore.

    The function returns (model or function, example inputs). It takes ``batch: int`` if it can make inputs of several rows, and
    ``size: str`` (``full`` or ``tiny``) if it has a tiny twin. The other arguments are those of :class:`ZooModel`.
    """

    def register(build: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[Any, Any]]:
        if name in _MODELS:
            raise ValueError(f"zoo model {name} is defined twice")
        _MODELS[name] = ZooModel(name, name.partition("_")[0], build, description, parameters, flops, default)
        return build

    return register


def all_models() -> dict[str, ZooModel]:
    """Returns every model by name: torch, then jax, then tf, each in the order of its files. Imports no framework."""
    for module in pkgutil.iter_modules(exporters.models.__path__):
        if module.name.endswith("_models"):
            importlib.import_module(f"exporters.models.{module.name}")
    order = ("torch", "jax", "tf")
    return dict(sorted(_MODELS.items(), key=lambda item: order.index(item[1].framework)))


def get_model(name: str, *, size: str = "full", batch: int = 1) -> ZooModel:
    """Returns a model of the zoo.

    Args:
        name: its name, or that of a variant (``torch_resnet50-tiny-b8``), which the other arguments are then not needed for.
        size: ``full`` or ``tiny``; a model without a tiny twin is itself that.
        batch: number of rows of the inputs.

    Raises:
        ExportError: an unknown name, listing what exists, or a batch that the model does not come for.
    """
    if variant := re.fullmatch(r"(\w+?)(-tiny)?(-b(\d+))?", name):
        name, size = variant[1], "tiny" if variant[2] else size
        batch = int(variant[4]) if variant[4] else batch
    models = all_models()
    if name not in models:
        raise ExportError.of("zoo", f"there is no model '{name}'", hint=f"one of {', '.join(models)}")
    model = models[name]
    return model.variant(size="full" if size == "tiny" and size not in model.sizes else size, batch=batch)


def export_model(name: str, directory: str | Path, **options: Any) -> ExportSummary:
    """Builds a zoo model and exports it to ``directory/name.*``.

    ``options`` and errors are those of ``exporters.from_FRAMEWORK.export``.
    """
    model = get_model(name)
    exporter = importlib.import_module(f"exporters.from_{model.framework}")
    built, example_inputs = model.build()
    summary: ExportSummary = exporter.export(built, example_inputs, Path(directory) / model.name, name=model.name, **options)
    return summary
