"""Results files that are read again: their records, and the raw block data beside them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from bench.cells import Block
from bench.records import CellRecord, read_records
from bench.results import blocks_path
from rml_exec.errors import InputError

__all__ = ["CellBlocks", "Stored", "group_blocks", "read_results", "stored_lines"]


@dataclass(frozen=True, slots=True)
class CellBlocks:
    """The blocks of one cell in one run, and which of them were flagged as polluted."""

    blocks: list[Block]
    flags: list[bool]


@dataclass(frozen=True, slots=True)
class Stored:
    """A results file.

    Attributes:
        path: where it is.
        records: all of them, in their order.
        blocks: by ``(run, cell)``; of a run that was killed there may be some without a record.
        block_files: the files they are from.
    """

    path: Path
    records: list[CellRecord]
    blocks: dict[tuple[str, str], CellBlocks]
    block_files: list[Path]

    def of(self, record: CellRecord, framework: str | None = None) -> CellBlocks | None:
        """Returns the blocks of a record, or those of another arm that was measured beside it; None if there are none."""
        cell = record.cell if framework is None else replace(record, framework=framework).cell
        return self.blocks.get((record.run or "", cell))


def read_results(path: Path, *, blocks: bool) -> Stored:
    """Returns what a results file holds.

    Args:
        path: the file.
        blocks: whether the block data, which may be large, are read too.

    Raises:
        InputError: there is no such file, or it holds something else.
    """
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            records = read_records(file)
    except (OSError, ValueError, RecursionError) as error:
        said = error.strerror if isinstance(error, OSError) else error
        raise InputError.of(str(path), "must be a file of records, as --results writes it", said) from error
    for number, record in enumerate(records, 1):
        _check_record(f"{path}: line {number}", record)
    named = [path.with_name(Path(record.blocks_file).name) for record in records if record.blocks_file]
    found = [file for file in dict.fromkeys((blocks_path(path), *named)) if file.is_file()] if blocks else []
    return Stored(path, records, group_blocks(line for file in found for line in _lines(file)), found)


def stored_lines(path: Path) -> Iterable[dict[str, Any]]:
    """Yields the lines of block data beside a results file that is being written."""
    return _lines(blocks_path(path))


def group_blocks(lines: Iterable[Mapping[str, Any]]) -> dict[tuple[str, str], CellBlocks]:
    """Returns the block data of lines as :class:`bench.results.ResultsFile` takes them, by run and cell; a block that comes twice counts once."""
    found: dict[tuple[str, str], dict[int, tuple[Block, bool]]] = {}
    for line in lines:
        found.setdefault((line["run"], line["cell"]), {})[line["round"]] = _block(line), line["flagged"]
    return {
        key: CellBlocks([block for block, _ in rounds.values()], [flag for _, flag in rounds.values()]) for key, rounds in found.items()
    }


_TYPES = {
    "str": "a string", "int": "a whole number", "float": "a number", "bool": "true or false", "list[str]": "a list of strings",
    "list[int]": "a list of whole numbers", "dict[str, Any]": "an object of finite numbers and other values",
}  # fmt: skip
_LARGEST = 2**63
"""No number of a record or a block is as large; JSON has larger ones, and infinity."""


_NESTED: dict[str, dict[str, str]] = {
    "settings": {"canary_limit": "float", "cores": "list[int]", "supervisor_cores": "list[int]"},
    "environment": {"cores": "int", "load_average_1min": "float"},
}
"""Types of what is computed with inside the fields that are objects; the rest is only printed."""


def _number(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < _LARGEST


def _is(plain: str, value: Any, least: int = 0) -> bool:
    """Returns whether a value has a type, by its name; JSON itself has no NaN, but Python reads and writes one."""
    match plain:
        case "int":
            return _number(value, least)
        case "float":
            return _number(value, least) or (isinstance(value, float) and least <= value < _LARGEST)  # NaN fails every comparison
        case "list[int]":
            return isinstance(value, list) and all(map(_number, value))
        case "list[str]":
            return isinstance(value, list) and all(isinstance(text, str) for text in value)
        case "dict[str, Any]":
            return isinstance(value, dict) and all(math.isfinite(number) for number in _floats(value))
    return isinstance(value, {"str": str, "bool": bool}[plain])


def _floats(value: Any) -> Iterator[float]:
    """Yields every float inside a value of JSON."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _floats(inner)


def _check_record(where: str, record: CellRecord) -> None:
    """Raises InputError for a field of another type than the record's, which readers would stumble over or, worse, not."""
    for entry in fields(CellRecord):
        value, plain = getattr(record, entry.name), str(entry.type).removesuffix(" | None")
        if value is None and plain != entry.type:
            continue
        least = 1 if entry.name == "threads" else 0
        if not _is(plain, value, least):
            rule = f"{entry.name} must be {_TYPES[plain]}{f' from {least} on' * (plain in ('int', 'float'))}{' or null' * (plain != entry.type)}"
            raise InputError.of(where, rule, repr(value))
    for outer, names in _NESTED.items():
        for name, plain in names.items():
            if name in (found := getattr(record, outer)) and not _is(plain, found[name]):
                raise InputError.of(where, f"{outer}.{name} must be {_TYPES[plain]}", repr(found[name]))


_BLOCK_FIELDS = tuple(entry.name for entry in fields(Block))


def _block(line: Mapping[str, Any]) -> Block:
    before, after = line["canary_ns"]
    return Block(**{name: line[name] for name in _BLOCK_FIELDS if name in line} | {"canary_ns": (before, after)})


def _is_block(line: Mapping[str, Any]) -> bool:
    """Returns whether every value of a block has the type that computations need; a missing one is a KeyError."""
    block, ledger = _block(line), line.get("ledger", {})
    numbers = (
        block.round,
        block.position,
        block.start_ns,
        block.cpu_ns,
        *block.canary_ns,
        *(ledger[name] for name in _LEDGER if ledger != {}),
    )
    return (
        all(map(_number, numbers))
        and _number(block.wall_ns, least=1)
        and all(isinstance(found, list) and len(found) > 0 for found in (block.times_ns, block.inputs))
        and all(_number(time, least=1) for time in block.times_ns)
        and isinstance(ledger, dict)
        and isinstance(line["flagged"], bool)
        and isinstance(line["run"], str)
        and isinstance(line["cell"], str)
    )


_LEDGER = ("wall_ns", "cpu_ns", "outside_ns", "threads_seen", "throttled")
"""What :func:`bench.parity.judge` looks at."""


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, text in enumerate(file, 1):
            if not text.endswith("\n"):
                return  # as a killed run leaves it
            try:
                line = json.loads(text)
                good = _is_block(line)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                good = False
            if not good:
                raise InputError.of(f"{path}: line {number}", "must be the data of a block")
            yield line
