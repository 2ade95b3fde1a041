"""A gradient penalty: its gradients come from the scaled loss, so the loop unscales them itself."""

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

model = nn.Sequential(nn.Linear(64, 96), nn.Tanh(), nn.Linear(96, 10)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
scaler = ampmon.GradScaler(device, init_scale=2.0**22, growth_interval=20, model=model)

for step in range(60):
    batch = torch.randint(len(images), (64,), device=device)
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        loss = cross_entropy(model(images[batch]), labels[batch])
    scaled = torch.autograd.grad(scaler.scale(loss), list(model.parameters()), create_graph=True)
    gradients = [gradient / scaler.get_scale() for gradient in scaled]
    with torch.autocast(device, dtype=torch.float16):
        penalty = torch.stack([gradient.pow(2).sum() for gradient in gradients]).sum().sqrt()
        objective = loss + 0.05 * penalty
    scaler.scale(objective).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 15 == 0 or step == 59:
        print(f"step {step:3}  loss {loss.item():.3f}  penalty {penalty.item():.3f}")
