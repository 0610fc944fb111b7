"""Pre-processing: counts the words of a text that vocabulary.txt has."""

import re
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        path = Path(args["model_repository"], args["model_version"], "vocabulary.txt")
        if not path.exists():
            raise FileNotFoundError(f"{path.name} is missing beside model.py: run make_model.py")
        self.vocabulary = path.read_text().split()

    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy()) for request in requests]

    def answer(self, texts):
        found = [re.findall(r"\w+", text.decode(errors="replace").lower()) for text in texts[:, 0]]
        if not all(found):
            error = pb_utils.TritonError("TEXT must have at least one word", pb_utils.TritonError.INVALID_ARG)
            return pb_utils.InferenceResponse(error=error)
        counts = np.array([[words.count(word) for word in self.vocabulary] for words in found], dtype=np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("COUNTS", counts)])
