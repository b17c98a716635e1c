"""``python -m exporters.from_onnx.backend_report``: ONNX's backend test suite, run on our :class:`Backend`, as Markdown tables.

The tests and their judge are those of the installed package onnx (``onnx.backend.test``); which of them are excluded, and why, is in
``backend_exclusions``. Excluded tests run too: one that passes is excluded wrongly.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from exporters.errors import ExportError, import_framework
from exporters.from_onnx.backend_exclusions import LOOSENED, reason_of
from rml_exec.command import run_command

__all__ = ["KINDS", "MARKS", "Outcome", "one_test_per_operator", "run_suite", "tables"]

KINDS = {
    "Node": "node",
    "Simple": "simple",
    "PyTorchConverted": "pytorch-converted",
    "PyTorchOperator": "pytorch-operator",
    "Real": "real (whole networks, weights of one number)",
}
"""The suite's kinds of tests: part of a class's name -> what to call it."""

MARKS = ("<!-- backend suite: begin -->", "<!-- backend suite: end -->")
"""What the tables stand between in a file."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one test.

    Attributes:
        kind: a key of :data:`KINDS`.
        name: the test's name, without the device.
        excluded: why it is excluded, None if it is not.
        problem: the end of its error, None if it passed.
    """

    kind: str
    name: str
    excluded: str | None
    problem: str | None


def run_suite(wanted: Callable[[str, str], bool] = lambda kind, name: True) -> Iterator[Outcome]:
    """Runs tests of the suite, and yields what becomes of each.

    Args:
        wanted: called with kind and name, says whether a test is to be run.

    Raises:
        MissingFrameworkError: onnx is not installed.
    """
    import_framework("onnx")
    from exporters.from_onnx.backend import Backend

    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, ONNX_MODELS=folder):
        warnings.simplefilter("ignore")  # the suite computes NaN and infinities on purpose
        from onnx.backend.test.runner import Runner

        runner = Runner(Backend, test_kwargs={test.name: {"atol": test.atol} for test in LOOSENED})
        for class_name, case in runner.test_cases.items():
            kind = re.fullmatch(r"OnnxBackend(\w+)ModelTest", class_name)
            for method in unittest.defaultTestLoader.getTestCaseNames(case):
                name = method.removesuffix("_cpu")
                if kind is not None and name != method and wanted(kind[1], name):
                    yield Outcome(kind[1], name, reason_of(name), _problem(case(method)))


def one_test_per_operator() -> set[str]:
    """Returns names of node tests: for every operator the first that is not excluded."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from onnx.backend.test.loader import load_model_tests

        found: dict[str, str] = {}
        for test in load_model_tests(kind="node"):
            if reason_of(test.name) is None:
                for node in test.model.graph.node:
                    found.setdefault(node.op_type, test.name)
    return set(found.values())


def _problem(test: unittest.TestCase) -> str | None:
    result = unittest.TestResult()
    test.run(result)
    found = [text for _, text in (*result.failures, *result.errors, *result.skipped)]
    return " ".join(found[0].strip().splitlines()[-1].split()) if found else None


def tables(outcomes: Iterable[Outcome]) -> str:
    """Returns two tables in Markdown: numbers per kind, and numbers per reason of exclusion."""
    import onnx

    counts: dict[str, Counter[str]] = {kind: Counter() for kind in KINDS}
    reasons: Counter[str] = Counter()
    for outcome in outcomes:
        counts[outcome.kind][_state(outcome)] += 1
        reasons.update([outcome.excluded] if outcome.excluded is not None else [])
    lines = [f"| onnx {onnx.__version__} | tests | passed | failed | excluded |", "|---|---|---|---|---|"]
    for kind, label in KINDS.items():
        count = counts[kind]
        lines.append(f"| {label} | {count.total()} | {count['passed']} | {count['failed']} | {count['excluded']} |")
    lines += ["", "| excluded for | tests |", "|---|---|"]
    lines += [f"| {reason} | {count} |" for reason, count in reasons.most_common()]
    lines += ["", "| compared with a larger absolute tolerance | atol | because |", "|---|---|---|"]
    lines += [f"| {test.name} | {test.atol:g} | {test.reason} |" for test in LOOSENED]
    return "\n".join(lines)


def _state(outcome: Outcome) -> str:
    return "excluded" if outcome.excluded is not None else "failed" if outcome.problem is not None else "passed"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables; exit codes 0 ok, 1 a test failed or is excluded wrongly, 2 bad usage, 5 onnx is missing, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m exporters.from_onnx.backend_report", description="ONNX's backend test suite, as Markdown tables."
    )
    parser.add_argument("--write", type=Path, metavar="FILE", help="put the tables into this file, between their marks, too")
    path = parser.parse_args(argv).write

    def run() -> int:
        text = _read(path) if path is not None else ""
        outcomes = list(run_suite())
        made = tables(outcomes)
        print(made, flush=True)
        if path is not None:
            begin, end = MARKS
            path.write_text(f"{text[: text.index(begin)]}{begin}\n{made}\n{text[text.index(end) :]}")
        failed = [outcome for outcome in outcomes if outcome.problem and not outcome.excluded]
        wrongly = [outcome for outcome in outcomes if outcome.excluded and not outcome.problem]
        for outcome in failed:
            print(f"{outcome.name} failed: {outcome.problem}", file=sys.stderr)
        for outcome in wrongly:
            print(f"{outcome.name} passed, but is excluded: {outcome.excluded}", file=sys.stderr)
        return 1 if failed or wrongly else 0

    return run_command("exporters.from_onnx.backend_report", run)


def _read(path: Path) -> str:
    """Returns the content of a file that has the marks."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ExportError.of(str(path), "cannot be read", str(error)) from None
    begin, end = MARKS
    if begin not in text or end not in text[text.index(begin) :]:
        raise ExportError.of(str(path), f"must hold the lines {begin} and {end}, which the tables stand between")
    return text


if __name__ == "__main__":
    sys.exit(main())
