"""timm's `NativeScaler` as in the loop of its train.py: a small ResNet, clipped gradients, accumulation."""

from __future__ import annotations

import sys
from functools import partial

import torch
from timm import create_model
from timm.models import model_parameters
from timm.optim import create_optimizer_v2
from timm.utils import NativeScaler, random_seed


random_seed(42, 0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = create_model("resnet10t", num_classes=4, in_chans=1, global_pool="avg").to(device)
optimizer = create_optimizer_v2(model, opt="sgd", lr=1e-3, weight_decay=1e-4, momentum=0.9)
amp_autocast = partial(torch.autocast, device_type=device.type, dtype=torch.float16)
loss_scaler = NativeScaler()
loss_fn = torch.nn.CrossEntropyLoss().to(device)
images, targets = torch.randn(24, 4, 1, 32, 32), torch.randint(4, (24, 4))
images[9] *= 3e3
images, targets = images.to(device), targets.to(device)
accum_steps = 2
model.train()
for batch, (input, target) in enumerate(zip(images, targets, strict=True)):
    need_update = (batch + 1) % accum_steps == 0
    with amp_autocast():
        loss = loss_fn(model(input), target) / accum_steps
    loss_scaler(
        loss,
        optimizer,
        clip_grad=1.0,
        clip_mode="norm",
        parameters=model_parameters(model, exclude_head=False),
        create_graph=getattr(optimizer, "is_second_order", False),
        need_update=need_update,
    )
    if need_update:
        optimizer.zero_grad()
torch.save(model.state_dict(), f"{sys.argv[1]}/weights.pt")
