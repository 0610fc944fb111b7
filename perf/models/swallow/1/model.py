"""Takes a tensor of any size and answers how many elements it has: an upload without a download."""

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("SIZE", self._size(request))]) for request in requests]

    def _size(self, request):
        return np.array([pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy().size], dtype=np.int64)
