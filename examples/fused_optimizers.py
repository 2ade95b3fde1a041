"""Fused optimizers unscale and skip inside their own kernel: no host sync, and `step` is called even when it skips."""

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
matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
biases = [parameter for parameter in model.parameters() if parameter.ndim == 1]
matrix_optimizer = torch.optim.AdamW(matrices, lr=2e-3, fused=True)
bias_optimizer = torch.optim.SGD(biases, lr=0.1, fused=True)
scaler = ampmon.GradScaler(device, init_scale=2.0**24, growth_interval=20, model=model)

for step in range(80):
    batch = torch.randint(len(images), (64,), device=device)
    with torch.autocast(device, dtype=torch.float16):
        loss = cross_entropy(model(images[batch]), labels[batch])
    scaler.scale(loss).backward()
    for optimizer in (matrix_optimizer, bias_optimizer):
        scaler.step(optimizer)
        optimizer.zero_grad()
    scaler.update()
    if step % 20 == 0 or step == 79:
        print(f"step {step:3}  loss {loss.item():.3f}")
