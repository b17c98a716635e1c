"""Torch models of the zoo that see images: definitions of transformers (from configurations, nothing is downloaded) and a U-Net."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from exporters.models.torch_weights import calibrated, randomised
from exporters.models.zoo import zoo_model

if TYPE_CHECKING:
    import torch

__all__: list[str] = []


def _image(batch: int, size: int) -> tuple[torch.Tensor]:
    import torch

    return (torch.randn(batch, 3, size, size),)


def _convolutional(model: Any, batch: int, size: int) -> tuple[Any, Any]:
    """Returns (model with weights, example images): weights and first image are the same for every batch."""
    import torch

    model = randomised(model)
    (first,), (others,) = _image(1, size), _image(batch - 1, size)
    return calibrated(model, (first,)), (torch.cat([first, others]),)


def _resnet(seed: int, size: str, batch: int, *, layer_type: str, depths: list[int], widths: list[int]) -> tuple[Any, Any]:
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(seed)
    if size == "tiny":
        depths, widths = [1, 1, 2], [16, 32, 48]
    config = ResNetConfig(
        embedding_size=widths[0] // (4 if layer_type == "bottleneck" else 1),
        hidden_sizes=widths,
        depths=depths,
        layer_type=layer_type,
        num_labels=1000 if size == "full" else 10,
    )
    return _convolutional(ResNetForImageClassification(config), batch, 224 if size == "full" else 48)


@zoo_model(
    "torch_resnet18",
    description="ResNet-18 of transformers on 3x224x224, 1000 classes",
    parameters=11_699_112,
    flops=3_638_006_272,
)
def torch_resnet18(size: str, batch: int) -> tuple[Any, Any]:
    return _resnet(4, size, batch, layer_type="basic", depths=[2, 2, 2, 2], widths=[64, 128, 256, 512])


@zoo_model(
    "torch_resnet50",
    description="ResNet-50 of transformers on 3x224x224, 1000 classes",
    parameters=25_610_152,
    flops=8_217_631_232,
)
def torch_resnet50(size: str, batch: int) -> tuple[Any, Any]:
    return _resnet(5, size, batch, layer_type="bottleneck", depths=[3, 4, 6, 3], widths=[256, 512, 1024, 2048])


@zoo_model(
    "torch_mobilenet_v2",
    description="MobileNetV2 of transformers on 3x224x224, 1001 classes",
    parameters=3_540_265,
    flops=627_398_016,
)
def torch_mobilenet_v2(size: str, batch: int) -> tuple[Any, Any]:
    import torch
    from transformers import MobileNetV2Config, MobileNetV2ForImageClassification

    torch.manual_seed(6)
    tiny = {} if size == "full" else {"depth_multiplier": 0.1, "min_depth": 8, "finegrained_output": False, "num_labels": 10}
    config = MobileNetV2Config(**({"num_labels": 1001} | tiny))
    return _convolutional(MobileNetV2ForImageClassification(config), batch, 224 if size == "full" else 64)


@zoo_model(
    "torch_efficientnet_b0",
    description="EfficientNet-B0 of transformers on 3x224x224, 1000 classes",
    parameters=5_330_564,
    flops=870_151_212,
)
def torch_efficientnet_b0(size: str, batch: int) -> tuple[Any, Any]:
    import torch
    from transformers import EfficientNetConfig, EfficientNetForImageClassification

    torch.manual_seed(7)
    full = {"width_coefficient": 1.0, "depth_coefficient": 1.0, "image_size": 224, "hidden_dim": 1280, "num_labels": 1000}
    tiny = {"width_coefficient": 0.25, "depth_coefficient": 0.3, "image_size": 64, "hidden_dim": 320, "num_labels": 10}
    config = EfficientNetConfig(**(full if size == "full" else tiny))
    return _convolutional(EfficientNetForImageClassification(config), batch, config.image_size)


@zoo_model(
    "torch_vit_b16",
    description="ViT-B/16 of transformers on 3x224x224, 1000 classes",
    parameters=86_567_656,
    flops=35_421_492_192,
)
def torch_vit_b16(size: str, batch: int) -> tuple[Any, Any]:
    import torch
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(8)
    tiny = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "image_size": 48}
    config = ViTConfig(num_labels=1000) if size == "full" else ViTConfig(num_labels=10, **tiny)
    return randomised(ViTForImageClassification(config)), _image(batch, config.image_size)


@zoo_model(
    "torch_unet",
    description="U-Net, 4 levels of 32 to 512 channels, transposed convolutions, on 3x128x128",
    parameters=7_768_962,
    flops=6_049_628_160,
)
def torch_unet(size: str, batch: int) -> tuple[Any, Any]:
    import torch
    from torch import nn

    def twice(inputs: int, outputs: int) -> nn.Module:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers += [nn.Conv2d(channels, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        def __init__(self, widths: list[int]) -> None:
            super().__init__()
            pairs = list(itertools.pairwise(widths))
            self.stem = twice(3, widths[0])
            self.down = nn.ModuleList(twice(above, below) for above, below in pairs)
            self.up = nn.ModuleList(nn.ConvTranspose2d(below, above, 2, stride=2) for above, below in reversed(pairs))
            self.merge = nn.ModuleList(twice(2 * above, above) for above, _ in reversed(pairs))
            self.head = nn.Conv2d(widths[0], 2, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            levels = [self.stem(x)]
            for block in self.down:
                levels.append(block(nn.functional.max_pool2d(levels[-1], 2)))
            x = levels.pop()
            for up, merge in zip(self.up, self.merge, strict=True):
                x = merge(torch.cat([levels.pop(), up(x)], dim=1))
            result: torch.Tensor = self.head(x)
            return result

    torch.manual_seed(9)
    full = size == "full"
    return _convolutional(UNet([32, 64, 128, 256, 512] if full else [4, 8, 12]), batch, 128 if full else 16)
