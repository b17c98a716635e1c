import contextlib
import json
import mmap
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from rml_exec.errors import GraphFormatError
from rml_exec.ir.weights import Tensor, read_tensors, write_file, write_tensors
from rml_exec.types import DType, TensorType


def content(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(shape=(2,), begin=0, end=8, dtype="F32", **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end], **more}


EIGHT = bytes(8)


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"", "must begin with 8 bytes of header length; got 0 bytes"),
        (b"1234567", "must begin with 8 bytes"),
        (content(b"", length=2**64 - 1), "header must have at most"),
        (content(b"{}", length=3), "file ends inside its header"),
        (content(b"[]"), "header must be an object"),
        (content(b"{"), "header: must be JSON"),
        (content(b"\xff\xfe"), "header: must be JSON"),
        (content(b"[" * 100_000), "must be JSON"),
        (content(b'{"a": NaN}'), "NaN is not JSON"),
        (content(b'{"a": 1, "a": 2}'), "key 'a' stands twice"),
        (content({"__metadata__": {"a": 1}}), "__metadata__ must map strings to strings"),
        (content({"a": 3}), "tensor 'a' must have dtype, shape, data_offsets"),
        (content({"a": entry(extra=1)}, EIGHT), "tensor 'a' must have dtype, shape, data_offsets"),
        (content({"a": entry(dtype="F8_E5M2")}, EIGHT), "unknown dtype; got F8_E5M2"),
        (content({"a": entry(dtype=["F32"])}, EIGHT), "unknown dtype"),
        (content({"a": entry(shape=(-2,))}, EIGHT), "shape of tensor 'a' must be non-negative"),
        (content({"a": entry(shape=(True,))}, EIGHT), "shape of tensor 'a' must be non-negative"),
        (content({"a": entry(shape=(2.0,))}, EIGHT), "shape of tensor 'a' must be non-negative"),
        (content({"a": entry(begin=-8, end=0)}, EIGHT), "data_offsets of tensor 'a' must be two non-negative integers"),
        (content({"a": {**entry(), "data_offsets": [0]}}, EIGHT), "data_offsets of tensor 'a' must be two"),
        (content({"a": entry(begin=8, end=0)}, EIGHT), "must begin at byte 0"),
        (content({"a": entry(end=4)}, EIGHT), r"tensor 'a' is f32\[2\], 8 bytes; got data_offsets \[0, 4\]"),
        (content({"a": entry(shape=(2**62, 2**62), end=8)}, EIGHT), "tensor 'a' is f32"),
        (content({"a": entry(shape=(0, 2**62), end=8)}, EIGHT), "tensor 'a' is f32"),
        (content({"a": entry()}, bytes(7)), "file ends inside tensor 'a'"),
        (content({"a": entry()}, bytes(9)), "file must end after its last tensor"),
        (content({"a": entry(), "b": entry()}, bytes(16)), "tensor 'b' must begin at byte 8"),
        (content({"a": entry(), "b": entry(begin=4, end=12)}, bytes(12)), "tensor 'b' must begin at byte 8"),
        (content({"a": entry(), "b": entry(begin=12, end=20)}, bytes(20)), "tensor 'b' must begin at byte 8"),
        (content({"a": entry(dtype="BOOL")}, b"\x02" * 2 + bytes(6)), "8 bytes|2 bytes"),
        (content({"a": entry(dtype="BOOL", end=2)}, b"\x00\x02"), "bool elements must be 0 or 1"),
    ],
)
def test_malformed_files(file, message, tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(file)
    with pytest.raises(GraphFormatError, match=message) as caught:
        read_tensors(path)
    assert str(caught.value).startswith(str(path))
    with pytest.raises(GraphFormatError, match=message):
        read_tensors(file)


@given(st.binary(max_size=80), st.binary(max_size=16))
def test_any_bytes_give_tensors_or_a_format_error(header, data):
    with contextlib.suppress(GraphFormatError):
        read_tensors(content(header, data))


@given(st.data())
def test_every_damage_to_a_file_is_noticed_or_harmless(data):
    file = bytearray(content({"a": entry(), "b": entry(shape=(), begin=8, end=12)}, bytes(range(12))))
    file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
    try:
        tensors, _ = read_tensors(bytes(file))
    except GraphFormatError:
        return
    assert sum(tensor.type.nbytes for tensor in tensors.values()) == 12


def test_every_truncation_is_noticed():
    file = content({"a": entry(), "b": entry(shape=(), begin=8, end=12)}, bytes(range(12)))
    for length in range(len(file)):
        with pytest.raises(GraphFormatError):
            read_tensors(file[:length])


def test_missing_file(tmp_path):
    with pytest.raises(GraphFormatError, match=r"w.safetensors: cannot be read; got No such file"):
        read_tensors(tmp_path / "w.safetensors")


def all_dtypes() -> dict[str, Tensor]:
    found = {}
    for dtype in DType:
        for shape in ((), (0, 3), (3,), (2, 1, 3)):
            data = np.arange(int(np.prod(shape))).astype(dtype.numpy).reshape(shape)
            found[f"{dtype}:{shape} ümlaut"] = Tensor(TensorType(dtype, shape), data)
    return found


def test_round_trip_of_every_dtype(tmp_path):
    tensors = all_dtypes()
    write_tensors(tmp_path / "w", tensors, {"b": "2", "a": "é"})
    got, metadata = read_tensors(tmp_path / "w")
    assert metadata == {"a": "é", "b": "2"}
    assert set(got) == set(tensors)
    for key, tensor in got.items():
        assert tensor.type == tensors[key].type
        np.testing.assert_array_equal(tensor.data, tensors[key].data, strict=True)
        assert tensor.data.flags.aligned
        assert not tensor.data.flags.writeable


def test_the_bytes_do_not_depend_on_the_order(tmp_path):
    tensors = all_dtypes()
    write_tensors(tmp_path / "a", tensors, {"x": "1", "y": "2"})
    write_tensors(tmp_path / "b", dict(reversed(tensors.items())), {"y": "2", "x": "1"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_the_first_tensor_is_aligned_to_a_cache_line(tmp_path):
    write_tensors(tmp_path / "w", {"a": Tensor(TensorType(DType.F32, (3,)), np.ones(3, np.float32))})
    assert (8 + int.from_bytes((tmp_path / "w").read_bytes()[:8], "little")) % 64 == 0


def test_the_safetensors_library_reads_what_we_write_and_the_other_way_round(tmp_path):
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array(True),
        "c": np.zeros((0, 2), np.int64),
        "d": np.ones(3, np.float16),
    }
    write_tensors(tmp_path / "ours", {key: Tensor(TensorType.of(array), array) for key, array in arrays.items()}, {"k": "v"})
    for key, array in safetensors.numpy.load_file(tmp_path / "ours").items():
        np.testing.assert_array_equal(array, arrays[key], strict=True)
    safetensors.numpy.save_file(arrays, tmp_path / "theirs", {"k": "v"})
    tensors, metadata = read_tensors(tmp_path / "theirs")
    assert metadata == {"k": "v"}
    for key, array in arrays.items():
        np.testing.assert_array_equal(tensors[key].data, array, strict=True)


def owner(array: np.ndarray) -> object:
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.obj if isinstance(base, memoryview) else base.base
    return base


def test_tensors_are_views_of_the_mapped_file(tmp_path):
    write_tensors(tmp_path / "w", {"a": Tensor(TensorType(DType.F32, (3,)), np.ones(3, np.float32))})
    assert isinstance(owner(read_tensors(tmp_path / "w")[0]["a"].data), mmap.mmap)


def test_a_misaligned_tensor_is_copied():
    file = content({"a": entry(dtype="I8", shape=(1,), end=1), "b": entry(shape=(1,), begin=1, end=5)}, b"\x07" + np.float32(1.5).tobytes())
    tensors, _ = read_tensors(file)
    assert tensors["b"].data == np.float32(1.5)
    assert tensors["b"].data.flags.aligned
    assert not tensors["b"].data.flags.writeable


def write_half(path) -> None:
    with write_file(path) as file:
        file.write(b"half")
        raise RuntimeError("killed")


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError, match="killed"):
        write_half(path)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(GraphFormatError, match="cannot be written; got No such file"):
        write_half(tmp_path / "no" / "f")


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path):
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_bytes(b"old")
    link.symlink_to(target)
    with write_file(link) as file:
        file.write(b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as pool:
        read = pool.submit(pipe.read_bytes)
        with write_file(pipe) as file:
            file.write(b"through")
        assert read.result(10) == b"through"
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "target"]
