"""Decoupled, as Triton's vLLM backend is: says the words of its prompt again, one a response; it ends when it is cancelled.

Some words do something: `fail:TEXT` ends the answer with an error, `die` the process, `wait:SECONDS` waits, `burst:N` is so many
words at once, `cancelled?` tells which requests were cancelled, and `sampling?` what it was asked for.
"""

import json
import os
import threading
import time

import numpy
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        self.cancelled = []

    def execute(self, requests):
        for request in requests:  # each in a thread of its own, as a server of many streams does
            threading.Thread(target=self._answer, args=(request, request.get_response_sender()), daemon=True).start()

    def _answer(self, request, sender):
        asked = _Asked(request)
        try:
            self._say(asked, sender)
        except Exception as exc:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(exc))))
        sender.send(flags=FINAL)

    def _say(self, asked, sender):
        said, reason = [], "stop"
        for word in self._words(asked):
            if asked.request.is_cancelled():
                self.cancelled.append(asked.request.request_id())
                return
            if word in asked.stop:
                break
            if len(said) == asked.max_tokens:
                reason = "length"
                break
            text = word if not said else f" {word}"
            said.append(text)
            if asked.streams:
                sender.send(asked.response(text, "None", 1))
        whole = "" if asked.streams else "".join(said)
        sender.send(asked.response(whole, reason, 0 if asked.streams else len(said)))

    def _words(self, asked):
        for word in asked.prompt.split():
            what, _, argument = word.partition(":")
            if what == "fail":
                raise ValueError(f"Error generating stream: {argument}")
            if what == "die":
                os._exit(3)
            if what == "wait":
                until = time.monotonic() + float(argument)
                while time.monotonic() < until and not asked.request.is_cancelled():
                    time.sleep(0.01)
            elif what == "burst":
                yield from (f"w{number}" for number in range(int(argument)))
            elif what == "cancelled?":
                yield from self.cancelled
            elif what == "sampling?":
                yield json.dumps(asked.sampling, sort_keys=True).replace(" ", "")
            else:
                yield word


class _Asked:
    def __init__(self, request):
        self.request = request
        self.prompt = self._text("text_input")
        self.streams = self._flag("stream")
        self.sampling = json.loads(self._text("sampling_parameters") or "{}")
        self.max_tokens = self.sampling.get("max_tokens", 16)
        self.stop = self.sampling.get("stop", [])
        if not self._flag("exclude_input_in_output"):
            raise ValueError("this model never says its prompt")

    def response(self, text, reason, tokens):
        tensors = [pb_utils.Tensor("text_output", numpy.asarray([text.encode()], dtype=numpy.object_))]
        if self._flag("return_finish_reason"):
            tensors.append(pb_utils.Tensor("finish_reason", numpy.asarray([reason], dtype=numpy.object_)))
        if self._flag("return_num_input_tokens"):
            tensors.append(pb_utils.Tensor("num_input_tokens", numpy.asarray(len(self.prompt.split()), dtype=numpy.uint32)))
        if self._flag("return_num_output_tokens"):
            tensors.append(pb_utils.Tensor("num_output_tokens", numpy.asarray([tokens], dtype=numpy.uint32)))
        return pb_utils.InferenceResponse(tensors)

    def _text(self, name):
        tensor = pb_utils.get_input_tensor_by_name(self.request, name)
        return "" if tensor is None else tensor.as_numpy()[0].decode()

    def _flag(self, name):
        tensor = pb_utils.get_input_tensor_by_name(self.request, name)
        return tensor is not None and bool(tensor.as_numpy()[0])
