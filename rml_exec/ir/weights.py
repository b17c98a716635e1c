"""Reads and writes safetensors files. Reading maps the file: the arrays are read-only views of it, no tensor is read until it is used.

The layout (https://github.com/huggingface/safetensors, "Format"): 8 bytes of little-endian header length N, N bytes of JSON, then the
tensors without gap. Own code instead of the library's, because that one copies every tensor, knows no bf16 in NumPy and orders metadata at
random.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from rml_exec.errors import GraphFormatError
from rml_exec.types import DType, TensorType

__all__ = ["Tensor", "parse_json", "read_tensors", "release_pages", "write_file", "write_tensors"]

_MAX_HEADER = 100_000_000  # the limit of the safetensors library
_ALIGNMENT = 64  # of the first tensor; largest items first keeps the others aligned to their item size
_NAMES = {dtype: dtype.value.upper() for dtype in DType}  # f32 -> F32, bf16 -> BF16, bool -> BOOL
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """One tensor of a file. Its type is not that of the array alone: bf16 is carried as uint16."""

    type: TensorType
    data: np.ndarray


def read_tensors(source: str | os.PathLike[str] | bytes, where: str | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Returns the tensors by key, and the metadata, of a safetensors file (mapped) or of its bytes.

    Args:
        source: path or content.
        where: what to call the file in errors; the path when not given.

    Raises:
        GraphFormatError: a missing, truncated or otherwise malformed file.
    """
    if isinstance(source, bytes):
        return _parse(source, where or "weights")
    where = where or os.fspath(source)
    try:
        with open(source, "rb") as file:
            empty = os.fstat(file.fileno()).st_size == 0  # mmap refuses an empty file
            content = b"" if empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise GraphFormatError.of(where, "cannot be read", error.strerror) from None
    return _parse(content, where)


def _parse(content: bytes | mmap.mmap, where: str) -> tuple[dict[str, Tensor], dict[str, str]]:
    def check(rule_holds: bool, rule: str, got: object = None) -> None:
        if not rule_holds:
            raise GraphFormatError.of(where, rule, got, hint="the file is damaged or not a safetensors file")

    check(len(content) >= 8, "must begin with 8 bytes of header length", f"{len(content)} bytes")
    length = int.from_bytes(content[:8], "little")
    check(length <= _MAX_HEADER, f"must be a safetensors file: header must have at most {_MAX_HEADER} bytes", length)
    check(length <= len(content) - 8, "file ends inside its header", f"{len(content)} bytes, header needs {length + 8}")
    header = parse_json(content[8 : 8 + length], f"{where} header")
    check(isinstance(header, dict), "header must be an object", type(header).__name__)
    metadata = header.pop("__metadata__", {})
    check(_is_text_map(metadata), "__metadata__ must map strings to strings", metadata)

    base, expected = 8 + length, 0
    found: dict[str, Tensor] = {}
    for key, entry in header.items():
        tensor = f"tensor '{key}'"
        complete = isinstance(entry, dict) and set(entry) == {"dtype", "shape", "data_offsets"}
        check(complete, f"{tensor} must have dtype, shape, data_offsets", entry)
        check(isinstance(entry["dtype"], str) and entry["dtype"] in _DTYPES, f"{tensor} has an unknown dtype", entry["dtype"])
        check(_are_sizes(entry["shape"]), f"shape of {tensor} must be non-negative integers", entry["shape"])
        offsets = entry["data_offsets"]
        check(_are_sizes(offsets) and len(offsets) == 2, f"data_offsets of {tensor} must be two non-negative integers", offsets)
    # An empty tensor stands before the one that begins at the same place.
    for key, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        type_ = TensorType(_DTYPES[entry["dtype"]], tuple(entry["shape"]))
        begin, end = entry["data_offsets"]
        check(begin == expected, f"tensor '{key}' must begin at byte {expected}, where the one before it ends", begin)
        check(end - begin == type_.nbytes, f"tensor '{key}' is {type_}, {type_.nbytes} bytes", f"data_offsets [{begin}, {end}]")
        check(base + end <= len(content), f"file ends inside tensor '{key}'", f"{len(content)} bytes, tensor ends at {base + end}")
        found[key] = Tensor(type_, _view(content, base + begin, type_, f"{where}: tensor '{key}'"))
        expected = end
    check(base + expected == len(content), f"file must end after its last tensor, at {base + expected} bytes", f"{len(content)} bytes")
    return {key: found[key] for key in header}, metadata


def _view(content: bytes | mmap.mmap, offset: int, type_: TensorType, where: str) -> np.ndarray:
    data = np.frombuffer(content, type_.dtype.numpy, type_.size, offset).reshape(type_.shape)
    if type_.dtype is DType.BOOL and (data.view(np.uint8) > 1).any():
        raise GraphFormatError.of(where, "bool elements must be 0 or 1")  # NumPy's behaviour is undefined on others
    if not data.flags.aligned:  # other writers need not align; kernels want it
        data = data.copy()
        data.flags.writeable = False
    return data


def release_pages(data: np.ndarray) -> None:
    """Takes the pages of an array that is mapped from a file out of this process's memory; reading it brings them back. Others are left alone."""
    owner: Any = data
    while isinstance(owner, np.ndarray):
        owner = owner.base
    if isinstance(owner, memoryview):
        owner = owner.obj
    if isinstance(owner, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        start = data.__array_interface__["data"][0] - np.frombuffer(owner, np.uint8).__array_interface__["data"][0]
        begin = start - start % mmap.PAGESIZE
        owner.madvise(mmap.MADV_DONTNEED, begin, start + data.nbytes - begin)


def _is_text_map(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value)


def parse_json(content: bytes, where: str) -> Any:
    """Returns the document; stricter than ``json``: no NaN literals, no key twice in an object.

    Raises:
        GraphFormatError: with the line and column of the fault.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            keys = [key for key, _ in pairs]
            raise ValueError(f"key '{next(key for key in keys if keys.count(key) > 1)}' stands twice in one object")
        return found

    def refuse(literal: str) -> Any:
        raise ValueError(f"{literal} is not JSON")

    try:
        return json.loads(content.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    except RecursionError:
        raise GraphFormatError.of(where, "must be JSON", "too many levels of nesting") from None
    except ValueError as error:  # malformed UTF-8 and JSON alike
        raise GraphFormatError.of(where, "must be JSON", error, hint=f"the file has {len(content)} bytes; it may be truncated") from None


def write_tensors(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
    """Writes a safetensors file in one step; the same tensors and metadata give the same bytes, in whatever order they come.

    Raises:
        GraphFormatError: the file cannot be written; what stood there before is untouched.
    """
    order = sorted(tensors, key=lambda key: (-tensors[key].type.dtype.itemsize, key))
    header: dict[str, Any] = {"__metadata__": dict(sorted(metadata.items()))} if metadata else {}
    offset = 0
    for key in order:
        type_ = tensors[key].type
        header[key] = {"dtype": _NAMES[type_.dtype], "shape": list(type_.shape), "data_offsets": [offset, offset + type_.nbytes]}
        offset += type_.nbytes
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    with write_file(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for key in order:
            file.write(np.asarray(tensors[key].data, order="C").reshape(-1).view(np.uint8).data)


@contextmanager
def write_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Opens a file beside ``path`` that takes its place when the block ends well, and vanishes when it does not.

    A link stays and its target is replaced. What is no plain file (a device, a named pipe) is written to as it is.

    Raises:
        GraphFormatError: no such folder, no space, no permission.
    """
    if os.path.realpath(path).startswith("/proc/") or str(path).startswith(("/dev/std", "/dev/fd/")):
        raise GraphFormatError.of(str(path), "must be a file of its own, not an open stream of the process")
    path = Path(os.path.realpath(path))
    try:
        if path.exists() and not path.is_file():
            with open(path, "wb") as file:
                yield file
            return
        beside = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
        try:
            with open(beside, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # else a crash of the machine could leave the new name on an empty file
            os.replace(beside, path)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise GraphFormatError.of(str(path), "cannot be written", error.strerror or error) from None
