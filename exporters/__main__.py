"""``python -m exporters``: exports models of the zoo, or a model of your own.

Exit codes: 0 all exported, 2 bad usage or a failed export, 5 a framework is not installed, 130 interrupted.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from exporters.bundle import ExportSummary, check_prefix, is_finished
from exporters.dims import parse_dim
from exporters.entry import build_entry, exits_raised
from exporters.errors import ExportError
from exporters.models.zoo import SIZES, all_models, export_model, get_model
from exporters.progress import shown_on
from exporters.to_onnx import OnnxSummary, to_onnx
from rml_exec.command import BAD_USAGE, run_command
from rml_exec.errors import RmlError

_ZOO = "models/graphs"

_QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "TORCH_LOGS": "-all", "JAX_LOGGING_LEVEL": "ERROR"}
"""What keeps the frameworks' own logs from standing around the one sentence that is said. A model's code imports its framework before the
exporter does, so it is set at the start, and with it the setting that makes TensorFlow's results those of every machine."""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m exporters",
        description="Exports models of the zoo (--models), or your own (--from and --entry, or an .onnx file): graph, weights and golden file.",
    )
    parser.add_argument("--list", action="store_true", help="show the zoo and stop")
    parser.add_argument("--out", metavar="PATH", help=f"directory for zoo models (default {_ZOO}), path without suffix for your own")
    parser.add_argument("--goldens", type=int, default=1, metavar="N", help="number of golden input sets (default %(default)s)")
    dim = "keep a dim symbolic: batch=1..64, tokens=2..128@1 or @ids.1,mask.1; may be repeated"
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=LOW..HIGH[@AXES]", help=dim)
    parser.add_argument("--seed", type=int, default=0, help="seed of drawn golden inputs (default %(default)s)")
    zoo = parser.add_argument_group("the zoo")
    zoo.add_argument("--models", help="comma-separated names, or all")
    zoo.add_argument("--size", choices=SIZES, default="full", help="tiny: the small twins that the tests use")
    zoo.add_argument("--batch", type=int, default=1, metavar="N", help="rows of the inputs (default %(default)s)")
    zoo.add_argument("--force", action="store_true", help="export again what is exported already")
    own = parser.add_argument_group("a model of your own")
    own.add_argument("--from", dest="framework", choices=("torch", "jax", "tf", "onnx"), help="what it is written in")
    own.add_argument("--entry", metavar="MODULE:FUNCTION", help="function that returns (model or function, example inputs)")
    own.add_argument("--saved-model", metavar="DIR", help="a TensorFlow SavedModel instead of --entry")
    own.add_argument("--signature", metavar="NAME", help="with --saved-model: which of its signatures (default: the only one)")
    own.add_argument("model", nargs="?", metavar="MODEL.onnx", help="with --from onnx: the file; --dim batch=1 fixes a dim of it")
    shape = "with --from onnx: the whole shape of an input: x=1,3,224,224; may be repeated"
    own.add_argument("--input-shape", action="append", default=[], metavar="NAME=SIZES", help=shape)
    golden = "with --from onnx: what gives the golden outputs: onnxruntime, reference, an .npz file or a test_data_set folder"
    own.add_argument("--golden-from", metavar="SOURCE", help=golden)
    own.add_argument("--name", help="name of the graph (default: the last part of --out)")
    out = parser.add_argument_group("the way out to ONNX")
    out.add_argument("--to-onnx", nargs=2, metavar=("PREFIX", "OUT.onnx"), help="write an exported graph as an ONNX file and check it")
    out.add_argument("--opset", type=int, help="version of the ONNX operator set, 17 or newer (default 21)")
    out.add_argument("--external-data", action="store_true", help="large weights in OUT.onnx.data beside it (above 1.5 GB always)")
    out.add_argument("--edge-cases", action="store_true", help="follow NaN and out-of-range indices where it costs nodes, too")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code; the worst one if several models fail, for the others are exported all the same."""
    parser = _parser()
    options = parser.parse_args(argv)
    if not (
        options.list or options.to_onnx or options.models or options.framework or options.entry or options.saved_model or options.model
    ):
        parser.error("says nothing to export: --models NAMES or all, --from with a model of your own, --to-onnx or --list")
    return run_command("exporters", lambda: _run(options))


def _run(options: argparse.Namespace) -> int:
    if options.list:
        for model in all_models().values():
            size = "" if model.parameters is None else f"{model.parameters / 1e6:8.2f} M"
            flops = "" if model.flops is None else f"{model.flops / 1e9:8.3f} GFLOP"
            print(f"{model.name:22} {model.framework:6} {size:>10} {flops:>14}  {model.description}")
        return 0
    if options.to_onnx:
        return _reported(Path(options.to_onnx[1]).name, lambda: _write_onnx(options))
    try:
        export_options = _export_options(options)
        if options.framework or options.entry or options.saved_model or options.model:
            _check_own(options)
            return _reported(options.name or Path(options.out).name, lambda: _export_own(options, export_options))
        names = list(all_models()) if options.models == "all" else [name.strip() for name in options.models.split(",")]
        models = [get_model(name, size=options.size, batch=options.batch) for name in names]
    except RmlError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    frameworks: dict[str, list[str]] = {}
    for model in models:
        frameworks.setdefault(model.framework, []).append(model.name)
    directory = options.out or _ZOO
    if len(frameworks) == 1:
        return max(_export_zoo(model.name, directory, options.force, export_options) for model in models)
    codes = []
    for group in frameworks.values():  # each framework in a process of its own: two in one disturb each other's threads and settings
        command = [sys.executable, "-m", "exporters", "--models", ",".join(group), "--out", directory]
        command += ["--force"] * options.force + [f"--dim={text}" for text in options.dim]
        command += [f"--{key}={export_options[key]}" for key in ("goldens", "seed") if key in export_options]
        codes.append(subprocess.run(command, check=False).returncode)
    return max(codes, key=abs)


def _export_options(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments for ``export`` that are not the default."""
    found: dict[str, Any] = {}
    if options.dim and options.framework != "onnx":
        found["dims"] = [parse_dim(text) for text in options.dim]
    if options.goldens != 1:
        found["goldens"] = options.goldens
    if options.seed != 0:
        found["seed"] = options.seed
    return found


def _check_own(options: argparse.Namespace) -> None:
    """Raises ExportError unless the options for a model of one's own are complete and fit together."""
    where = "a model of your own"
    if options.framework is None:
        raise ExportError.of(where, "needs --from torch, jax, tf or onnx")
    if (options.framework == "onnx") != (options.model is not None):
        raise ExportError.of(where, "--from onnx goes with the path of an .onnx file", f"--from {options.framework} and {options.model}")
    if options.framework != "onnx" and (options.input_shape or options.golden_from):
        raise ExportError.of(where, "--input-shape and --golden-from are for --from onnx", f"--from {options.framework}")
    if options.model is not None and (options.entry or options.saved_model):
        raise ExportError.of(where, "--entry and --saved-model are not for --from onnx: the file is the model")
    if options.model is None and (options.entry is None) == (options.saved_model is None):
        raise ExportError.of(where, "needs either --entry or --saved-model", "both" if options.entry else "neither")
    if options.signature is not None and options.saved_model is None:
        raise ExportError.of(where, "--signature is for --saved-model", f"--signature {options.signature}")
    if options.saved_model is not None and options.framework != "tf":
        raise ExportError.of(where, "--saved-model is for --from tf", f"--from {options.framework}")
    if options.out is None:
        raise ExportError.of(where, "needs --out, a path without suffix")
    check_prefix(options.out)
    if options.models is not None or options.size != "full" or options.batch != 1:
        raise ExportError.of(where, "has no --models, --size or --batch: its example inputs say it all")


def _export_own(options: argparse.Namespace, export_options: dict[str, Any]) -> ExportSummary:
    if options.framework == "onnx":
        return _export_onnx(options, export_options)
    exporter = importlib.import_module(f"exporters.from_{options.framework}")
    out = os.path.abspath(options.out)  # the model's code may change the directory
    if options.saved_model:
        model, inputs = exporter.open_saved_model(options.saved_model, options.signature)
    else:
        model, inputs = build_entry(options.entry)
    summary: ExportSummary = exporter.export(model, inputs, out, name=options.name, **export_options)
    return summary


def _export_onnx(options: argparse.Namespace, export_options: dict[str, Any]) -> ExportSummary:
    from exporters.from_onnx import export, parse_input_shape, parse_size

    if options.golden_from is None and importlib.util.find_spec("onnxruntime") is None:
        print(f"{options.out}: onnxruntime is not installed, so the golden comes from ONNX's own reference evaluator", file=sys.stderr)
    return export(
        options.model,
        options.out,
        golden_from=options.golden_from,
        name=options.name,
        dims=dict(parse_size(text) for text in options.dim),
        input_shapes=dict(parse_input_shape(text) for text in options.input_shape),
        **export_options,
    )


def _write_onnx(options: argparse.Namespace) -> OnnxSummary:
    prefix, path = options.to_onnx
    external = True if options.external_data else None
    return to_onnx(prefix, path, opset=options.opset, external_data=external, edge_cases=options.edge_cases)


def _export_zoo(name: str, directory: str, force: bool, export_options: dict[str, Any]) -> int:
    if not force and is_finished(Path(directory) / name, goldens=export_options.get("goldens", 1)):
        print(f"{name}: exported already", file=sys.stderr)
        return 0
    return _reported(name, lambda: export_model(name, directory, **export_options))


def _reported(name: str, export: Callable[[], ExportSummary | OnnxSummary]) -> int:
    """Runs an export and says on standard error how it ended; returns the exit code."""
    try:
        with shown_on(sys.stderr, name), exits_raised():
            summary = export()
    except RmlError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return error.exit_code
    except SystemExit as ended:
        print(f"{name}: export: the model's own code must return, it ended the process; got exit({ended.code!r}).", file=sys.stderr)
        return BAD_USAGE
    print(summary, file=sys.stderr)
    return 0


if __name__ == "__main__":
    os.environ.update({**_QUIET, **os.environ})
    logging.getLogger("tensorflow").setLevel(logging.ERROR)  # what it logs from Python
    sys.exit(main())
