"""Casts of types that are not 32 bits wide, in their kernel."""

import itertools

import numpy as np
import pytest

from rml_exec import Executor
from rml_exec.loading import GraphBuilder
from rml_exec.types import DType

TYPES = ("bool", "u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64", "f32", "f64")
PAIRS = [(a, b) for a, b in itertools.product(TYPES, TYPES) if not (a[0] == "f" and b[0] in "iu")]


def _values(dtype, shape):
    rng = np.random.default_rng(0)
    if dtype.kind == "f":
        values = (rng.standard_normal(shape) * 300).astype(dtype)
        values.reshape(-1)[:5] = [np.nan, np.inf, -np.inf, -0.0, 0.0][: values.size]
        return values
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype=dtype, endpoint=True)


@pytest.mark.parametrize("shape", [(0,), (1, 1), (3, 7001)], ids=str)
@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_every_pair(source, target, shape):
    b = GraphBuilder("cast")
    x = b.input("x", source, (*shape[:-1], 2 * shape[-1]) if shape[-1] > 1 else shape)
    halved = b.add("slice", [x], start=(0, 0), limit=b.type(x).shape, strides=(1, 2)) if shape[-1] > 1 else x
    b.output("y", b.add("cast", [halved], to=target, f2i="saturate"))
    graph = b.build()
    values = _values(DType(source).numpy, graph.inputs[0].type.shape)
    wanted = values[:, ::2] if shape[-1] > 1 else values
    with np.errstate(all="ignore"):
        wanted = wanted.astype(DType(target).numpy)
    for threads in (1, 2):
        executor = Executor.create(graph, threads=threads)
        assert all(step.native for step in executor.steps) or not wanted.size
        np.testing.assert_array_equal(executor.run({"x": values})["y"], wanted)
