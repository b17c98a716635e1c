"""A user's own model: ``--entry package.module:build`` is imported and called, and must give (model or function, example inputs)."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from exporters.errors import ExportError

__all__ = ["build_entry"]


def build_entry(entry: str) -> tuple[Any, Sequence[Any] | Mapping[str, Any]]:
    """Returns what the function named by ``entry`` gives: a model or function, and its example inputs.

    The module is looked for in the current directory too.

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
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise ExportError.of(where, "its module must be importable", _raised(error)) from error
        raise ExportError.of(where, f"there is no module '{error.name}' here or among the installed packages") from None
    except Exception as error:  # whatever the user's module raises
        raise ExportError.of(where, "its module must be importable", _raised(error)) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        got = "nothing of that name" if function is None else type(function).__name__
        raise ExportError.of(where, f"'{function_name}' must be a function of {module_name}", got)
    try:
        result = function()
    except Exception as error:  # whatever the user's function raises
        raise ExportError.of(where, "it must return (model, example inputs)", _raised(error)) from error
    if not isinstance(result, tuple) or len(result) != 2 or isinstance(result[1], str) or not isinstance(result[1], Sequence | Mapping):
        shown = f"{len(result)} values" if isinstance(result, tuple) and len(result) != 2 else type(result).__name__
        if isinstance(result, tuple) and len(result) == 2:
            shown = f"inputs of type {type(result[1]).__name__}"
        hint = "return model, [x] or return model, {'x': x}"
        raise ExportError.of(where, "it must return (model, example inputs), the inputs as a list or a dict", shown, hint=hint)
    return result


def _raised(error: BaseException) -> str:
    """Returns one line about an exception, with the place where it was raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" at {os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno}" if trace is not None else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}{': ' + text if text else ''}{place}"
