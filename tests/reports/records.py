"""Records for the tests of the tables: every status, missing arms, several thread counts."""

from __future__ import annotations

from typing import Any

from bench.records import CellRecord

ENVIRONMENT = {
    "cpu": "Fake CPU", "cores": 2, "isa": "avx2", "governor": None, "load_average_1min": 0.5, "system": "Linux 6.1", "python": "3.12.1",
    "numpy": "2.2.0",
}  # fmt: skip
VERSIONS = {"rml": "0.1.0", "torch": "2.9.0", "jax": "0.8.0"}


def ok(model: str, framework: str, threads: int, median_ms: float, ratio: float | None, **fields: Any) -> CellRecord:
    """Returns the record of a cell that went well; its ratio is known to 1 %."""
    known: dict[str, Any] = {"reference": "rml", "ratio": ratio, "verdict": "reference" if framework == "rml" else None}
    if ratio is not None:
        known |= {"ratio_low": ratio * 0.99, "ratio_high": ratio * 1.01}
        if framework != "rml":
            known["verdict"] = "slower" if ratio > 1.01 else "faster" if ratio < 0.99 else "same"
    given: dict[str, Any] = {
        "check": "pass", "max_abs_error": 1e-6, "max_rel_error": 2e-6, "iterations": 100, "mean_ms": median_ms, "min_ms": median_ms,
        "p10_ms": median_ms, "p90_ms": median_ms, "load_ms": 5.0, "first_call_ms": 1.0, "import_ms": 100.0, "options": {"mode": "fast"},
        "framework_version": VERSIONS.get(framework, "1.0"), "environment": ENVIRONMENT,
    }  # fmt: skip
    return CellRecord(model, framework, threads, "ok", median_ms=median_ms, **{**known, **given, **fields})


RECORDS = [
    ok("torch_cnn", "torch", 1, 1.5, 3.0),
    ok("torch_cnn", "rml", 1, 0.5, 1.0),
    ok("torch_cnn", "torch", 2, 12.345, 1.02),
    ok("torch_cnn", "rml", 2, 12.1, 1.0, reason="a remark"),
    ok("torch_gpt", "torch", 1, 123.45, 12.0),
    ok("torch_gpt", "rml", 1, 10.0, 1.0),
    CellRecord("jax_mlp", "rml", 1, "mismatch", "output 'y': 3 of 10 elements differ", "fail", 0.5, 0.25, environment=ENVIRONMENT),
    ok("jax_mlp", "jax", 1, 0.0321, None),
    CellRecord("tf_mlp", "rml", 1, "failed", "the worker ended before its work was done (signal SIGSEGV)", environment=ENVIRONMENT),
    CellRecord("tf_mlp", "tf", 1, "unavailable", "TensorFlow is not installed; pip install rml-exec[tensorflow]", environment=ENVIRONMENT),
]
