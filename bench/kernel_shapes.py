"""What the kernel benchmark measures: the shapes of the zoo's models, as data. :mod:`bench.kernel_cases` makes graphs of them.

A tuple per row; the comment above a table names its fields. "model" is the one a shape is from, empty where it is there for comparison.
"""

from __future__ import annotations

__all__ = [
    "ATTENTIONS",
    "AVERAGE_POOLS",
    "CONVOLUTIONS",
    "COPIES",
    "DENSE",
    "DEPTHWISE",
    "DIRECT",
    "ELEMENTWISE",
    "EPILOGUES",
    "FIRST_LAYERS",
    "GEMMS",
    "LAYER_NORMS",
    "MAX_POOLS",
    "PACKS",
    "POINTWISE",
    "PRODUCTS",
    "RECURRENT",
    "REDUCTIONS",
    "SOFTMAXES",
    "TAKES",
    "UPSAMPLING",
]

DENSE = ((2304, 768), (768, 768), (3072, 768), (768, 3072))
"""(n, k) of the linear layers of BERT-base, ViT-B/16 and GPT-2: queries, keys and values in one; projection; the two of the MLP."""

_ROWS = ((1, "gpt2 decode"), (8, ""), (32, ""), (64, "gpt2"), (128, "bert"), (197, "vit"))

# model, m, n, k
GEMMS = (
    *((model, m, n, k) for m, model in _ROWS for n, k in DENSE),
    ("gpt2 head, decode", 1, 50257, 768),
    ("gpt2 head", 64, 50257, 768),
    ("mlp", 1, 512, 784),
    ("mlp", 1, 512, 512),
    ("resnet50 head", 1, 1000, 2048),
    ("mobilenet head", 1, 1001, 1280),
    ("encoder", 64, 768, 256),
    ("encoder", 64, 1024, 256),
    ("encoder", 64, 256, 1024),
    ("", 49, 512, 4608),
    ("", 1024, 1024, 1024),
)

# model, m, n, k, what follows the product
EPILOGUES = (
    ("bert", 128, 3072, 768, "relu"),
    ("bert", 128, 3072, 768, "gelu"),
    ("gpt2", 128, 3072, 768, "gelu_tanh"),
    ("bert", 128, 3072, 768, "silu"),
    ("bert", 128, 768, 3072, "add"),
    ("mlp", 1, 512, 784, "relu"),
)

# model, height = width of the input, input channels, output channels, stride: 1x1
POINTWISE = (
    ("resnet50", 56, 64, 64, 1),
    ("resnet50", 56, 64, 256, 1),
    ("resnet50", 56, 256, 64, 1),
    ("resnet50", 56, 256, 128, 1),
    ("resnet50", 56, 256, 512, 2),
    ("resnet50", 28, 128, 512, 1),
    ("resnet50", 28, 512, 128, 1),
    ("resnet50", 28, 512, 256, 1),
    ("resnet50", 28, 512, 1024, 2),
    ("resnet50", 14, 256, 1024, 1),
    ("resnet50", 14, 1024, 256, 1),
    ("resnet50", 14, 1024, 512, 1),
    ("resnet50", 14, 1024, 2048, 2),
    ("resnet50", 7, 512, 2048, 1),
    ("resnet50", 7, 2048, 512, 1),
    ("mobilenet", 112, 32, 16, 1),
    ("mobilenet", 112, 16, 96, 1),
    ("mobilenet", 56, 96, 24, 1),
    ("mobilenet", 56, 24, 144, 1),
    ("mobilenet", 56, 144, 24, 1),
    ("mobilenet", 28, 144, 32, 1),
    ("mobilenet", 28, 32, 192, 1),
    ("mobilenet", 28, 192, 32, 1),
    ("mobilenet", 14, 192, 64, 1),
    ("mobilenet", 14, 64, 384, 1),
    ("mobilenet", 14, 384, 64, 1),
    ("mobilenet", 14, 384, 96, 1),
    ("mobilenet", 14, 96, 576, 1),
    ("mobilenet", 14, 576, 96, 1),
    ("mobilenet", 7, 576, 160, 1),
    ("mobilenet", 7, 160, 960, 1),
    ("mobilenet", 7, 960, 160, 1),
    ("mobilenet", 7, 960, 320, 1),
    ("mobilenet", 7, 320, 1280, 1),
)

# model, height = width of the input, input channels, output channels, stride: 3x3, padding 1; summed directly under numerics="exact"
DIRECT = (
    ("resnet50", 56, 64, 64, 1),
    ("resnet50", 28, 128, 128, 1),
    ("resnet50", 14, 256, 256, 1),
    ("resnet50", 7, 512, 512, 1),
    ("resnet50", 56, 128, 128, 2),
    ("resnet50", 28, 256, 256, 2),
    ("resnet50", 14, 512, 512, 2),
)

# the same with stride 1, by what numerics="fast" chooses
CONVOLUTIONS = (*DIRECT[:4], ("unet", 128, 32, 32, 1), ("unet", 64, 64, 64, 1), ("", 112, 128, 128, 1), ("", 28, 512, 512, 1))

# model, height = width of the input, edge of the kernel, output channels, stride, padding: 3 input channels
FIRST_LAYERS = (("resnet50", 224, 7, 64, 2, 3), ("mobilenet", 224, 3, 32, 2, 1), ("unet", 128, 3, 32, 1, 1), ("vit", 224, 16, 768, 16, 0))

# model, height = width of the input, edge of the kernel, channels, stride
DEPTHWISE = (
    ("mobilenet", 112, 3, 32, 1),
    ("mobilenet", 112, 3, 96, 2),
    ("mobilenet", 56, 3, 144, 1),
    ("mobilenet", 56, 3, 144, 2),
    ("mobilenet", 28, 3, 192, 1),
    ("mobilenet", 28, 3, 192, 2),
    ("mobilenet", 14, 3, 384, 1),
    ("mobilenet", 14, 3, 576, 1),
    ("mobilenet", 14, 3, 576, 2),
    ("mobilenet", 7, 3, 960, 1),
    ("efficientnet", 56, 5, 144, 2),
    ("efficientnet", 14, 5, 672, 1),
)

# model, height = width of the input, input channels, output channels: transposed 2x2 of stride 2
UPSAMPLING = (("unet", 8, 512, 256), ("unet", 64, 64, 32))

# model, heads, queries and keys, depth, mask
ATTENTIONS = (
    ("bert", 12, 128, 64, "bool"),
    ("", 12, 128, 64, "none"),
    ("vit", 12, 197, 64, "none"),
    ("gpt2", 12, 64, 64, "causal"),
    ("encoder", 8, 64, 32, "none"),
    ("", 12, 512, 64, "none"),
)

# model, rows, n, op
SOFTMAXES = (
    ("bert", 1536, 128, "softmax"),
    ("vit", 2364, 197, "softmax"),
    ("resnet50", 1, 1000, "softmax"),
    ("gpt2", 64, 50257, "log_softmax"),
)

# model, rows, n, op
LAYER_NORMS = (
    ("bert", 128, 768, "layer_norm"),
    ("vit", 197, 768, "layer_norm"),
    ("encoder", 64, 256, "layer_norm"),
    ("", 128, 768, "rms_norm"),
)

# model, shape, axes, kind
REDUCTIONS = (
    ("", (1 << 20,), (0,), "sum"),
    ("", (128, 768), (1,), "max"),
    ("resnet50", (1, 7, 7, 2048), (1, 2), "mean"),
    ("efficientnet", (1, 112, 112, 32), (1, 2), "mean"),
)

# model, height = width of the input, channels, window, stride, padding
MAX_POOLS = (("resnet50", 112, 64, 3, 2, 1), ("unet", 128, 32, 2, 2, 0))
AVERAGE_POOLS = (("", 56, 64, 2, 2, 0),)

# elements, op or chain of :func:`bench.kernel_cases.elementwise_graph`
ELEMENTWISE = (
    *((1 << 20, op) for op in ("exp", "log", "tanh", "erf", "sigmoid", "gelu", "gelu_tanh", "silu")),
    (1 << 12, "mul_add_sigmoid_mul"),
    (1 << 18, "mul_add_sigmoid_mul"),
    (1 << 22, "mul_add_sigmoid_mul"),
    (1 << 18, "add_relu"),
    (1 << 18, "eight_cheap"),
)

# model, name, shape, order of the axes
COPIES = (
    ("", "copy", (1, 1 << 20), (0, 1)),
    ("", "transpose", (1024, 1024), (1, 0)),
    ("resnet50", "to_nhwc", (1, 3, 224, 224), (0, 2, 3, 1)),
    ("resnet50", "to_nhwc", (1, 64, 56, 56), (0, 2, 3, 1)),
    ("resnet50", "to_nchw", (1, 56, 56, 64), (0, 3, 1, 2)),
    ("bert", "join_heads", (1, 12, 128, 64), (0, 2, 1, 3)),
)

# model, rows of the table, columns, indices
TAKES = (("bert", 30522, 768, 128), ("gpt2", 50257, 768, 64))

# model, op, time steps, features, hidden
RECURRENT = (("lstm", "lstm", 1, 128, 256), ("lstm", "lstm", 100, 128, 256), ("", "gru", 1, 64, 256), ("", "gru", 50, 64, 256))

# batch, m, n, k: both operands come with the call, so the right one is packed in it
PRODUCTS = ((12, 128, 128, 64), (12, 128, 64, 128), (1, 128, 768, 768))

# k, n, whether B is stored transposed, as linear layers have it
PACKS = ((768, 768, True), (768, 768, False), (64, 128, True))
