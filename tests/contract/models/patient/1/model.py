"""Takes its time and looks whether it is cancelled; answers with the ids of the requests that were."""

import time

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.cancelled = []

    def execute(self, requests):
        return [self._wait(request) for request in requests]

    def _wait(self, request):
        until_s = time.monotonic() + float(pb_utils.get_input_tensor_by_name(request, "SECONDS").as_numpy().max())
        while time.monotonic() < until_s:
            if request.is_cancelled():
                self.cancelled.append(request.request_id())
                break
            time.sleep(0.005)
        return pb_utils.InferenceResponse([pb_utils.Tensor("CANCELLED", numpy.array([[" ".join(self.cancelled).encode()]], dtype=object))])
