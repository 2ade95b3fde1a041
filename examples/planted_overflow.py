"""A run with a planted fault, for docs/reading-the-page.md: a layer overflows, and the scale stays low for good."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import ampmon


SPOILED = range(20, 33)


class Spoiled(nn.Linear):
    """A layer whose gradient is far too large in some updates, as after a few bad batches."""

    spoiling = False

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        out = super().forward(values)
        if self.spoiling:
            out.register_hook(lambda gradient: gradient * 6e8)
        return out


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32, device=device)
labels = torch.tensor(digits.target, device=device)

model = nn.Sequential()
model.add_module("stem", nn.Linear(64, 48))
model.add_module("first", nn.ReLU())
model.add_module("middle", Spoiled(48, 48))
model.add_module("second", nn.ReLU())
model.add_module("head", nn.Linear(48, 10))
model.to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
# The scale never recovers from the bad batches: the interval is longer than the run.
scaler = ampmon.GradScaler(device, growth_interval=10**5, model=model, monitor=ampmon.Config(every=4))  # fmt: skip

for step in range(600):
    batch = torch.randint(len(images), (64,), device=device)
    model.middle.spoiling = step in SPOILED
    with torch.autocast(device, dtype=torch.float16):
        loss = cross_entropy(model(images[batch]), labels[batch])
    scaler.scale(0.01 * loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    if step % 100 == 0 or step == 599:
        print(f"step {step:3}  loss {loss.item():.3f}")
