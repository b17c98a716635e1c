"""``python -m exporters``: exports models of the zoo. Exit codes: 0 all exported, 2 bad usage or a failed export, 5 no framework."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from exporters.bundle import is_finished
from exporters.models.zoo import all_models, export_model, get_model
from rml_exec.errors import RmlError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; the worst one if several models fail, for the others are exported all the same."""
    parser = argparse.ArgumentParser(prog="python -m exporters", description="Exports models of the zoo.")
    parser.add_argument("--models", help="comma-separated names (default: all)")
    parser.add_argument("--out", default="models/graphs", help="directory to write to (default: %(default)s)")
    parser.add_argument("--force", action="store_true", help="export again what is exported already")
    parser.add_argument("--list", action="store_true", help="show the zoo and stop")
    options = parser.parse_args(argv)
    if options.list:
        for model in all_models().values():
            print(f"{model.name:20} {model.framework:6} {model.description}")
        return 0
    try:
        names = list(all_models()) if options.models is None else [name.strip() for name in options.models.split(",")]
        models = [get_model(name) for name in names]
    except RmlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    frameworks: dict[str, list[str]] = {}
    for model in models:
        frameworks.setdefault(model.framework, []).append(model.name)
    if len(frameworks) == 1:
        return max(_export(model.name, options.out, options.force) for model in models)
    codes = []
    for group in frameworks.values():  # each framework in a process of its own: two in one disturb each other's threads and settings
        command = [sys.executable, "-m", "exporters", "--models", ",".join(group), "--out", options.out]
        codes.append(subprocess.run(command + ["--force"] * options.force, check=False).returncode)
    return max(codes, key=abs)


def _export(name: str, directory: str, force: bool) -> int:
    if not force and is_finished(Path(directory) / name):
        print(f"{name}: exported already", file=sys.stderr)
        return 0
    try:
        print(export_model(name, directory), file=sys.stderr)
    except RmlError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
