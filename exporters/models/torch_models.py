"""The small torch models of the zoo: seeded weights, every statistic and bias randomised (zeros and ones would hide errors)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exporters.models.torch_weights import randomised
from exporters.models.zoo import zoo_model

if TYPE_CHECKING:
    import torch

__all__: list[str] = []


@zoo_model(
    "torch_mlp",
    description="784-512-512-10, relu",
    parameters=669_706,
    flops=1_338_368,
    default=True,
)
def torch_mlp(batch: int) -> tuple[Any, Any]:
    import torch
    from torch import nn

    class Mlp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))

        def forward(self, x: torch.Tensor) -> Any:
            return self.layers(x)

    torch.manual_seed(1)
    return randomised(Mlp()), (torch.randn(batch, 784),)


@zoo_model(
    "torch_cnn",
    description="three convolutions with batch norm, relu and pools on 3x32x32, 10 classes",
    parameters=95_434,
    flops=20_875_776,
    default=True,
)
def torch_cnn(batch: int) -> tuple[Any, Any]:
    import torch
    from torch import nn

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]

    class Cnn(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [*block(3, 32), nn.MaxPool2d(2), *block(32, 64), nn.MaxPool2d(2), *block(64, 128), nn.AdaptiveAvgPool2d(1)]
            self.features = nn.Sequential(*layers)
            self.classifier = nn.Linear(128, 10)

        def forward(self, x: torch.Tensor) -> Any:
            return self.classifier(self.features(x).flatten(1))

    torch.manual_seed(2)
    return randomised(Cnn()), (torch.randn(batch, 3, 32, 32),)


@zoo_model(
    "torch_transformer",
    description="nn.TransformerEncoder: 4 layers, width 256, 8 heads, gelu, 64 tokens",
    parameters=3_159_040,
    flops=428_998_656,
    default=True,
)
def torch_transformer(batch: int) -> tuple[Any, Any]:
    import torch
    from torch import nn

    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(256, 8, 1024, activation="gelu", batch_first=True)
    return randomised(nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)), (torch.randn(batch, 64, 256),)
