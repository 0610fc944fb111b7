"""Takes as long as it is told to, so that whatever comes after it waits."""

import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self._sleep(request) for request in requests]

    def _sleep(self, request):
        seconds = pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy()
        time.sleep(float(seconds.max()))
        return pb_utils.InferenceResponse([pb_utils.Tensor("SLEPT", seconds)])
