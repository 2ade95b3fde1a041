"""The training on the first picture of the README: a small GPT in fp16, one layer of which overflows in bad batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

import ampmon
from ampmon_server.demo import text
from ampmon_server.demo.model import GPT, SMALL
from ampmon_server.demo.text import ALPHABET
from ampmon_server.demo.train import LEARNING_RATE


NAME = "gpt-fp16"
STEPS = 600
SIZE = replace(SMALL, batch=8)
BAD = {*range(170, 175), *range(330, 334), *range(480, 484)}
"""The steps whose batches are bad."""


def main() -> None:
    """Train, and report to the server of the environment."""
    torch.manual_seed(0)
    bad = False
    ampmon.init(name=NAME, project="language-model")
    words = text.load("cpu")
    model = GPT(len(ALPHABET), SIZE)

    def overflow(_: nn.Module, gradients: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        return tuple(gradient * 1e9 for gradient in gradients) if bad else None

    model.get_submodule("blocks.1.mlp_in").register_full_backward_pre_hook(overflow)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    scaler = ampmon.GradScaler("cpu", init_scale=2.0**12, growth_interval=32, model=model)
    for step in range(STEPS):
        bad = step in BAD
        with torch.autocast("cpu", dtype=torch.float16):
            loss = model(*words.batch(SIZE.batch, SIZE.context))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        ampmon.log({"loss": loss})


if __name__ == "__main__":
    main()
