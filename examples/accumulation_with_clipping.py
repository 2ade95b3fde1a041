"""Gradient accumulation with clipping, as in nanoGPT's loop: micro-batches, `unscale_`, clip, a fused AdamW.

A small GPT learns the source of a module of Python's standard library.
"""

import argparse
import inspect
import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention
from torch.nn.utils import clip_grad_norm_

import ampmon


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
context, batch_size, accumulation, updates, width, heads = 32, 4, 2, 32, 32, 2

source = inspect.getsource(argparse)
alphabet = sorted(set(source))
text = torch.tensor([alphabet.index(character) for character in source], device=device)


class Block(nn.Module):
    """Causal attention, then an MLP, each added to the residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv = nn.Linear(width, 3 * width)
        self.merge = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, stream: Tensor) -> Tensor:
        qkv = self.qkv(self.norms[0](stream)).unflatten(-1, (3, heads, -1))
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + self.merge(attended.transpose(1, 2).flatten(-2))
        return stream + self.narrow(gelu(self.wide(self.norms[1](stream))))


class GPT(nn.Module):
    """A minimal GPT: two blocks, with the embedding tied to the output."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(len(alphabet), width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(Block(), Block(), nn.LayerNorm(width))
        self.head = nn.Linear(width, len(alphabet), bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        positions = torch.arange(context, device=tokens.device)
        logits = self.head(self.blocks(self.tokens(tokens) + self.positions(positions)))
        return cross_entropy(logits.flatten(0, 1), targets.flatten())


def get_batch() -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - context, (batch_size,)).tolist()
    windows = torch.stack([text[start : start + context + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]


model = GPT().to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, betas=(0.9, 0.95), fused=True)
scaler = ampmon.GradScaler(device, init_scale=2.0**22, growth_interval=10, model=model)

for update in range(updates):
    for group in optimizer.param_groups:  # warm-up, then cosine decay
        warmth = min(1.0, (update + 1) / 10)
        group["lr"] = 1e-2 * warmth * (0.55 + 0.45 * math.cos(math.pi * update / updates))
    for _ in range(accumulation):
        tokens, targets = get_batch()
        with torch.autocast(device, dtype=torch.float16):
            loss = model(tokens, targets) / accumulation
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if update % 8 == 0 or update == updates - 1:
        print(f"update {update:3}  loss {loss.item() * accumulation:.3f}")
