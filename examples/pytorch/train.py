"""Teach a small network the sine, and write its weights to where its model.py expects them."""

import sys
from pathlib import Path

import torch

MODEL = Path(__file__).parent / "models/sine/1"
sys.path.insert(0, str(MODEL))  # the network's definition goes with the model
from network import LARGEST_ANGLE, Network  # noqa: E402

torch.manual_seed(0)
network = Network()
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
for _ in range(1000):
    angles = torch.rand(256, 1) * LARGEST_ANGLE
    loss = torch.nn.functional.mse_loss(network(angles), torch.sin(angles))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(network.state_dict(), MODEL / "weights.pt")
print(f"off by {loss.item() ** 0.5:.3f} on average; wrote weights.pt")
