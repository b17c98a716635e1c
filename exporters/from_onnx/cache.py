"""The importer that ``rml_exec.load_graph`` and ``rml-graph-run`` find for ``.onnx`` files: each file is imported once.

What it was imported to lies in the user's cache, in a folder named by a hash of the file and of all that decides what becomes of it, one
folder in it for each state of the external data, with a golden that was checked and without. Such a folder is made under another name and
renamed when it is whole, and never changed from then on: others may be reading it. One that was damaged since is replaced. Nothing is ever
written beside the model.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.metadata
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from exporters import __version__
from exporters.errors import ExportError, import_framework
from rml_exec.errors import GraphFormatError
from rml_exec.ir.golden import Golden, graph_hashes, write_golden
from rml_exec.ir.weights import write_file
from rml_exec.loading import save_graph

if TYPE_CHECKING:
    from exporters.from_onnx.reading import Model

__all__ = ["cache_folder", "import_file"]

_MARK = "import.json"
_PART = ".part"


def cache_folder() -> Path:
    """Returns the folder of imported models: ``rml-exec/imports`` in ``XDG_CACHE_HOME``, by default ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return Path(base if os.path.isabs(base) else os.path.expanduser("~/.cache")) / "rml-exec" / "imports"


def import_file(path: str | os.PathLike[str], *, golden: bool = False) -> Path:
    """Returns the path prefix of what an ONNX file was imported to, now or at an earlier call.

    The golden beside it holds inputs, drawn once; with ``golden`` also the outputs that ONNX Runtime, or ONNX's reference evaluator, gives for
    them, and the graph was checked against these.

    Raises:
        RmlError: as :func:`exporters.from_onnx.export`, and where the cache cannot be written.
    """
    path = Path(path)
    home = cache_folder() / _key(path)
    folder = next((folder for folder in sorted(home.glob("*-*")) if _is_whole(folder, path.parent, golden)), None)
    return (folder or _imported(path, home, golden)) / path.stem


def _imported(path: Path, home: Path, golden: bool) -> Path:
    """Returns the folder in ``home`` that a file was imported to now."""
    import_framework("onnx")
    from exporters.from_onnx.reading import read_model

    model = read_model(path)
    names = model.external_files()
    try:
        files = _stamps(path.parent, names)
    except OSError as error:
        raise ExportError.of(f"{path}: external data", "must be readable", f"{error.filename}: {error.strerror}") from None
    stamp = hashlib.sha256(json.dumps(files).encode()).hexdigest()[:16]
    folder = home / f"{'checked' if golden else 'plain'}-{stamp}"
    try:
        home.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=_PART, dir=home, ignore_cleanup_errors=True) as work:
            made, damaged = Path(work, "made"), Path(work, "damaged")
            made.mkdir()
            _checked(model, made / path.stem) if golden else _unchecked(model, made / path.stem)
            own = _stamps(made, sorted(os.listdir(made)))
            with write_file(made / _MARK) as file:
                file.write(json.dumps({"path": os.path.abspath(path), "golden": golden, "files": files, "own": own}).encode())
            if not _is_whole(folder, path.parent, golden):  # else another process was faster
                with contextlib.suppress(FileNotFoundError):
                    os.rename(folder, damaged)
                with contextlib.suppress(FileExistsError):
                    os.rename(made, folder)
    except (OSError, GraphFormatError) as error:
        hint = "XDG_CACHE_HOME names another folder, python -m exporters --from onnx MODEL --out PREFIX needs none"
        raise ExportError.of(f"import of {path}", f"{home} must be writable", str(error).rstrip("."), hint=hint) from error
    return folder


def _checked(model: Model, prefix: Path) -> None:
    from exporters.from_onnx import export

    export(model, prefix)


def _unchecked(model: Model, prefix: Path) -> None:
    from exporters.from_onnx import import_with_inputs

    graph, inputs = import_with_inputs(model, name=prefix.name)
    save_graph(graph, prefix)
    write_golden(f"{prefix}.golden.safetensors", Golden(inputs, {}, {"framework": "onnx", **graph_hashes(prefix)}))


def _is_whole(folder: Path, beside: Path, golden: bool) -> bool:
    try:
        mark = json.loads((folder / _MARK).read_bytes())
        outside, own = (mark[name] == _stamps(place, mark[name]) for name, place in (("files", beside), ("own", folder)))
        return bool(outside and own and (mark["golden"] or not golden))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _stamps(folder: Path, names: Mapping[str, object] | list[str]) -> dict[str, list[int]]:
    """Returns size and time of the last change of files; they are too large to read them all at every start."""
    found = {}
    for name in names:
        stat = os.stat(folder / name)
        found[name] = [stat.st_size, stat.st_mtime_ns]
    return found


def _key(path: Path) -> str:
    """Returns a hash of a file's content and name, and of the code that imports it."""
    try:
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise ExportError.of(str(path), "cannot be read", error.strerror) from None
    return hashlib.sha256(content + path.stem.encode("utf-8", "surrogateescape") + _code()).hexdigest()[:32]


@functools.cache
def _code() -> bytes:
    try:
        installed = importlib.metadata.version("onnx")
    except importlib.metadata.PackageNotFoundError:
        installed = ""
    digest = hashlib.sha256(f"{__version__} {installed}".encode())
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.read_bytes())
    return digest.digest()
