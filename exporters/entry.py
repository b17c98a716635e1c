"""A user's own model: ``--entry package.module:build`` is imported and called, and must give (model or function, example inputs)."""

from __future__ import annotations

import contextlib
import importlib
import os
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from exporters.errors import ExportError, describe

__all__ = ["build_entry", "exits_raised"]


@contextlib.contextmanager
def exits_raised() -> Iterator[None]:
    """Makes ``os._exit`` raise SystemExit within the ``with``: foreign code would end a command without a word, even with exit code 0.

    Forked children, such as the workers of a data loader, still end by it.
    """
    leave, owner = os._exit, os.getpid()

    def refuse(status: int) -> NoReturn:
        if os.getpid() != owner:
            leave(status)
        raise SystemExit(status)

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = leave


def build_entry(entry: str) -> tuple[Any, Sequence[Any] | Mapping[str, Any]]:
    """Returns what the function named by ``entry`` gives: a model or function, and its example inputs.

    The module is looked for in the current directory too. Python's, NumPy's, torch's and TensorFlow's generators of random numbers are seeded
    before: a model with random weights is the same one in every process that builds it, as a comparison of frameworks needs.

    Args:
        entry: ``package.module:function``; the function takes no arguments and returns (model, example inputs), the inputs as a
            sequence in call order or as a mapping by name.

    Raises:
        ExportError: there is no such module or function, it raises, or it returns something else.
    """
    where = f"entry '{entry}'"
    module_name, _, function_name = entry.partition(":")
    if not module_name or not function_name:
        raise ExportError.of(where, "must be package.module:function")
    if (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    _seed()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ExportError.of(where, "its module must be importable", describe(error)) from error
        raise ExportError.of(where, f"there is no module '{error.name}' here or among the installed packages") from None
    except Exception as error:  # whatever the user's module raises
        raise ExportError.of(where, "its module must be importable", describe(error)) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        got = "nothing of that name" if function is None else type(function).__name__
        raise ExportError.of(where, f"'{function_name}' must be a function of {module_name}", got)
    _seed()
    try:
        result = function()
    except Exception as error:  # whatever the user's function raises
        raise ExportError.of(where, "it must return (model, example inputs)", describe(error)) from error
    if not isinstance(result, tuple) or len(result) != 2 or isinstance(result[1], str) or not isinstance(result[1], Sequence | Mapping):
        shown = f"{len(result)} values" if isinstance(result, tuple) and len(result) != 2 else type(result).__name__
        if isinstance(result, tuple) and len(result) == 2:
            shown = f"inputs of type {type(result[1]).__name__}"
        hint = "return model, [x] or return model, {'x': x}"
        raise ExportError.of(where, "it must return (model, example inputs), the inputs as a list or a dict", shown, hint=hint)
    return result


def _seed() -> None:
    """Seeds the generators that models draw weights from, of the frameworks that are imported by now."""
    random.seed(0)
    np.random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    if "tensorflow" in sys.modules:  # Keras draws from Python's generator
        sys.modules["tensorflow"].random.set_seed(0)
