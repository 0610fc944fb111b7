"""Uses a package that the gateway does not have."""

import humanize
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        numbers = [pb_utils.get_input_tensor_by_name(request, "NUMBER").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("TEXT", readable(each))]) for each in numbers]


def readable(numbers):
    return np.array([[humanize.intword(int(number))] for number in numbers[:, 0]], dtype=object)
