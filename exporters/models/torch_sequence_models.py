"""Torch models of the zoo that see tokens or series: definitions of transformers (from configurations, no download) and an LSTM."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from exporters.models.torch_weights import randomised
from exporters.models.zoo import zoo_model

if TYPE_CHECKING:
    import torch

__all__: list[str] = []


@zoo_model(
    "torch_bert_base",
    description="BERT-base of transformers, 128 tokens, the last fifth of them padding",
    parameters=109_482_496,
    flops=22_521_668_608,
)
def torch_bert_base(size: str, batch: int) -> tuple[Any, Any]:
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(10)
    tiny = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 200}
    config = BertConfig() if size == "full" else BertConfig(**tiny, max_position_embeddings=32)
    model = randomised(BertModel(config))
    tokens = 128 if size == "full" else 10
    ids = torch.randint(0, config.vocab_size, (batch, tokens))
    mask = (torch.arange(tokens) < tokens * 4 // 5).long().repeat(batch, 1)
    return model, (ids, mask)


@zoo_model(
    "torch_gpt2",
    description="GPT-2 (124 M) of transformers without cache, 64 tokens",
    parameters=124_439_872,
    flops=16_041_394_176,
)
def torch_gpt2(size: str, batch: int) -> tuple[Any, Any]:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(11)
    tiny = {"n_embd": 48, "n_layer": 2, "n_head": 4, "vocab_size": 200, "n_positions": 32, "bos_token_id": 0, "eos_token_id": 0}
    config = GPT2Config(use_cache=False) if size == "full" else GPT2Config(use_cache=False, **tiny)
    model = randomised(GPT2LMHeadModel(config))
    return model, (torch.randint(0, config.vocab_size, (batch, 64 if size == "full" else 10)),)


@zoo_model(
    "torch_lstm",
    description="nn.LSTM, 2 bidirectional layers of 256, and a head, on 100 steps of 128 features",
    parameters=2_400_320,
    flops=484_561_920,
)
def torch_lstm(size: str, batch: int) -> tuple[Any, Any]:
    import torch
    from torch import nn

    class Tagger(nn.Module):
        def __init__(self, features: int, hidden: int, classes: int) -> None:
            super().__init__()
            self.lstm = nn.LSTM(features, hidden, num_layers=2, bidirectional=True, batch_first=True)
            self.head = nn.Linear(2 * hidden, classes)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            states, _ = self.lstm(x)
            result: torch.Tensor = self.head(states)
            return result

    torch.manual_seed(12)
    full = size == "full"
    model = randomised(Tagger(128, 256, 64) if full else Tagger(6, 8, 5))
    with torch.no_grad():
        model.head.weight.mul_(5)  # states stay well below 1
    return model, (torch.randn(batch, 100, 128) if full else torch.randn(batch, 7, 6),)
