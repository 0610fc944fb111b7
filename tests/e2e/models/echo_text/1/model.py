"""Answers `text` with `text`."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([_echo(request)]) for request in requests]


def _echo(request):
    return pb_utils.Tensor("text", pb_utils.get_input_tensor_by_name(request, "text").as_numpy())
