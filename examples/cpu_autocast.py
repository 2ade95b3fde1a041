"""fp16 training on the CPU: `GradScaler("cpu")` with `autocast("cpu")`. A small CNN classifies the digits."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import ampmon


torch.manual_seed(0)
digits = load_digits()
images = torch.tensor(digits.images / 16, dtype=torch.float32).unsqueeze(1)
labels = torch.tensor(digits.target)

model = nn.Sequential(
    nn.Conv2d(1, 12, kernel_size=3, stride=2, padding=1),
    nn.BatchNorm2d(12),
    nn.ReLU(),
    nn.Flatten(),
    nn.Linear(12 * 4 * 4, 10),
)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = ampmon.GradScaler("cpu", init_scale=2.0**24, growth_interval=20, model=model)

for step in range(80):
    batch = torch.randint(len(images), (64,))
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        loss = cross_entropy(model(images[batch]), labels[batch])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 79:
        print(f"step {step:3}  loss {loss.item():.3f}")
