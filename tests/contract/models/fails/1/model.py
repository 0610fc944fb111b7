"""Fails with the error code that it is given the name of; with an exception for any other text."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [_failure(request) for request in requests]


def _failure(request):
    name = pb_utils.get_input_tensor_by_name(request, "CODE").as_numpy().item().decode()
    code = getattr(pb_utils.TritonError, name)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(f'said "{name}" \u00e4 \n', code))
