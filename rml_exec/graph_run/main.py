"""The command ``rml-graph-run``: one model, one line of JSON on standard output, everything else on standard error."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from rml_exec.command import run_command
from rml_exec.graph_run.culprit import bisect_model
from rml_exec.graph_run.runner import RunOptions, run_model
from rml_exec.graph_run.show import SHOWN, show_data, show_text
from rml_exec.loading import enough_memory

__all__ = ["main"]


def _at_least(minimum: int) -> type:
    def parse(text: str) -> int:
        value = int(text)
        if value < minimum:
            raise argparse.ArgumentTypeError(f"must be a whole number of at least {minimum}; got {text}")
        return value

    parse.__name__ = "whole number"
    return parse  # type: ignore[return-value]


def _tolerance(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0; got {text}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="rml-graph-run",
        description="Runs one exported model and prints one line of JSON.",
        epilog="exit codes: 0 ok, 1 check failed or wrong step found, 2 bad usage, model or input, 5 unavailable on this machine, 130 interrupted",
    )
    parser.add_argument("model", metavar="MODEL", help="path prefix of an exported model, its .json, or a .onnx file")
    parser.add_argument(
        "--inputs",
        type=Path,
        metavar="FILE",
        help="inputs, and outputs to check against (default MODEL.golden.safetensors, else random inputs)",
    )
    parser.add_argument("--check", action="store_true", help="compare the outputs with the golden, under the golden's own tolerance")
    parser.add_argument("--rtol", type=_tolerance, metavar="R", help="relative tolerance instead of the golden's")
    parser.add_argument("--atol", type=_tolerance, metavar="A", help="absolute tolerance instead of the golden's")
    parser.add_argument("--bench", type=_at_least(1), default=0, metavar="N", help="time N runs")
    parser.add_argument("--warmup", type=_at_least(0), default=10, metavar="N", help="runs before the timed ones (default 10)")
    parser.add_argument("--threads", type=_at_least(1), metavar="N", help="threads (default RML_NUM_THREADS, else all the process may use)")
    parser.add_argument("--profile", action="store_true", help="time per kind of step, slowest first")
    parser.add_argument("--no-fuse", dest="fuse", action="store_false", help="turn every fusion off")
    parser.add_argument(
        "--numerics", choices=("fast", "exact"), default="fast", help="exact: IEEE, the same bits on every machine with FMA"
    )
    parser.add_argument("--bisect", action="store_true", help="find the first step that is off by more than rounding explains")
    parser.add_argument("--out", metavar="PREFIX", help="with --bisect: where to write that step as a model (default NAME.culprit)")
    parser.add_argument(
        "--show", choices=SHOWN, help="print the graph, the steps, the plan's actions or the memory plan instead of running"
    )
    parser.add_argument("--json", action="store_true", help="with --show: print JSON")
    parser.add_argument("--events", type=Path, metavar="FILE", help="write the event log of one profiled run, as JSON lines")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a trace of one profiled run, for Perfetto or chrome://tracing")
    return parser


def _not_taken(model: str, arguments: Sequence[str]) -> str:
    """Returns what is wrong with arguments that the command does not have: how a file is imported is another command's matter."""
    text = f"unrecognized arguments: {' '.join(arguments)}"
    if any(argument.startswith(("--dim", "--input-shape", "--golden-from", "--goldens", "--seed")) for argument in arguments):
        return f"{text} (python -m exporters --from onnx {model} --out PREFIX {' '.join(arguments)} takes them, then run PREFIX)"
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0 ok, 1 check failed or wrong step found, 2 bad usage, model or input, 5 unavailable,
    130 interrupted.
    """
    parser = _parser()
    known, rest = parser.parse_known_args(argv)
    if rest:
        parser.error(_not_taken(known.model, rest))
    arguments = vars(known)
    model, shown, as_json = arguments.pop("model"), arguments.pop("show"), arguments.pop("json")
    bisect, out = arguments.pop("bisect"), arguments.pop("out")
    options = RunOptions(**arguments)
    if as_json and shown is None:
        parser.error("--json goes with --show")
    if out is not None and not bisect:
        parser.error("--out goes with --bisect")
    measures = options.check or options.bench or options.profile or options.events or options.trace
    if shown is not None and (measures or bisect):
        parser.error("--show runs nothing: it does not go with --check, --bench, --profile, --bisect, --events or --trace")
    if bisect and measures:
        parser.error("--bisect does not go with --check, --bench, --profile, --events or --trace")
    if bisect:
        return run_command("rml-graph-run", lambda: _within_memory(model, lambda: _bisect(model, options, out)))
    return run_command("rml-graph-run", lambda: _within_memory(model, lambda: _run(model, shown, as_json, options)))


def _within_memory(model: str, run: Callable[[], int]) -> int:
    with enough_memory(model):
        return run()


def _bisect(model: str, options: RunOptions, out: str | None) -> int:
    found = bisect_model(model, options, out)
    print(found.to_text(), file=sys.stderr)
    print(found.to_json())
    return 0 if found.culprit is None else 1


def _run(model: str, shown: str | None, as_json: bool, options: RunOptions) -> int:
    if shown is not None:
        executor = options.create(model)
        print(json.dumps(show_data(executor, shown), indent=1) if as_json else show_text(executor, shown), end="\n" if as_json else "")
        return 0
    report = run_model(model, options)
    if options.threads is not None and report.threads < options.threads:
        print(f"rml-graph-run: runs on {report.threads} threads, all that this process may use", file=sys.stderr)
    if report.comparison is not None and report.comparison.reason:
        print(f"rml-graph-run: {model}: {report.comparison.reason}", file=sys.stderr)
    if report.remark:
        print(f"rml-graph-run: {model}: the golden proves little, for {report.remark}", file=sys.stderr)
    if report.drawn:
        print(f"rml-graph-run: {model}: has no golden, so its inputs are random numbers", file=sys.stderr)
    print(report.to_json())
    return 0 if report.passed else 1
