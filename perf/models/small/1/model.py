"""Takes its time for each request, and answers with what it was sent."""

import time

import triton_python_backend_utils as pb_utils

_TAKES_S = 0.004


class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            time.sleep(_TAKES_S)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", pb_utils.get_input_tensor_by_name(request, "X").as_numpy())]))
        return responses
