"""The JSON Schema of a record, made from the definition and the description of its fields.

``python -m bench.schema`` prints it; ``record_schema.json`` beside this file is that text, shipped for those who read records without this package.
``python -m bench.schema --markdown`` prints the table of fields in ``reports/README.md``.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from dataclasses import MISSING, fields
from typing import Any

from bench.records import SCENARIOS, SCHEMA_VERSION, SETUPS, VERDICTS, CellRecord

__all__ = ["record_schema", "record_table"]

_TYPES: dict[str, dict[str, Any]] = {
    "str": {"type": "string"}, "int": {"type": "integer"}, "float": {"type": "number"}, "bool": {"type": "boolean"},
    "list[str]": {"type": "array", "items": {"type": "string"}}, "dict[str, Any]": {"type": "object"},
}  # fmt: skip
_ENUMS: dict[str, tuple[str, ...]] = {
    "status": ("ok", "mismatch", "unavailable", "failed"), "check": ("pass", "fail"), "scenario": SCENARIOS, "setup": SETUPS,
    "verdict": VERDICTS, "order": ("random", "abba"), "precision": ("f32", "bf16", "tf32"),
}  # fmt: skip
_HASH = "^[0-9a-f]{64}$"
_PATTERNS = {"graph_sha256": _HASH, "weights_sha256": _HASH, "inputs_sha256": _HASH, "fingerprint": "^[0-9a-f]{16}$"}


def record_schema() -> dict[str, Any]:
    """Returns the schema of one line of a results file (draft 2020-12)."""
    described = _descriptions()
    properties = {entry.name: _property(entry.name, str(entry.type), described[entry.name]) for entry in fields(CellRecord)}
    properties["schema_version"] = {"const": SCHEMA_VERSION, "description": "Version of this schema."}
    needed = [entry.name for entry in fields(CellRecord) if entry.default is MISSING and entry.default_factory is MISSING]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "One line of a bench_frameworks results file: what happened in one cell",
        "description": "Times are wall time; units are in the names. Whatever is not known, not asked for or does not apply is null.",
        "type": "object",
        "required": [*needed, "schema_version"],
        "additionalProperties": False,
        "properties": properties,
    }


def record_table() -> str:
    """Returns the fields as a Markdown table: name, type, meaning."""
    lines = ["| field | type | meaning |", "|---|---|---|"]
    for name, found in record_schema()["properties"].items():
        kinds = found.get("type") or ("string or null" if None in found.get("enum", ()) else "string" if "enum" in found else "integer")
        kind = " or ".join(kinds) if isinstance(kinds, list) else kinds
        lines.append(f"| `{name}` | {kind} | {found['description'].replace('|', chr(92) + '|')} |")
    return "\n".join(lines) + "\n"


def _property(name: str, annotation: str, description: str) -> dict[str, Any]:
    plain = annotation.removesuffix(" | None")
    found = dict(_TYPES[plain])
    nullable = plain != annotation
    if name in _ENUMS:
        found = {"enum": [*_ENUMS[name], *([None] if nullable else [])]}
    elif nullable:
        found["type"] = [found["type"], "null"]
    if plain in ("int", "float"):
        found["minimum"] = 1 if name == "threads" else 0
    if name in _PATTERNS:
        found["pattern"] = _PATTERNS[name]
    return {**found, "description": description}


def _descriptions() -> dict[str, str]:
    """Returns the descriptions of the fields in the docstring of the record, as plain text."""
    text = inspect.getdoc(CellRecord) or ""
    found = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", text, re.MULTILINE)
    plain = {name: re.sub(r":\w+:`([^`]+)`|``([^`]+)``", r"\1\2", " ".join(described.split())) for name, described in found}
    return {name: re.sub(r"\bNone\b", "null", described) for name, described in plain.items()}


if __name__ == "__main__":
    print(record_table() if "--markdown" in sys.argv else json.dumps(record_schema(), indent=1))
