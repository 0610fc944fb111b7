"""Triton's entry point of the backend `text_generator`: one object per instance.

PyTorch and transformers are imported in `initialize` only: Triton starts one more stub per load to complete the configuration.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from python_backends.runtime.engines.cpu import spin_briefly
from python_backends.runtime.errors import BackendError, ConfigError, ExecutionError
from python_backends.runtime.machine import this_machine
from python_backends.runtime.model_config import ModelConfig, parse_model_config
from python_backends.runtime.streaming.budget import PARAMETER, weight_memory_bytes
from python_backends.runtime.triton import respond, version_directory
from python_backends.runtime.variants.served_variant import ServedVariant
from python_backends.runtime.variants.variant import choose_variant
from python_backends.runtime.variants.variant_choice import AUTO
from python_backends.text_generator.metrics import Metrics


class TritonPythonModel:
    """An instance of a model that writes text."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Fill in what the configuration lacks; Triton calls this once per load, in a stub of its own."""
        from python_backends.text_generator.request import completed

        # as_dict() is the object that Triton reads back.
        config = auto_complete_model_config.as_dict()
        config.update(completed(config))
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        """Load the model; an error's text is the reason that Triton reports."""
        document = json.loads(args["model_config"])
        config, kind = parse_model_config(document), args["model_instance_kind"]
        if config.max_batch_size or not document.get("model_transaction_policy", {}).get("decoupled"):
            raise ConfigError(f"model '{config.name}': it needs max_batch_size 0 and model_transaction_policy {{ decoupled: true }}")
        if weight_memory_bytes(config) is not None and kind != "GPU":
            raise ConfigError(f"model '{config.name}': parameter '{PARAMETER}' is for a GPU: on a CPU all weights stay in memory")
        folder, variant, reason = _weights(args, config, kind)
        # Only now: without a variant the reason above is worth more than that a library is missing.
        spin_briefly()
        try:
            from python_backends.text_generator.serving import Serving
        except ImportError as exc:
            raise ConfigError(f"model '{config.name}' needs PyTorch and transformers ({exc}): `make models` installs them") from exc
        self._serving = Serving(folder, config, kind=kind, device_id=int(args["model_instance_device_id"]))
        labels = {"model": config.name, "version": args["model_version"], "variant": variant}
        self._metrics = Metrics(self._serving.counts, labels)
        self._served = ServedVariant({**labels, "reason": reason}) if variant else None
        pb_utils.Logger.log_info(f"model '{config.name}' serves {reason}")

    def execute(self, requests: list[Any]) -> None:
        """Queue the requests; their answers go through their response senders."""
        for request in requests:
            sender = request.get_response_sender()
            inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
            refused = self._serving.ask(inputs, request.parameters(), partial(_Sender, sender))
            if refused is not None:
                sender.send(respond(refused), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def finalize(self) -> None:
        """End the loop and release the model."""
        self._serving.close()
        self._metrics.close()
        if self._served is not None:
            self._served.close()


class _Sender:
    """Response sender of one request, in the form that it asked for: part by part, or all at the end."""

    def __init__(self, sender: Any, wish: Any) -> None:
        self._sender = sender
        self._wish = wish
        self._text: list[str] = [wish.echo]
        self._tokens = 0

    def send(self, part: Any, *, is_last: bool) -> None:
        """See `outbox.Sender`."""
        if isinstance(part, BackendError):
            self._sender.send(respond(part), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        self._text.append(part.text)
        self._tokens += part.tokens
        if not (is_last or self._wish.stream):
            return
        answer, self._text, self._tokens = self._answer(part.finish_reason), [], 0
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if is_last else 0
        try:
            self._sender.send(respond(answer), flags=flags)
        except Exception as exc:
            if not is_last:
                raise
            # For example if shared memory is full: an error needs less of it.
            error = respond(ExecutionError(f"the answer cannot be handed over: {exc}"))
            self._sender.send(error, flags=flags)

    def is_cancelled(self) -> bool:
        """See `outbox.Sender`."""
        return bool(self._sender.is_cancelled())

    def _answer(self, finish_reason: str) -> Mapping[str, Any]:
        told = {
            # Of a part that is not the last, vLLM's backend says "None".
            "finish_reason": np.array([(finish_reason or "None").encode()], np.object_),
            "num_input_tokens": np.array([len(self._wish.tokens)], np.uint32),
            "num_output_tokens": np.array([self._tokens], np.uint32),
        }
        text = np.array(["".join(self._text).encode()], np.object_)
        return {"text_output": text, **{name: array for name, array in told.items() if name in self._wish.tells}}


def _weights(args: Mapping[str, str], config: ModelConfig, kind: str) -> tuple[Path, str, str]:
    """Return the folder of the weights, the variant's name (none of a plain folder), and why it is this one."""
    version = version_directory(args)
    if folder := config.parameters.get("folder"):
        return version / folder, "", f"the folder '{folder}', as configured"
    if (version / "config.json").is_file():
        return version, "", "its version's folder, there are no variants"
    machine_kind = this_machine("gpu" if kind == "GPU" else "cpu").kind
    variant = choose_variant(version, config.parameters.get("variant", AUTO), kind=kind, machine_kind=machine_kind)
    return variant.directory, variant.name, variant.reason
