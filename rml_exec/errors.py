"""The one tree of exceptions, and the one sentence form they all use.

Every message reads ``where: rule; got values. Inputs: types. Hint: advice.`` and is built by :func:`sentence`, so that a user sees the same
shape whether a file, a graph, an input or a machine is at fault.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "GraphFormatError",
    "InputError",
    "IsaError",
    "KernelError",
    "PassError",
    "PlanError",
    "RmlError",
    "TypeInferenceError",
    "VerifyError",
    "sentence",
]


def sentence(where: str, rule: str, got: object = None, inputs: Mapping[str, object] | None = None, hint: str | None = None) -> str:
    """Returns one error message: ``where: rule; got values. Inputs: x=f32[2]. Hint: advice.``"""
    text = f"{where}: {rule}" + (f"; got {got}" if got is not None else "") + "."
    if inputs:
        text += " Inputs: " + " ".join(f"{name}={value}" for name, value in inputs.items()) + "."
    if hint:
        text += f" Hint: {hint.rstrip('.')}."
    return text


class RmlError(Exception):
    """Base of all errors raised on purpose. ``exit_code`` is what a command ends with when the error reaches it."""

    exit_code = 2

    @classmethod
    def of(cls, where: str, rule: str, got: object = None, inputs: Mapping[str, object] | None = None, hint: str | None = None) -> RmlError:
        """Returns the error whose message is :func:`sentence` of the arguments."""
        return cls(sentence(where, rule, got, inputs, hint))


class GraphFormatError(RmlError):
    """A graph, weights or golden file that does not follow the format."""


class VerifyError(RmlError):
    """A graph whose structure breaks a rule: a name used twice, a use before its definition, a missing constant."""


class TypeInferenceError(RmlError):
    """A node whose attributes or operand types its op does not allow, or whose recorded output type is not the inferred one."""


class PassError(RmlError):
    """A pass that left a graph which does not verify: a bug in rml_exec."""


class PlanError(RmlError):
    """Lifetime annotations that are incomplete or contradict the graph."""


class InputError(RmlError):
    """Inputs of a run that do not fit the graph, or options out of range."""


class KernelError(RmlError):
    """A step that failed while running; the executor stays usable."""

    exit_code = 1


class IsaError(RmlError):
    """An instruction set asked for by ``RML_ISA`` that this machine lacks."""

    exit_code = 5
