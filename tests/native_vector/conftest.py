"""Every test that takes ``isa`` runs on each instruction set of the machine."""

from __future__ import annotations

import pytest

from tests.native_vector.native import ISAS


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest) -> str:
    return request.param
