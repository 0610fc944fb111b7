"""Decoupled: one response for each element, an error response for a negative one; ends early when it is cancelled."""

import time

import numpy
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            self._answer(request, request.get_response_sender())

    def _answer(self, request, sender):
        delay = pb_utils.get_input_tensor_by_name(request, "DELAY_S")
        for value in pb_utils.get_input_tensor_by_name(request, "IN").as_numpy():
            time.sleep(0 if delay is None else float(delay.as_numpy()[0]))
            if request.is_cancelled():
                break
            sender.send(_response(value))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def _response(value):
    if value < 0:
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"the element {value} is negative", pb_utils.TritonError.INVALID_ARG))
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", numpy.array([value], dtype=numpy.int32))])
