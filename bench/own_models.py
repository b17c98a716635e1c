"""Models that are not of the zoo: exported ones by their path, ONNX files, and what a build function of the user's returns."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from exporters.bundle import is_finished
from rml_exec.errors import InputError

__all__ = ["ENTRY_VARIABLE", "OwnModel", "entry_of", "from_entry", "from_onnx", "from_path"]

ENTRY_VARIABLE = "RML_BENCH_ENTRY"
"""Environment variable by which workers learn of the build function: ``MODEL=package.module:build``."""

_FOLDER = "own"
"""Folder of the graphs directory that such models are exported to."""


@dataclass(frozen=True, slots=True)
class OwnModel:
    """A model that is not of the zoo.

    Attributes:
        name: where its files lie, as seen from the graphs directory, or as an absolute path.
        framework: ``torch``, ``jax`` or ``tf`` where that framework's arms can run it, else ``file``.
        export: arguments of ``python -m exporters`` that export it; none for one that is exported already.
    """

    name: str
    framework: str
    export: tuple[str, ...] = ()


def from_path(text: str) -> OwnModel:
    """Returns the exported model at a path prefix; raises InputError unless it was exported to the end."""
    prefix = os.path.abspath(text.removesuffix(".json"))
    if not is_finished(prefix):
        hint = f"python -m exporters writes {Path(prefix).name}.json, .safetensors and .golden.safetensors"
        raise InputError.of(f"--models {text}", "must be the path prefix of a finished export", hint=hint)
    return OwnModel(prefix, "file")


def from_onnx(text: str) -> OwnModel:
    """Returns the model of an ONNX file, which is imported anew; raises InputError where there is no such file."""
    if not os.path.isfile(text):
        raise InputError.of(f"--onnx {text}", "must be an ONNX file; there is none")
    return OwnModel(f"{_FOLDER}/{Path(text).stem}", "file", ("--from", "onnx", os.path.abspath(text)))


def from_entry(entry: str, framework: str | None) -> OwnModel:
    """Returns the model that ``package.module:build`` gives, which is exported anew.

    Raises:
        InputError: the framework is missing, or the entry has another form.
    """
    if framework is None:
        raise InputError.of(f"--entry {entry}", "needs --from torch, jax or tf")
    module, _, function = entry.partition(":")
    if not module or not function:
        raise InputError.of(f"--entry {entry}", "must be package.module:function")
    return OwnModel(f"{_FOLDER}/{module}.{function}", framework, ("--from", framework, "--entry", entry))


def entry_of(model: str) -> str | None:
    """Returns the entry that gives a model, in a worker; None for a model of the zoo."""
    name, _, entry = os.environ.get(ENTRY_VARIABLE, "").partition("=")
    return entry if entry and name == model else None
