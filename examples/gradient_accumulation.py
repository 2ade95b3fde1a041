"""Gradient accumulation: four backward passes at one scale make one update."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import ampmon


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32, device=device)
labels = torch.tensor(digits.target, device=device)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = ampmon.GradScaler(device, init_scale=2.0**24, growth_interval=10, model=model)
accumulation = 4

for micro_step in range(200):
    batch = torch.randint(len(images), (16,), device=device)
    with torch.autocast(device, dtype=torch.float16):
        loss = cross_entropy(model(images[batch]), labels[batch]) / accumulation
    scaler.scale(loss).backward()
    if (micro_step + 1) % accumulation == 0:
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    if micro_step % 40 == 0 or micro_step == 199:
        print(f"micro-step {micro_step:3}  loss {loss.item() * accumulation:.3f}")
