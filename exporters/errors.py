"""What can go wrong in an export. Every error is one clear report and ends a command with its ``exit_code``."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType

from rml_exec.errors import RmlError, sentence

__all__ = ["ExportError", "MissingFrameworkError", "Unsupported", "UnsupportedOperatorsError", "import_framework"]


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
