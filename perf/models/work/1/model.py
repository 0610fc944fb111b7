"""Takes as long as the longest request of a batch asks for."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        seconds = [pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy() for request in requests]
        time.sleep(float(max(each.max() for each in seconds)))
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SLEPT", each)]) for each in seconds]
