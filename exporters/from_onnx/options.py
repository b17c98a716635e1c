"""Sizes of inputs as a command line gives them."""

from __future__ import annotations

import re

from exporters.errors import ExportError

__all__ = ["Size", "parse_input_shape", "parse_size"]

Size = int | tuple[int, int | None]
"""A size that is fixed, or the smallest and the largest size (None: any) of a dim that stays open."""


def parse_size(text: str) -> tuple[str, Size]:
    """Returns name and size of ``--dim batch=1`` or ``--dim batch=1..64``.

    Raises:
        ExportError: another form, or an empty range.
    """
    match = re.fullmatch(r"(.+)=(\d+)(\.\.(\d+)?)?", text)
    if not match:
        raise ExportError.of("--dim", "must be NAME=SIZE or NAME=LOW..HIGH", repr(text), hint="batch=1, or batch=1..64")
    low, high = int(match[2]), int(match[4]) if match[4] else None
    if match[3] and (low < 1 or (high is not None and high < low)):
        raise ExportError.of("--dim", "the range must not be empty and begin at 1 or above", repr(text))
    return match[1], (low, high) if match[3] else low


def parse_input_shape(text: str) -> tuple[str, tuple[int | str, ...]]:
    """Returns name and shape of ``--input-shape x=1,3,224,224``; a dim that is a name stays open.

    Raises:
        ExportError: another form.
    """
    name, equals, shape = text.rpartition("=")
    dims = [dim.strip() for dim in shape.split(",")] if shape else []
    if not equals or not name or not all(re.fullmatch(r"\d+|[A-Za-z_]\w*", dim) for dim in dims):
        raise ExportError.of("--input-shape", "must be NAME=SIZE,SIZE,...", repr(text), hint="x=1,3,224,224")
    return name, tuple(int(dim) if dim.isdecimal() else dim for dim in dims)
