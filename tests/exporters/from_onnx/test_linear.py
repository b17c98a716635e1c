"""Matrix products, Einsum and Det, against ONNX's reference implementation."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from exporters.errors import UnsupportedOperatorsError
from tests.exporters.from_onnx.onnx_support import check, imported, normal, run


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((4,), (2, 4, 5)),
        ((2, 3, 4), (4,)),
        ((0, 4), (4, 5)),
        ((3, 0), (0, 5)),
    ],
)
@pytest.mark.parametrize("known", [(), (1,), (0,)])
def test_matmul(left: tuple[int, ...], right: tuple[int, ...], known: tuple[int, ...]) -> None:
    check("MatMul", [normal(*left), normal(*right, seed=1)], known=known)


def test_a_known_matrix_is_a_linear() -> None:
    assert [node.op for node in imported("MatMul", [normal(2, 3, 4), normal(4, 5)], known=[1]).nodes] == ["linear"]
    gemm = imported("Gemm", [normal(3, 4), normal(5, 4), normal(5)], known=[1, 2], transB=1)
    assert [node.op for node in gemm.nodes] == ["linear"]


def test_matmul_of_integers() -> None:
    check("MatMul", [np.arange(6, dtype=np.int32).reshape(2, 3), np.arange(12, dtype=np.int32).reshape(3, 4)], known=[1])


@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)])
@pytest.mark.parametrize("c", [None, (), (1,), (5,), (1, 5), (3, 1), (3, 5)])
@pytest.mark.parametrize("known", [(), (1, 2)])
def test_gemm(transposed: tuple[int, int], c: tuple[int, ...] | None, known: tuple[int, ...]) -> None:
    a, b = normal(3, 4), normal(4, 5, seed=1)
    inputs = [a.T.copy() if transposed[0] else a, b.T.copy() if transposed[1] else b]
    inputs += [] if c is None else [np.asarray(normal(*c, seed=2))]
    known = tuple(index for index in known if index < len(inputs))
    check("Gemm", inputs, known=known, transA=transposed[0], transB=transposed[1])
    check("Gemm", inputs, known=known, transA=transposed[0], transB=transposed[1], alpha=0.5, beta=-2.0)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(3, 4), (4, 5)]),
        ("bij,bjk->bik", [(2, 3, 4), (2, 4, 5)]),
        ("bhqd,bhkd->bhqk", [(2, 3, 4, 5), (2, 3, 6, 5)]),
        ("bqhd,bkhd->bhqk", [(2, 4, 3, 5), (2, 6, 3, 5)]),
        ("ij,kj", [(3, 4), (5, 4)]),
        ("ba,ca", [(3, 4), (5, 4)]),
        ("i,j->ij", [(3,), (4,)]),
        ("i,i->", [(3,), (3,)]),
        ("ij->", [(3, 4)]),
        ("ii->i", [(3, 3)]),
        ("ii", [(3, 3)]),
        ("iji->j", [(3, 4, 3)]),
        ("iij,jk->ik", [(3, 3, 4), (4, 2)]),
        ("...ij,...jk->...ik", [(2, 3, 4), (4, 5)]),
        ("...i,...i->...", [(2, 1, 3), (4, 3)]),
        ("i...->...i", [(3, 4, 5)]),
        ("i...,j...->ij...", [(3, 4), (5, 4)]),
        ("ij,jk,kl->il", [(2, 3), (3, 4), (4, 5)]),
        ("a,ab,abc->abc", [(2,), (2, 3), (2, 3, 4)]),
        ("ij,ij->ij", [(3, 4), (3, 4)]),
        ("ij,jk->k", [(3, 4), (4, 5)]),
        ("ij, jk -> ki", [(3, 4), (4, 5)]),
        (",ij->ij", [(), (3, 4)]),
        ("ij,jk->ik", [(0, 4), (4, 5)]),
        ("ij,jk->ik", [(3, 0), (0, 5)]),
    ],
)
@pytest.mark.parametrize("right_known", [False, True])
def test_einsum(equation: str, shapes: list[tuple[int, ...]], right_known: bool) -> None:
    inputs = [np.asarray(normal(*shape, seed=seed)) for seed, shape in enumerate(shapes)]
    known = [len(inputs) - 1] if right_known and len(inputs) > 1 else []
    check("Einsum", inputs, known=known, equation=equation)


def test_einsum_stretches_an_axis_of_size_1() -> None:
    inputs = [normal(3, 1), normal(4, 5, seed=1)]
    (y,) = run(imported("Einsum", inputs, equation="ij,jk->ik"), inputs)
    np.testing.assert_allclose(y, np.einsum("ij,jk->ik", np.broadcast_to(inputs[0], (3, 4)), inputs[1]), rtol=1e-5)


@pytest.mark.parametrize(
    ("equation", "reason"), [("ij->iij", "repeats"), ("ij->ik", "no operand"), ("i->i", "does not fit"), ("ij,jk->ik", "2 operands")]
)
def test_a_wrong_equation_is_refused(equation: str, reason: str) -> None:
    with pytest.raises(UnsupportedOperatorsError, match=reason):
        imported("Einsum", [normal(3, 4)], equation=equation)


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 5, 5), (2, 3, 4, 4), (0, 3, 3), (0, 0)])
def test_det(shape: tuple[int, ...]) -> None:
    check("Det", [normal(*shape)], rtol=1e-4)


def test_det_needs_pivots_and_meets_singular_matrices() -> None:
    swapped = np.array(
        [[[0, 2, 1], [1, 0, 0], [0, 3, 0]], [[1, 2, 3], [2, 4, 6], [1, 0, 1]], [[0, 0, 0], [0, 1, 2], [0, 3, 4]]], np.float32
    )
    check("Det", [swapped])
