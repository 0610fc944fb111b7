"""Answers `text` once more for each of `count`, and then that it is done; below zero, with an error after one answer."""

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            text = pb_utils.get_input_tensor_by_name(request, "text").as_numpy()
            count = int(pb_utils.get_input_tensor_by_name(request, "count").as_numpy()[0])
            for _ in range(abs(count)):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text", text)]))
            if count < 0:
                sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("asked for")))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
