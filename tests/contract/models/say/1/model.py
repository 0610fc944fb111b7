"""Decoupled, for generate: says the text as often as it is told (once if not); a negative number ends with an error."""

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            _say(request, request.get_response_sender())


def _say(request, sender):
    text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
    times = pb_utils.get_input_tensor_by_name(request, "times")
    count = 1 if times is None else int(times.as_numpy()[0])
    for number in range(abs(count)):
        said = numpy.array([text.item() + b" %d" % number], dtype=object)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", said)]))
    if count < 0:
        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("nothing more to say", pb_utils.TritonError.UNAVAILABLE)))
    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
