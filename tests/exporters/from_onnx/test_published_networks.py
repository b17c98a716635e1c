"""Networks that packages carry as ONNX files, against ONNX Runtime: silero-vad frame by frame, basic-pitch also against its SavedModel.

Both packages are needed without their dependencies, which an extra cannot say: ``pip install --no-deps silero-vad basic-pitch``.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnxruntime as ort

from exporters.from_onnx import InferenceSession, SessionOptions
from rml_exec import Executor, load_graph
from rml_exec.ir.golden import read_golden

pytestmark = pytest.mark.onnx

FRAMES = 100


def folder_of(package: str) -> Path:
    """Returns the folder of a package that cannot be imported: what it imports is not installed."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed; no extra can ask for it: pip install --no-deps {package.replace('_', '-')}")
    return Path(found.origin).parent


def sessions(path: Path) -> tuple[InferenceSession, ort.InferenceSession]:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return InferenceSession(path, SessionOptions(1)), ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def voice(rate: int, size: int) -> np.ndarray:
    """Returns sung syllables: a gliding pitch with overtones that comes and goes, in noise."""
    seconds = np.arange(size) / rate
    phase = 2 * np.pi * np.cumsum(160 + 40 * np.sin(2 * np.pi * 0.9 * seconds)) / rate
    sung = sum(np.sin(k * phase) / k for k in range(1, 20)) * (np.sin(2 * np.pi * 1.3 * seconds) > 0)
    return (0.2 * sung + 0.01 * np.random.default_rng(0).standard_normal(size)).astype(np.float32)


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("silero_vad", 16000),
        ("silero_vad", 8000),
        ("silero_vad_half", 16000),
        ("silero_vad_16k_op15", 16000),
        ("silero_vad_16k_sequence", 16000),
        ("silero_vad_op18_ifless", 16000),
        ("silero_vad_op18_ifless", 8000),
        ("silero_vad_openvino_16k", 16000),
    ],
)
def test_silero_vad_follows_onnxruntime_with_its_state_fed_back(name: str, rate: int) -> None:
    path = folder_of("silero_vad") / "data" / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"this version of silero-vad has no {path.name}")
    new, old = rate // 1000 * 32, rate // 1000 * 4  # samples of a frame, and those of the frame before that it sees again
    audio = np.pad(voice(rate, FRAMES * new), (old, 0))
    ours, theirs = sessions(path)
    inputs = {arg.name: arg.shape for arg in theirs.get_inputs()}
    zeros = {
        key: np.zeros([size if isinstance(size, int) else 1 for size in inputs[key]], np.float32)
        for key in inputs.keys() & {"state", "h", "c"}
    }
    constant = {"sr": np.array(rate, np.int64)} if "sr" in inputs else {}
    states, probabilities = [zeros, zeros], []
    for index in range(FRAMES):
        frame = audio[None, index * new : index * new + new + old]
        results = [session.run(None, {"input": frame, **state, **constant}) for session, state in zip((ours, theirs), states, strict=True)]
        for got, want in zip(*results, strict=True):
            assert (got.dtype, got.shape) == (want.dtype, want.shape)
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        states = [dict(zip(("state",) if "state" in zeros else ("h", "c"), result[1:], strict=True)) for result in results]
        probabilities.append(results[0][0].item())
    assert max(probabilities) - min(probabilities) > 0.1


@pytest.mark.slow
def test_basic_pitch_gives_the_same_from_its_onnx_file_and_its_saved_model(tmp_path: Path) -> None:
    path = folder_of("basic_pitch") / "saved_models" / "icassp_2022" / "nmp.onnx"
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("TensorFlow is not installed")
    command = [sys.executable, "-m", "exporters", "--models", "tf_basic_pitch", "--out", str(tmp_path)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    golden = read_golden(tmp_path / "tf_basic_pitch.golden.safetensors")
    inputs = {name: np.array(array) for name, array in golden.inputs.items()}
    from_tf = Executor.create(load_graph(tmp_path / "tf_basic_pitch")).run(inputs)
    ours, theirs = sessions(path)
    names = [arg.name for arg in ours.get_outputs()]
    feed = {ours.get_inputs()[0].name: inputs["audio"]}
    from_onnx, by_ort = (dict(zip(names, session.run(names, feed), strict=True)) for session in (ours, theirs))
    same = {"StatefulPartitionedCall:0": "contour", "StatefulPartitionedCall:1": "note", "StatefulPartitionedCall:2": "onset"}
    assert sorted(same) == sorted(names)
    for name, saved in same.items():
        assert np.ptp(from_onnx[name]) > 0.3
        np.testing.assert_allclose(from_onnx[name], by_ort[name], rtol=0, atol=5e-6)
        np.testing.assert_allclose(from_onnx[name], from_tf[saved], rtol=0, atol=5e-6)
        np.testing.assert_allclose(from_onnx[name], golden.outputs[saved], rtol=0, atol=2e-4)
