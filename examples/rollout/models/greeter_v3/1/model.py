"""Greets whoever is named."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        names = pb_utils.get_input_tensor_by_name(request, "NAME").as_numpy()
        texts = [[self.greet(each.decode()) for each in row] for row in names]
        return pb_utils.InferenceResponse([pb_utils.Tensor("GREETING", np.array(texts, dtype=object))])

    def greet(self, name):
        return "Good day, " + name + "."
