"""Prints the op table of README.md: ``python -m rml_exec.ops``."""

from __future__ import annotations

from rml_exec.ops import Attr, OpDef, all_ops

__all__ = ["op_table"]


def op_table() -> str:
    """Returns the table of all ops as Markdown, one row per record in the order of definition."""
    rows = ["| op | operands | attributes | facts | f32 tolerance | meaning |", "|---|---|---|---|---|---|"]
    for op in all_ops():
        cells = (
            f"`{op.name}`",
            ", ".join(op.inputs) or "none",
            "; ".join(f"`{name}`: {_describe(attr)}" for name, attr in op.attrs.items()) or "none",
            ", ".join(_facts(op)),
            _tolerance(op),
            " ".join(op.doc.split()),
        )
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(rows) + "\n"


def _describe(attr: Attr) -> str:
    return (", ".join(attr.choices) or attr.kind) + (" or null" if attr.optional else "")


def _facts(op: OpDef) -> list[str]:
    facts = [name for name, holds in (("elementwise", op.elementwise), ("view", op.view), ("internal", op.internal)) if holds]
    if op.inplace:
        facts.append("in place over " + " or ".join(op.operand_name(operand) for _, operand in op.inplace))
    return facts + [f"no {limit.dtype}" for limit in op.limits]


def _tolerance(op: OpDef) -> str:
    if not (op.tolerance.rtol or op.tolerance.atol_rms):
        return "exact"
    return f"{op.tolerance.rtol:g} relative" + (f", {op.tolerance.atol_rms:g} of the rms" if op.tolerance.atol_rms else "")


if __name__ == "__main__":
    print(op_table(), end="")
