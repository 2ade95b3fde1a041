"""The typical loop: scale the loss, step through the scaler, update it. An MLP learns handwritten digits."""

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
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
# Too high on purpose: the first updates overflow and are skipped until the scale fits.
scaler = ampmon.GradScaler(device, init_scale=2.0**24, growth_interval=20)

for step in range(80):
    batch = torch.randint(len(images), (64,), device=device)
    with torch.autocast(device, dtype=torch.float16):
        loss = cross_entropy(model(images[batch]), labels[batch])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if step % 20 == 0 or step == 79:
        print(f"step {step:3}  loss {loss.item():.3f}")
