"""A language model as one first serves it: transformers' own `generate`, one caller after the other, a response for each token.

Its tensors are those of `text_generator`, as far as `perf.generation` asks for them.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from python_backends.runtime.engines.cpu import spin_briefly


class TritonPythonModel:
    """Writer of the likeliest tokens, exactly `max_tokens` of them."""

    def initialize(self, args: dict[str, str]) -> None:
        spin_briefly()  # as text_generator's threads do: what is compared is the loop
        from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

        folder = json.loads(args["model_config"])["parameters"]["folder"]["string_value"]
        self._tokenizer = PreTrainedTokenizerFast(tokenizer_file=f"{folder}/tokenizer.json")
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()

    def execute(self, requests: list[Any]) -> None:
        """One answer after the other."""
        for request in requests:
            sender = request.get_response_sender()
            self._answer(_string(request, "text_input"), json.loads(_string(request, "sampling_parameters"))["max_tokens"], sender)
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def _answer(self, prompt: str, tokens: int, sender: Any) -> None:
        asked = self._tokenizer(prompt, return_tensors="pt")
        self._model.generate(
            input_ids=asked.input_ids,
            attention_mask=asked.attention_mask,
            max_new_tokens=tokens,
            min_new_tokens=tokens,
            do_sample=False,
            streamer=_Sent(self._tokenizer, sender),
        )


class _Sent:
    """A streamer of transformers, which sends each token's text; `generate` gives it the prompt first."""

    def __init__(self, tokenizer: Any, sender: Any) -> None:
        self._tokenizer = tokenizer
        self._sender = sender
        self._has_prompt = False

    def put(self, value: Any) -> None:
        if self._has_prompt:
            text = np.array([self._tokenizer.decode(value).encode()], np.object_)
            tensors = [pb_utils.Tensor("text_output", text), pb_utils.Tensor("num_output_tokens", np.array([1], np.uint32))]
            self._sender.send(pb_utils.InferenceResponse(tensors))
        self._has_prompt = True

    def end(self) -> None:
        pass


def _string(request: Any, name: str) -> str:
    text: bytes = pb_utils.get_input_tensor_by_name(request, name).as_numpy()[0]
    return text.decode()
