"""Lowerings of loops and branches: what they run becomes functions of the graph."""

from __future__ import annotations

from exporters.from_jax.context import TABLE, Context
from exporters.from_jax.program import Equation


@TABLE.lowers("scan")
def _scan(ctx: Context, eqn: Equation) -> list[str]:
    return _listed(ctx.add("scan", *eqn.inputs, body=ctx.function("scan_body", eqn.bodies[0]), **eqn.params))


@TABLE.lowers("while")
def _while(ctx: Context, eqn: Equation) -> list[str]:
    test, body = (ctx.function(name, program) for name, program in zip(("while_test", "while_body"), eqn.bodies, strict=True))
    return _listed(ctx.add("while", *eqn.inputs, cond=test, body=body))


@TABLE.lowers("cond")
def _cond(ctx: Context, eqn: Equation) -> list[str]:
    branches = [ctx.function(f"branch_{number}", program) for number, program in enumerate(eqn.bodies)]
    return _listed(ctx.add("cond", *eqn.inputs, branches=branches))


def _listed(results: str | tuple[str, ...]) -> list[str]:
    return [results] if isinstance(results, str) else list(results)
