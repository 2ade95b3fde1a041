"""Clipping by norm: call `unscale_` first, so the threshold applies to the true gradients."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import clip_grad_norm_

import ampmon


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32, device=device)
labels = torch.tensor(digits.target, device=device)

layers = nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 10)
model = nn.Sequential(*layers).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
scaler = ampmon.GradScaler(device, init_scale=2.0**24, growth_interval=20, model=model)

for step in range(80):
    batch = torch.randint(len(images), (64,), device=device)
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        loss = cross_entropy(model(images[batch]), labels[batch])
    scaler.scale(loss).backward()
    # ampmon measures before the clipping, because one inf would turn every clipped gradient into NaN.
    scaler.unscale_(optimizer)
    clip_grad_norm_(model.parameters(), max_norm=0.5)
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 79:
        print(f"step {step:3}  loss {loss.item():.3f}")
