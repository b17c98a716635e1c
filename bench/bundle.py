"""``bench_frameworks bundle`` and ``verify-bundle``: everything that a table follows from in one directory, and the proof that it does."""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import rml_exec
from bench.fingerprint import fingerprint
from bench.recompute import flags_differ, recompute
from bench.records import CellRecord
from bench.report import load_renderer
from bench.results import blocks_path
from bench.stored import Stored, read_results, stored_lines
from rml_exec.command import run_command
from rml_exec.errors import InputError

__all__ = ["bundle_main", "differences", "verify_main", "write_bundle"]

_RESULTS, _SUMS, _ABOUT = "results.jsonl", "SHA256SUMS", "environment.json"
_REPORTS = {"report.txt": "table", "report.md": "markdown", "report.html": "html", "report.json": "json", "report.csv": "csv"}
_FILES = {_RESULTS, blocks_path(Path(_RESULTS)).name, _ABOUT, "README.md", "record_schema.json", *_REPORTS}
"""All there may be in a bundle besides the hashes."""

_README = """\
# Results of bench_frameworks

| file | what it is |
|---|---|
| `results.jsonl` | one record per cell: a model on an arm; `record_schema.json` describes every field |
| `results.jsonl.blocks.jsonl` | the raw data: every timed call of every block, with the canaries around it |
| `environment.json` | machines, versions, options of arms and harness, hashes of models and inputs, and the release that wrote all this |
| `report.*` | the tables that follow from them |
| `SHA256SUMS` | for `sha256sum --check SHA256SUMS` |

With rml-exec installed (`pip install rml-exec[bench]`; no framework is needed, and nothing is measured):

```sh
bench_frameworks report results.jsonl --details   # draws the tables again
bench_frameworks verify-bundle .                  # with the same release: computes every number again from the raw data and says which differ
```
"""


def bundle_main(arguments: Sequence[str]) -> int:
    """Runs ``bench_frameworks bundle``."""
    parser = argparse.ArgumentParser(
        prog="bench_frameworks bundle",
        description="Packs results, raw blocks, environment, options, hashes and tables into a directory from which anyone can draw and check "
        "every table without measuring anything.",
        epilog="exit codes: 0 ok, 2 bad usage or input",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="must not exist yet")
    parser.add_argument("results", type=Path, metavar="FILE", nargs="+", help="results file, with its block data beside it")
    options = parser.parse_args(arguments)
    return run_command("bench_frameworks bundle", lambda: write_bundle(options.directory, options.results))


def write_bundle(directory: Path, results: Sequence[Path]) -> int:
    """Writes a bundle and returns 0. The directory appears when it is complete.

    Raises:
        InputError: the directory exists, a file cannot be read, or a record with numbers has no block data.
    """
    if directory.exists():
        raise InputError.of(str(directory), "must not exist yet; nothing is written over")
    stored = [read_results(path, blocks=True) for path in results]
    for of in stored:
        if not of.records:
            raise InputError.of(str(of.path), "must hold at least one record", "none")
        bare = [record.cell for record in of.records if (record.status == "ok" or record.median_ms is not None) and of.of(record) is None]
        if bare:
            hint = f"put the file of blocks beside it as {blocks_path(of.path).name}"
            raise InputError.of(str(of.path), "needs the raw block data of every cell", f"none for {', '.join(bare[:3])}", hint=hint)
    directory.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=directory.parent, prefix=f".{directory.name}."))
    try:
        _fill(work, stored)
        work.chmod(0o755)
        work.rename(directory)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    return 0


def _fill(directory: Path, stored: Sequence[Stored]) -> None:
    records = [record for of in stored for record in of.records]
    (directory / _RESULTS).write_text("".join(record.to_json() + "\n" for record in records), encoding="utf-8")
    with blocks_path(directory / _RESULTS).open("w", encoding="utf-8") as file:
        for of in stored:
            runs = {record.run for record in of.records}
            for (run, cell), found in of.blocks.items():
                for block, flagged in zip(found.blocks, found.flags, strict=True):
                    if run in runs:
                        file.write(json.dumps({"run": run, "cell": cell, **asdict(block), "flagged": flagged}) + "\n")
    for name, text in _texts(records):
        (directory / name).write_text(text, encoding="utf-8")
    sums = "".join(f"{_sha256(path)}  {path.name}\n" for path in sorted(directory.iterdir()))
    (directory / _SUMS).write_text(sums, encoding="utf-8")


def _about(records: Sequence[CellRecord]) -> dict[str, Any]:
    """Returns what all records together say about machines, options and models, each once."""

    def distinct(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [json.loads(text) for text in dict.fromkeys(json.dumps(value, sort_keys=True) for value in values)]

    hashes = ("graph_sha256", "weights_sha256", "inputs_sha256")
    versions = [
        {"framework": r.framework, "version": r.framework_version, "setup": r.setup, "options": r.options}
        for r in records
        if r.framework_version
    ]
    return {
        "release": rml_exec.__version__,
        "machines": distinct([record.environment for record in records]),
        "arms": distinct(versions),
        "harness": distinct([{**record.settings, "order": record.order, "seed": record.seed} for record in records]),
        "models": distinct([{"model": record.model, **{name: getattr(record, name) for name in hashes}} for record in records]),
    }


def _texts(records: Sequence[CellRecord]) -> Iterator[tuple[str, str]]:
    """Yields name and text of every file that follows from the records and the release."""
    yield _ABOUT, json.dumps(_about(records), indent=1) + "\n"
    yield "README.md", _README
    yield "record_schema.json", Path(__file__).with_name("record_schema.json").read_text(encoding="utf-8")
    renderer = load_renderer()
    for name, form in _REPORTS.items():
        target = io.StringIO()
        renderer.render(records, form, target, details=True)
        yield name, target.getvalue()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verify_main(arguments: Sequence[str]) -> int:
    """Runs ``bench_frameworks verify-bundle``."""
    parser = argparse.ArgumentParser(
        prog="bench_frameworks verify-bundle",
        description="Computes medians, percentiles, ratios, intervals and verdicts of a bundle again from its raw blocks, draws its tables again, "
        "and says what differs. Errors against the golden, costs of the start and memory have no raw data; their records are protected by hashes.",
        epilog="exit codes: 0 everything follows from the raw data, 1 something differs, 2 no bundle",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="made by bench_frameworks bundle")
    options = parser.parse_args(arguments)
    return run_command("bench_frameworks verify-bundle", lambda: _verify(options.directory))


def _verify(directory: Path) -> int:
    if not (directory / _SUMS).is_file():
        got = f"no {_SUMS} in it" if directory.is_dir() else "no such directory"
        raise InputError.of(str(directory), "must be a bundle, as bench_frameworks bundle makes it", got)
    stored = read_results(directory / _RESULTS, blocks=True)
    if not stored.records:
        raise InputError.of(str(directory), "must be a bundle, as bench_frameworks bundle makes it", f"no record in {_RESULTS}")
    found, numbers = differences(directory, stored)
    for sentence in found:
        print(sentence)
    blocks = sum(len(cell.blocks) for cell in stored.blocks.values())
    print(
        f"{len(stored.records)} records, {numbers} numbers computed again from {blocks} blocks, {len(_REPORTS)} reports drawn again: ",
        end="",
    )
    print(f"{len(found)} differ" if found else "all agree")
    return 1 if found else 0


def differences(directory: Path, stored: Stored) -> tuple[list[str], int]:
    """Returns one sentence per thing in a bundle that does not follow from its raw data, and how many numbers were computed again."""
    found = [*_changed_files(directory), *_odd_blocks(directory, stored)]
    numbers = 0
    again = []
    for line, record in enumerate(stored.records, 1):
        where = f"{_RESULTS}: line {line}: {record.cell}"
        fields: dict[str, Any] = {"fingerprint": fingerprint(record)}
        if record.status == "ok" or record.median_ms is not None:
            try:
                computed = recompute(record, stored)
            except (ValueError, ArithmeticError, LookupError) as error:
                computed = None
                found.append(f"{where}: cannot be computed again from its blocks: {error}")
            else:
                if computed is None:
                    found.append(f"{where}: has no raw blocks that its numbers could follow from")
            fields |= computed or {}
            numbers += len(computed or {})
        for name, value in fields.items():
            if not _equal(getattr(record, name), value):
                source = "record" if name == "fingerprint" else "blocks"
                found.append(f"{where}: {name}: recorded {getattr(record, name)}, from the {source} {value}")
        again.append(replace(record, **fields))
    for run in dict.fromkeys(record.run for record in stored.records):
        found += flags_differ([record for record in stored.records if record.run == run], stored)
    return found + list(_changed_texts(directory, again)), numbers


def _equal(recorded: Any, computed: Any) -> bool:
    """Returns whether two values agree, but for the last digits, which another NumPy may round otherwise."""
    if isinstance(recorded, int | float) and isinstance(computed, int | float):
        return math.isclose(recorded, computed, rel_tol=1e-9, abs_tol=1e-12)
    return bool(recorded == computed)


def _changed_files(directory: Path) -> Iterator[str]:
    try:
        lines = (directory / _SUMS).read_text(encoding="utf-8").splitlines()
        sums = {name: digest for digest, name in (line.split("  ", 1) for line in lines)}
    except (OSError, ValueError) as error:
        raise InputError.of(str(directory), "must be a bundle", f"no readable {_SUMS}") from error
    present = {path.name for path in directory.iterdir()} - {_SUMS}
    for name in sorted(present | set(sums) | _FILES):
        if name not in _FILES:
            yield f"{name}: is not part of the bundle"
        elif not (directory / name).is_file():
            yield f"{name}: is missing"
        elif sums.get(name) != _sha256(directory / name):
            yield f"{name}: was changed after the bundle was made" if name in sums else f"{name}: has no hash in {_SUMS}"


def _odd_blocks(directory: Path, stored: Stored) -> Iterator[str]:
    """Yields what is wrong with the lines of blocks besides their numbers: a bundle has every block of its records once, and no other."""
    name = blocks_path(directory / _RESULTS).name
    if (directory / name).is_file():
        seen = Counter((line["run"], line["cell"], line["round"]) for line in stored_lines(directory / _RESULTS))
        for (_, cell, number), times in seen.items():
            if times > 1:
                yield f"{name}: {cell}: has round {number} {times} times"
    known = {(record.run, record.cell) for record in stored.records}
    for key in stored.blocks:
        if key not in known:
            yield f"{name}: {key[1]}: has blocks but no record of their run"


def _changed_texts(directory: Path, records: Sequence[CellRecord]) -> Iterator[str]:
    """Yields the first line of every file that this release would write otherwise for records whose numbers are those of the blocks."""
    for name, text in _texts(records):
        try:
            printed = (directory / name).read_bytes().decode(errors="replace").split("\n")
        except OSError:
            continue  # said already
        for number, (one, other) in enumerate(zip_longest(printed, text.split("\n"), fillvalue=""), 1):
            if one != other:
                yield f"{name}: line {number}: printed {one.strip()!r}, drawn again by rml-exec {rml_exec.__version__} {other.strip()!r}"
                break
