"""The older spelling, `torch.cuda.amp.GradScaler`: `watch` instruments an existing scaler in place."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import ampmon


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
amp = torch.cuda.amp if torch.cuda.is_available() else torch.cpu.amp
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32, device=device)
labels = torch.tensor(digits.target, device=device)

model = nn.Sequential(nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
scaler = ampmon.watch(amp.GradScaler(init_scale=2.0**24, growth_interval=20), model=model)

for step in range(80):
    batch = torch.randint(len(images), (64,), device=device)
    optimizer.zero_grad()
    with amp.autocast(dtype=torch.float16):
        loss = cross_entropy(model(images[batch]), labels[batch])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 79:
        print(f"step {step:3}  loss {loss.item():.3f}")
