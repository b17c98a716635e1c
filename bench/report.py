"""``bench_frameworks report``: draws stored results, or exports them for other tools; nothing is measured, and no framework is needed."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from bench.exports import EXPORTS, write_exports
from bench.stored import read_results
from rml_exec.command import UNAVAILABLE, run_command
from rml_exec.errors import RmlError

__all__ = ["MissingLibraryError", "load_renderer", "main"]


class MissingLibraryError(RmlError):
    """The libraries that draw tables are not installed."""

    exit_code = UNAVAILABLE


def load_renderer() -> ModuleType:
    """Returns the module :mod:`reports.render`, which needs pandas and rich.

    Raises:
        MissingLibraryError: they are not installed.
    """
    try:
        return importlib.import_module("reports.render")
    except ImportError as error:
        raise MissingLibraryError(f"the table needs pandas and rich ({error}); pip install rml-exec[bench]") from error


def main(arguments: Sequence[str]) -> int:
    """Runs ``bench_frameworks report``."""
    parser = argparse.ArgumentParser(
        prog="bench_frameworks report",
        description="Draws the tables of stored results. Of several records of one cell the last one counts.",
        epilog="exit codes: 0 ok, 1 a cell does not match the golden, 2 bad usage or input",
    )
    parser.add_argument("results", type=Path, metavar="FILE", nargs="+", help="results file, as --results writes it")
    parser.add_argument("--format", choices=("table", "markdown", "csv", "json", "html"), default="table", help="default %(default)s")
    parser.add_argument(
        "--details", action="store_true", help="percentiles, whole cost, memory, break-even calls, options of arms, records"
    )
    parser.add_argument(
        "--export", nargs=2, action="append", default=[], metavar=("TOOL", "OUT"),
        help=f"write a file that a public tool reads, in place of the tables: {', '.join(EXPORTS)}; may be given several times",
    )  # fmt: skip
    options = parser.parse_args(arguments)
    return run_command("bench_frameworks report", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    stored = [read_results(path, blocks=bool(options.export)) for path in options.results]
    records = [record for of in stored for record in of.records]
    if options.export:
        write_exports(options.export, records, {key: cell for of in stored for key, cell in of.blocks.items()})
    else:
        load_renderer().render(records, options.format, sys.stdout, details=options.details)
    counted = {record.cell: record for record in records}.values()
    return 1 if any(record.status == "mismatch" for record in counted) else 0
