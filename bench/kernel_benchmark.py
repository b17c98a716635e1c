"""Speed of the native kernels against what the machine allows: ``python -m bench.kernel_benchmark``.

Blocks of calls of all rows are interleaved, each preceded by a measurement of its limits, so that load on the machine and changes of its clock
touch numerator and denominator alike; instruction sets and other libraries take their blocks of a row one after the other, forwards and
backwards in turn. A block's time is that of its median call; a row shows medians over its blocks. Weights are packed beforehand and stay the
same from call to call.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.kernel_arms import PEERS, ArmProcess, Block, installed_peers
from bench.kernel_cases import Case, all_cases
from bench.kernel_limits import LEVELS
from bench.kernel_report import Row, as_json, print_report, summary
from bench.machine import describe_machine
from rml_exec import _native
from rml_exec.command import run_command
from rml_exec.ir.weights import write_file
from rml_exec.runtime.isa import check_isa

__all__ = ["main", "measure"]


def measure(
    cases: Sequence[Case], isas: Sequence[str], threads: Sequence[int], *, peers: Sequence[str] = (), repeat: int, block_seconds: float
) -> tuple[list[Row], list[dict[str, Any]]]:
    """Returns one row per case, instruction set and thread count, from ``repeat`` interleaved blocks each; and the limits of each of the latter.

    Args:
        cases: what to measure.
        isas: names of instruction sets.
        threads: numbers of threads.
        peers: libraries to compare with, at one thread.
        repeat: rounds.
        block_seconds: length of a block.
    """
    cores = sorted(os.sched_getaffinity(0))
    blocks: dict[tuple[str, str, int], list[Block]] = {}
    theirs: dict[tuple[str, str], list[float]] = {}
    levels: dict[tuple[str, int], list[dict[str, float]]] = {}
    with ExitStack() as stack:
        arms = [ArmProcess(name, cores) for name in (*isas, *peers)]
        for arm in arms:
            stack.callback(arm.close)
        for turn in range(repeat):
            order = arms[::-1] if turn % 2 else arms
            for count in threads:
                for arm in arms[: len(isas)]:
                    levels.setdefault((arm.name, count), []).append(arm.levels(count))
                for case in cases:
                    for arm in order:
                        if arm.name in peers and count > 1:
                            continue
                        found = arm.block(case, count, block_seconds)
                        if isinstance(found, Block):
                            blocks.setdefault((case.name, arm.name, count), []).append(found)
                        elif found is not None:
                            theirs.setdefault((case.name, arm.name), []).append(found)
    rows = []
    for count in threads:
        for isa in isas:
            for case in cases:
                compared = {peer: theirs[case.name, peer] for peer in peers if count == 1 and (case.name, peer) in theirs}
                rows.append(summary(case, isa, count, blocks[case.name, isa, count], compared))
    limits = [{"isa": isa, "threads": count, **_medians(found)} for (isa, count), found in levels.items()]
    return rows, limits


def _medians(levels: Sequence[dict[str, float]]) -> dict[str, float]:
    """Returns the medians of peak and bandwidths, in GFLOP/s and GB/s."""
    return {name: round(statistics.median(level[name] for level in levels) / 1e9, 1) for name in ("peak", *LEVELS)}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.kernel_benchmark", description="Speed of the native kernels as a fraction of what the machine allows."
    )
    parser.add_argument("--filter", type=_pattern, default=re.compile(""), metavar="RE", help="rows whose 'kernel shape model' matches")
    parser.add_argument("--list", action="store_true", help="print the names of the rows and stop")
    parser.add_argument("--threads", default="1", metavar="N,...", help="thread counts (default: 1)")
    parser.add_argument(
        "--isa", default=_native.current_isa(), metavar="NAME,...", help="instruction sets, or 'all' (default: the current one)"
    )
    parser.add_argument(
        "--peers",
        nargs="?",
        const="installed",
        metavar="NAME,...",
        help=f"compare with {', '.join(PEERS)} on one thread (default: what is installed)",
    )
    parser.add_argument("--repeat", type=_positive(int), default=7, metavar="N", help="interleaved blocks per row (default: 7)")
    parser.add_argument("--block-ms", type=_positive(float), default=20, metavar="MS", help="length of a block (default: 20)")
    parser.add_argument("--json", metavar="FILE", help="write the report to a file as well; '-' is standard output, without tables")
    options = parser.parse_args(argv)
    return run_command("kernel_benchmark", lambda: _run(parser, options))


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"must be a regular expression: {error}") from None


def _positive(kind: Callable[[str], float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if not 0 < value < math.inf:
            raise argparse.ArgumentTypeError(f"must be above 0; got {text}")
        return value

    return parse


def _names(parser: argparse.ArgumentParser, option: str, text: str, known: Sequence[str]) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in known]:
        parser.error(f"{option}: must be among {', '.join(known)}; got {', '.join(unknown)}")
    return names


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    check_isa()
    available, installed = _native.isa_names(), installed_peers()
    isas = list(available) if options.isa == "all" else _names(parser, "--isa", options.isa, available)
    peers = installed if options.peers == "installed" else _names(parser, "--peers", options.peers, installed) if options.peers else []
    cores = len(os.sched_getaffinity(0))
    threads = [int(count) if count.isdigit() else 0 for count in options.threads.split(",")]
    if not all(1 <= count <= cores for count in threads):
        parser.error(f"--threads: must be in [1, {cores}], the cores this process may use; got {options.threads}")
    cases = [case for case in all_cases() if options.filter.search(case.name)]
    if not cases:
        parser.error(f"--filter: no row matches {options.filter.pattern!r}")
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    rows, limits = measure(cases, isas, threads, peers=peers, repeat=options.repeat, block_seconds=options.block_ms / 1e3)
    report = as_json(rows, limits, describe_machine())
    if options.json == "-":
        sys.stdout.write(report)
        return 0
    if options.json:
        with write_file(Path(options.json)) as file:
            file.write(report.encode())
    print_report(rows, limits)
    return 0


if __name__ == "__main__":
    sys.exit(main())
