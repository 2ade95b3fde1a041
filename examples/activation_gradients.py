"""Where a network loses gradients: `Config(activations=10)` measures every module at each tenth update.

Ten tanh layers classify the digits. The page's last chart shows, layer by layer, what fp16 loses of the gradients in
the backward pass and how close they are to overflow. The ledger shows in which pass a skip began.
"""

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

layers = [layer for _ in range(10) for layer in (nn.Linear(64, 64), nn.Tanh())]
model = nn.Sequential(*layers, nn.Linear(64, 10)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = ampmon.GradScaler(device, 2.0**24, model=model, monitor=ampmon.Config(activations=10))

for step in range(80):
    batch = torch.randint(len(images), (128,), device=device)
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        loss = cross_entropy(model(images[batch]), labels[batch])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 79:
        print(f"step {step:3}  loss {loss.item():.3f}")
