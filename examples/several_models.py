"""Several models, losses and optimizers with one scaler: each optimizer may skip alone, but the scale is shared."""

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import ampmon


torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
digits = load_digits()
images = torch.tensor(digits.data / 16, dtype=torch.float32, device=device)
labels = torch.tensor(digits.target, device=device)

encoder = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 24)).to(device)
decoder = nn.Sequential(nn.Linear(24, 96), nn.ReLU(), nn.Linear(96, 64)).to(device)
classifier = nn.Sequential(nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
autoencoder_optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=2e-3)
classifier_optimizer = torch.optim.SGD(classifier.parameters(), lr=0.2, momentum=0.9)
# One scaler for all: its update considers every optimizer that stepped.
scaler = ampmon.GradScaler(device, init_scale=2.0**26, growth_interval=15)

for step in range(80):
    batch = torch.randint(len(images), (64,), device=device)
    with torch.autocast(device, dtype=torch.float16):
        code = encoder(images[batch])
        reconstruction = mse_loss(decoder(code), images[batch])
        classification = cross_entropy(classifier(code), labels[batch])
    scaler.scale(reconstruction).backward(retain_graph=True)
    scaler.scale(classification).backward()

    scaler.unscale_(autoencoder_optimizer)  # needed only before you read or change gradients
    nn.utils.clip_grad_norm_(encoder.parameters(), max_norm=1.0)
    scaler.step(autoencoder_optimizer)
    scaler.step(classifier_optimizer)
    scaler.update()
    autoencoder_optimizer.zero_grad()
    classifier_optimizer.zero_grad()
    if step % 20 == 0 or step == 79:
        print(f"step {step:3}  loss {classification.item():.3f}  error {reconstruction.item():.4f}")
