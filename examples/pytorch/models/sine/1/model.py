"""Serves the network of network.py with weights.pt; both lie beside this file."""

from pathlib import Path

import numpy as np
import torch
import triton_python_backend_utils as pb_utils
from network import LARGEST_ANGLE, Network


class TritonPythonModel:
    def initialize(self, args):
        path = Path(args["model_repository"], args["model_version"], "weights.pt")
        if not path.exists():
            raise FileNotFoundError(f"{path.name} is missing beside model.py: run train.py")
        self.network = Network()
        self.network.load_state_dict(torch.load(path, weights_only=True))
        self.network.eval()

    def execute(self, requests):
        """One response for each request; the network sees the rows of all of them at once."""
        angles = [pb_utils.get_input_tensor_by_name(request, "ANGLE").as_numpy() for request in requests]
        with torch.inference_mode():
            sines = self.network(torch.from_numpy(np.concatenate(angles))).numpy()
        ends = np.cumsum([len(rows) for rows in angles])
        return [answer(rows, its) for rows, its in zip(angles, np.split(sines, ends[:-1]), strict=True)]


def answer(angles, sines):
    if not ((angles >= 0) & (angles <= LARGEST_ANGLE)).all():  # nor is NaN
        message = f"ANGLE must be between 0 and {LARGEST_ANGLE:.4f}: the network has seen no other"
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG))
    return pb_utils.InferenceResponse([pb_utils.Tensor("SINE", sines)])
