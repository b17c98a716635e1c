"""The table of zoo models. A model is a build function in a ``*_models.py`` of this folder, decorated with :func:`zoo_model`."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import exporters.models
from exporters.bundle import ExportSummary
from exporters.errors import ExportError, MissingFrameworkError

__all__ = ["ZooModel", "all_models", "export_model", "get_model", "zoo_model"]

Build = Callable[[], tuple[Any, Any]]


@dataclass(frozen=True, slots=True)
class ZooModel:
    """One model of the zoo.

    Attributes:
        name: ``FRAMEWORK_MODEL``, such as ``torch_mlp``.
        framework: ``torch``, ``jax`` or ``tf``: its exporter is ``exporters.from_FRAMEWORK``.
        build: returns (model or function, example inputs): every call the same weights and inputs, in evaluation mode.
        description: one line for ``--list``.
    """

    name: str
    framework: str
    build: Build
    description: str


_MODELS: dict[str, ZooModel] = {}


def zoo_model(name: str, *, description: str) -> Callable[[Build], Build]:
    """Adds the decorated build function to the zoo; the framework is the part of ``name`` before the first underscore."""

    def register(build: Build) -> Build:
        if name in _MODELS:
            raise ValueError(f"zoo model {name} is defined twice")
        _MODELS[name] = ZooModel(name, name.partition("_")[0], build, description)
        return build

    return register


def all_models() -> dict[str, ZooModel]:
    """Returns every model by name: torch, then jax, then tf, each in the order of its file. Imports no framework."""
    for module in pkgutil.iter_modules(exporters.models.__path__):
        if module.name.endswith("_models"):
            importlib.import_module(f"exporters.models.{module.name}")
    order = ("torch", "jax", "tf")
    return dict(sorted(_MODELS.items(), key=lambda item: order.index(item[1].framework)))


def get_model(name: str) -> ZooModel:
    """Returns a model of the zoo; raises ExportError that lists what exists for an unknown name."""
    models = all_models()
    if name not in models:
        raise ExportError.of("zoo", f"there is no model '{name}'", hint=f"one of {', '.join(models)}")
    return models[name]


def export_model(name: str, directory: str | Path) -> ExportSummary:
    """Builds a zoo model and exports it to ``directory/name.*``; errors as of ``exporters.from_FRAMEWORK.export``."""
    model = get_model(name)
    exporter = importlib.import_module(f"exporters.from_{model.framework}")
    try:
        built, example_inputs = model.build()
    except ImportError as error:
        extra = {"tf": "tensorflow"}.get(model.framework, model.framework)
        raise MissingFrameworkError.of(
            f"model {name}", "its framework must be installed", str(error), hint=f"pip install rml-exec[{extra}]"
        ) from error
    summary: ExportSummary = exporter.export(built, example_inputs, Path(directory) / name, name=name)
    return summary
