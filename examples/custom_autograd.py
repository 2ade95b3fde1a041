"""Custom autograd functions: `custom_fwd` and `custom_bwd` carry autocast's state into the backward pass."""

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.amp import custom_bwd, custom_fwd
from torch.nn.functional import cross_entropy

import ampmon


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32, device=device)
labels = torch.tensor(digits.target, device=device)


class Product(torch.autograd.Function):
    """A matrix product that follows autocast, forward and backward."""

    @staticmethod
    @custom_fwd(device_type=device)
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return left.mm(right)

    @staticmethod
    @custom_bwd(device_type=device)
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        left, right = ctx.saved_tensors
        return gradient.mm(right.t()), left.t().mm(gradient)


class Softplus(torch.autograd.Function):
    """A function that needs fp32: `cast_inputs` turns autocast off inside it."""

    @staticmethod
    @custom_fwd(device_type=device, cast_inputs=torch.float32)
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return values.exp().log1p()

    @staticmethod
    @custom_bwd(device_type=device)
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (values,) = ctx.saved_tensors
        return gradient * values.sigmoid()


hidden = nn.Parameter(torch.randn(64, 96, device=device) / 8)
output = nn.Parameter(torch.randn(96, 10, device=device) / 10)
optimizer = torch.optim.Adam([hidden, output], lr=3e-3)
scaler = ampmon.GradScaler(device, init_scale=2.0**24, growth_interval=20)

for step in range(80):
    batch = torch.randint(len(images), (64,), device=device)
    optimizer.zero_grad()
    with torch.autocast(device, dtype=torch.float16):
        logits = Product.apply(Softplus.apply(Product.apply(images[batch], hidden)), output)
        loss = cross_entropy(logits, labels[batch])
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if step % 20 == 0 or step == 79:
        print(f"step {step:3}  loss {loss.item():.3f}")
