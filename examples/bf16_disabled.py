"""bfloat16 has fp32's range and needs no scaling: a disabled scaler passes everything through and costs nothing."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import ampmon


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
dtype = torch.bfloat16
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32, device=device)
labels = torch.tensor(digits.target, device=device)

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = ampmon.GradScaler(device, enabled=dtype == torch.float16)

for step in range(60):
    batch = torch.randint(len(images), (64,), device=device)
    with torch.autocast(device, dtype=dtype):
        loss = cross_entropy(model(images[batch]), labels[batch])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if step % 15 == 0 or step == 59:
        print(f"step {step:3}  loss {loss.item():.3f}")
