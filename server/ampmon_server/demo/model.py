"""A small character-level GPT. Autocast and the scaler stay outside the model."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The size of the model and its batches. ``context`` is in characters, ``batch`` in windows."""

    layers: int
    heads: int
    width: int
    context: int
    batch: int


# Most CPUs have no fast kernel for fp16 products: this size takes 50 to 100 ms an update on one core.
SMALL = ModelSize(layers=4, heads=4, width=48, context=32, batch=4)
LARGE = ModelSize(layers=6, heads=6, width=384, context=256, batch=32)


class Block(nn.Module):
    """Causal attention, then a two-layer perceptron, each added to the stream [batch, context, width]."""

    def __init__(self, size: ModelSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.attention_norm = nn.LayerNorm(size.width)
        self.attention_in = nn.Linear(size.width, 3 * size.width)
        self.attention_out = nn.Linear(size.width, size.width)
        self.mlp_norm = nn.LayerNorm(size.width)
        self.mlp_in = nn.Linear(size.width, 4 * size.width)
        self.mlp_out = nn.Linear(4 * size.width, size.width)

    def forward(self, stream: Tensor) -> Tensor:
        heads = self.attention_in(self.attention_norm(stream)).unflatten(-1, (3, self.heads, -1))
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.attention_out(attended.transpose(1, 2).flatten(-2))
        perceived: Tensor = self.mlp_out(gelu(self.mlp_in(self.mlp_norm(stream))))
        return stream + perceived


class GPT(nn.Module):
    """Predicts the next character at each position."""

    def __init__(self, characters: int, size: ModelSize) -> None:
        super().__init__()
        self.characters = nn.Embedding(characters, size.width)
        self.positions = nn.Embedding(size.context, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, characters)
        self.apply(_initialise)

    def forward(self, characters: Tensor, following: Tensor) -> Tensor:
        """Return the mean loss of predicting ``following``, in nats per character. Both are int64 [batch, context]."""
        positions = torch.arange(characters.shape[1], device=characters.device)
        stream = self.characters(characters) + self.positions(positions)
        for block in self.blocks:
            stream = block(stream)
        logits = self.head(self.norm(stream))
        return cross_entropy(logits.flatten(0, 1).float(), following.flatten())


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
