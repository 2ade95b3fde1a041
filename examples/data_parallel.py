"""DataParallel: its threads do not inherit autocast, so `forward` itself turns it on.

With one GPU or none, it calls the module directly.
"""

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import ampmon


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32, device=device)
labels = torch.tensor(digits.target, device=device)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, pixels: Tensor) -> Tensor:
        with torch.autocast(device, dtype=torch.float16):
            return self.layers(pixels)


model = nn.DataParallel(Classifier().to(device))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
scaler = ampmon.watch(torch.amp.GradScaler(device, init_scale=2.0**24, growth_interval=20))

for step in range(80):
    batch = torch.randint(len(images), (64,), device=device)
    optimizer.zero_grad()
    loss = cross_entropy(model(images[batch]).float(), labels[batch])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 79:
        print(f"step {step:3}  loss {loss.item():.3f}")
