"""What can go wrong in an export. Every error is one clear report and ends a command with its ``exit_code``."""

from __future__ import annotations

import importlib
import itertools
import os
import re
import sysconfig
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from rml_exec.errors import RmlError, sentence

__all__ = ["ExportError", "MissingFrameworkError", "Unsupported", "UnsupportedOperatorsError", "describe", "import_framework"]

_FRAMEWORKS = frozenset({"torch", "jax", "jaxlib", "flax", "tensorflow", "keras", "onnx", "numpy"})
_LONGEST = 400
"""Characters of an exception's text that a message repeats."""


class ExportError(RmlError):
    """An export that cannot be done: a model in training mode, a wrong entry, outputs that differ from the reference, a full disk."""


class MissingFrameworkError(ExportError):
    """The framework that the model was written in is not installed."""

    exit_code = 5


@dataclass(frozen=True, slots=True)
class Unsupported:
    """One operator of the framework's graph that has no lowering.

    Attributes:
        op: the framework's name of the operator.
        node: name of the node in the framework's graph.
        where: source line of the model (``model.py:12``), empty if unknown.
        reason: why it is refused; empty if it just has no lowering yet.
    """

    op: str
    node: str
    where: str
    reason: str = ""


class UnsupportedOperatorsError(RmlError):
    """Operators without a lowering: all of them at once, so that one export run shows all the work there is.

    Attributes:
        operators: one record per refused node, in graph order.
    """

    def __init__(self, operators: Sequence[Unsupported]) -> None:
        self.operators = tuple(operators)
        kinds: dict[tuple[str, str], list[Unsupported]] = {}
        for operator in self.operators:
            kinds.setdefault((operator.op, operator.reason), []).append(operator)
        names = {operator.op for operator in self.operators}
        rule = f"{_counted(len(names), 'operator')} in {_counted(len(self.operators), 'node')} cannot be exported"
        lines = [
            f"  {op} ({len(nodes)}x){': ' + reason if reason else ''}: "
            + ", ".join(f"{node.node} at {node.where or 'unknown source'}" for node in nodes)
            for (op, reason), nodes in kinds.items()
        ]
        hint = "rewrite these lines of the model, or add a lowering as exporters/README.md shows"
        super().__init__("\n".join([sentence("export", rule, hint=hint), *lines]))


def describe(error: BaseException, text: str | None = None) -> str:
    """Returns one line about an exception that foreign code raised: its type, what it says, and the innermost line outside the frameworks.

    Of a text that holds a traceback itself, as TensorFlow's do, only what follows the traceback is repeated.

    Args:
        error: the exception.
        text: what it says, if not ``str(error)``.
    """
    kind, lines = type(error).__name__, (str(error) if text is None else text).splitlines()
    frames = [(frame.filename, str(frame.lineno)) for frame in traceback.extract_tb(error.__traceback__)]
    if inner := [index for index, line in enumerate(lines) if re.match(r' +File ".*", line \d+', line)]:
        frames += [re.findall(r'File "(.*)", line (\d+)', lines[index])[0] for index in inner]
        depth = _depth(lines[inner[-1]])
        lines = list(itertools.dropwhile(lambda line: _depth(line) > depth or not line.strip(), lines[inner[-1] + 1 :]))
    words = re.sub(r"\x1b\[\d*m", "", " ".join(" ".join(lines).split())).removeprefix(f"{kind}: ").partition(" [[{{")[0].rstrip(".")
    if len(words) > _LONGEST:
        words = words[:_LONGEST].rpartition(" ")[0] + " ..."
    own = [frame for frame in frames if not _is_foreign(frame[0])]
    place = f" at {os.path.basename(own[-1][0])}:{own[-1][1]}" if own else ""
    return f"{kind}{': ' + words if words else ''}{place}"


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _is_foreign(filename: str) -> bool:
    """True for code of a framework, of Python itself and of the exporters."""
    here, python = os.path.dirname(__file__) + os.sep, sysconfig.get_path("stdlib") + os.sep
    if filename.startswith(("<", here)) or "__autograph_generated" in filename:
        return True
    installed = re.search(r"[/\\]site-packages[/\\]([^/\\]+)", filename)
    return installed[1] in _FRAMEWORKS if installed else filename.startswith(python)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def import_framework(module: str, extra: str | None = None) -> ModuleType:
    """Imports a framework and returns it.

    Args:
        module: what to import, such as ``torch``.
        extra: name of the extra of rml-exec that installs it; the module's name if None.

    Raises:
        MissingFrameworkError: it is not installed; the message says how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingFrameworkError.of(
            f"export with {module}", f"{module} must be installed", str(error), hint=f"pip install rml-exec[{extra or module}]"
        ) from error
