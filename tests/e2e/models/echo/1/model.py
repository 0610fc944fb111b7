"""Answers OUTPUTn with INPUTn, for the inputs that came."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse(list(_outputs(request))) for request in requests]


def _outputs(request):
    for name, output in (("INPUT0", "OUTPUT0"), ("INPUT1", "OUTPUT1")):
        tensor = pb_utils.get_input_tensor_by_name(request, name)
        if tensor is not None and output in request.requested_output_names():
            yield pb_utils.Tensor(output, tensor.as_numpy())
