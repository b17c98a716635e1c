"""The fused attention kernel on sizes around its tiles and blocks, every kind of mask, on every instruction set of the machine."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rml_exec import Executor, isa_info
from rml_exec.loading import GraphBuilder
from rml_exec.runtime.reference import run_reference

KINDS = ("none", "bool", "additive", "causal")


def _attention(q_shape, k_shape, width, mask=None, mask_shape=(), **attrs):
    b = GraphBuilder("attention")
    q, k, v = b.input("q", "f32", q_shape), b.input("k", "f32", k_shape), b.input("v", "f32", (*k_shape[:-1], width))
    operands = [q, k, v, b.input("mask", "bool" if mask == "bool" else "f32", mask_shape) if mask in ("bool", "additive") else None]
    given = {"scale": 0.25, "mask": mask or "none", "fully_masked": "zero", "kv_groups": 1, "softcap": None, **attrs}
    b.output("y", b.add("attention", operands, **given))
    return b.build()


def _inputs(graph, seed=0):
    rng = np.random.default_rng(seed)
    arrays = {}
    for value in graph.inputs:
        drawn = rng.standard_normal(value.type.shape)
        if value.name == "mask":
            allowed = drawn > -0.5
            arrays["mask"] = allowed if str(value.type.dtype) == "bool" else np.where(allowed, drawn, -np.inf).astype(np.float32)
        else:
            arrays[value.name] = drawn.astype(np.float32)
    return arrays


def _check(graph, inputs):
    """Compares with the float64 reference; 1 and 2 threads, and in ``exact`` a row of queries alone, give the same bits."""
    want = run_reference(graph, inputs, precision="f64")["y"]
    for numerics in ("exact", "fast"):
        one, two = (Executor.create(graph, numerics=numerics, threads=threads) for threads in (1, 2))
        got = one.run(inputs)["y"]
        assert got.tobytes() == two.run(inputs)["y"].tobytes()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, equal_nan=True)
        assert "attention" in ",".join(step.kernel for step in one.steps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("length", "keys"), [(1, 1), (1, 197), (5, 15), (6, 16), (7, 17), (97, 63), (96, 64), (13, 65), (200, 129), (3, 1000), (0, 4), (4, 0)]
)
def test_sizes_around_tiles_and_blocks(length, keys, kind):
    graph = _attention((2, length, 24), (2, keys, 24), 20, kind, (length, keys))
    _check(graph, _inputs(graph))


@pytest.mark.parametrize(("depth", "width"), [(1, 1), (64, 64), (63, 65), (16, 130), (80, 7)])
def test_depths_and_widths(depth, width):
    graph = _attention((3, 11, depth), (3, 37, depth), width, "causal")
    _check(graph, _inputs(graph))


@pytest.mark.parametrize("kind", ["bool", "additive"])
@pytest.mark.parametrize(
    "shape", [(9, 33), (1, 33), (9, 1), (4, 9, 33), (2, 1, 1, 33), (2, 1, 9, 33), (1, 4, 9, 33), (2, 4, 1, 1), (1, 1, 1, 1)], ids=str
)
def test_masks_of_every_shape_that_broadcasts(shape, kind):
    graph = _attention((2, 4, 9, 16), (2, 4, 33, 16), 16, kind, shape)
    _check(graph, _inputs(graph))


def test_a_mask_with_three_batch_strides():
    graph = _attention((2, 3, 2, 9, 16), (2, 3, 2, 33, 16), 16, "additive", (2, 1, 2, 9, 33))
    _check(graph, _inputs(graph))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("softcap", [None, 2.5])
@pytest.mark.parametrize("length", [1, 10, 70])
def test_shared_keys_and_softcap(kind, softcap, length):
    graph = _attention((2, 6, length, 16), (2, 2, 40, 16), 16, kind, (2, 6, length, 40), kv_groups=3, softcap=softcap)
    _check(graph, _inputs(graph))


@pytest.mark.parametrize("fully_masked", ["zero", "nan", "uniform"])
@pytest.mark.parametrize("kind", ["bool", "additive"])
def test_rows_without_a_key(fully_masked, kind):
    graph = _attention((2, 9, 16), (2, 33, 16), 16, kind, (9, 33), fully_masked=fully_masked)
    inputs = _inputs(graph)
    inputs["mask"][3] = inputs["mask"][8] = False if kind == "bool" else -np.inf
    _check(graph, inputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(kind, value):
    graph = _attention((2, 9, 16), (2, 33, 16), 16, kind, (9, 33))
    inputs = _inputs(graph)
    inputs["q"][0, 4, 3] = inputs["k"][1, 20, 7] = inputs["v"][1, 5, 2] = value
    want = run_reference(graph, inputs, precision="f64")["y"]
    got = Executor.create(graph, numerics="exact").run(inputs)["y"]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_allclose(got[np.isfinite(want)], want[np.isfinite(want)], rtol=1e-5, atol=1e-5)


def test_a_query_alone_has_the_bits_it_has_among_others():
    graph, alone = (_attention((4, length, 64), (4, 197, 64), 64) for length in (131, 1))
    inputs = _inputs(graph)
    got = Executor.create(graph, numerics="exact").run(inputs)["y"]
    row = Executor.create(alone, numerics="exact").run({**inputs, "q": inputs["q"][:, 100:101]})["y"]
    assert got[:, 100:101].tobytes() == row.tobytes()


def test_no_score_matrix_in_memory():
    graph = _attention((1, 2048, 64), (1, 2048, 64), 64)
    assert Executor.create(graph, threads=1).memory.arena_bytes < 2048 * 2048 * 4 / 4


@pytest.mark.skipif("RML_ISA" in os.environ, reason="this is the run for one instruction set")
@pytest.mark.parametrize("isa", [isa for isa in isa_info()["available"] if isa != isa_info()["name"]])
def test_the_same_on_every_other_instruction_set(isa):
    root = Path(__file__).parents[2]
    run = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(Path(__file__)), "--rootdir", str(root)]
    done = subprocess.run(run, env={**os.environ, "RML_ISA": isa}, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stdout[-3000:]
