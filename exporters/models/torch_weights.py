"""Random weights for the torch models of the zoo, such that a wrong lowering shows and activations stay near an rms of 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["calibrated", "randomised"]


def randomised(module: Any) -> Any:
    """Draws a module's numbers anew: activations keep an rms near 1, no bias or statistic is 0 or 1. Returns it in evaluation mode."""
    import torch

    with torch.no_grad():
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            kind = name.rpartition(".")[2]
            if not tensor.is_floating_point():
                continue
            if tensor.dim() > 1:
                torch.nn.init.kaiming_normal_(tensor)
            elif kind == "running_var" or (kind == "weight" and tensor.dim() == 1):
                tensor.uniform_(0.5, 1.5)
            elif kind == "running_mean" or "bias" in kind:
                tensor.normal_(0, 0.1)
    return module.eval()


def calibrated(module: Any, inputs: Sequence[torch.Tensor]) -> torch.nn.Module:
    """Scales the random statistics of each batch norm of a module by the mean square of what it sees of the inputs.

    Without that the activations of deep networks vanish or explode. The mean that it sees is left in: over the few places of one image it
    is often many times the deviation, and to take it away would blow up rounding errors as no trained network does. All is computed in
    float64 and rounded to three digits, so that every machine gets the same numbers. Returns the module.
    """
    import torch

    def set_statistics(norm: Any, arguments: tuple[torch.Tensor, ...]) -> None:
        size = arguments[0].square().mean()  # of all channels: one that happens to be near 0 must not be blown up
        mean, variance = norm.running_mean * size.sqrt(), norm.running_var * size
        for statistic, value in ((norm.running_mean, mean), (norm.running_var, variance)):
            statistic.copy_(torch.tensor([float(f"{number:.2e}") for number in value.tolist()]))

    norms = [child for child in module.modules() if isinstance(child, torch.nn.BatchNorm2d)]
    hooks = [norm.register_forward_pre_hook(set_statistics) for norm in norms]
    try:
        with torch.no_grad():
            module.double()(*(tensor.double() for tensor in inputs))
    finally:
        for hook in hooks:
            hook.remove()
        module.float()
    return module
