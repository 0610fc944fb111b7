"""Triton's entry point of the backend `text_encoder`: one object per instance, with a model, a queue and
lanes of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from python_backends.batching.background import BackgroundLanes
from python_backends.batching.batch_queue import BatchQueue, Waiter
from python_backends.batching.counts import Tally
from python_backends.batching.lanes import Lanes
from python_backends.batching.metrics import Metrics
from python_backends.batching.plan import CostColumns
from python_backends.runtime.errors import BackendError, ConfigError, QueueFull
from python_backends.runtime.execution import Answer, InferenceRequest
from python_backends.runtime.machine import this_machine
from python_backends.runtime.model_config import ModelConfig, parse_model_config
from python_backends.runtime.runtimes import Runtime, open_runtime
from python_backends.runtime.signature import check_signature
from python_backends.runtime.triton import read, respond, send, version_directory
from python_backends.runtime.variants.latency_table import CostMs, token_cost
from python_backends.runtime.variants.served_variant import ServedVariant
from python_backends.runtime.variants.variant import choose_variant
from python_backends.runtime.variants.variant_choice import AUTO, Variant
from python_backends.runtime.variants.variant_mix import ONE_SHORT_TEXT, PARAMETER, Mix
from python_backends.runtime.yielding import YieldingRuntime
from python_backends.text_encoder.division import Divided, divide
from python_backends.text_encoder.encoder import Encoder, EncoderRequest
from python_backends.text_encoder.inputs import TokenInputs
from python_backends.text_tokenizer.token_count import without_count

# While no batch can start anyway, `execute` waits this long, so that Triton gathers more requests for its
# next call, which is a round trip. With 95 % sentences and 5 % pages at 64 callers this gives 5 % more
# sequences/s; 8 ms gives no more. A sentence that could overtake a page is delayed by as much.
GATHER_WAIT_S = 0.003

DEFAULT_LANES = 2
DEFAULT_MAX_WAITING = 4096
WARM_LENGTH = 16
TOKEN_TYPES = {"TYPE_INT32": np.int32, "TYPE_INT64": np.int64}


class TritonPythonModel:
    """An instance of a model that encodes token sequences."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the variant and check the configuration against it; an error's text is the reason that Triton
        reports.
        """
        config = parse_model_config(json.loads(args["model_config"]))
        if not config.max_batch_size:
            raise ConfigError(f"model '{config.name}': max_batch_size must be at least 1, rows of [batch, length] are what is batched here")
        lanes = _at_least_one(config, "lanes", DEFAULT_LANES)
        self._max_waiting = _at_least_one(config, "max_waiting", DEFAULT_MAX_WAITING)
        self._inputs = TokenInputs(version_directory(args), config)
        variant, kind = _choose(args, config), args["model_instance_kind"]
        computed = without_count(self._inputs.config)
        self._runtime = open_runtime(variant, computed, kind=kind, device_id=int(args["model_instance_device_id"]))
        check_signature(computed, self._runtime.signature)
        _warm(self._runtime)
        tally = Tally()
        encoder = Encoder(self._runtime.run, [tensor.name for tensor in config.outputs], tally)
        labels = {"model": config.name, "version": args["model_version"], "variant": variant.name}
        self._metrics = Metrics(tally, labels)
        self._served = ServedVariant({**labels, "reason": variant.reason})
        columns = self._columns = CostColumns(_cost(variant), max_rows=config.max_batch_size)
        self._in_background: BackgroundLanes[EncoderRequest] | None = None
        self._yielding: YieldingRuntime | None = None
        if kind == "CPU" and config.boolean("background"):
            self._yielding = YieldingRuntime(variant, computed, kind=kind, device_id=int(args["model_instance_device_id"]))
            background = Encoder(self._yielding.run, [tensor.name for tensor in config.outputs], tally)
            self._in_background = BackgroundLanes(columns, self._prepared, background.compute)
        self._lanes: Lanes[EncoderRequest] = Lanes(BatchQueue(columns, lanes=lanes), encoder.compute, count=lanes)

    def execute(self, requests: list[Any]) -> list[Any]:
        """Return a response for each request that can be answered now, None for each that is answered after
        its batch.
        """
        now_s = time.monotonic()
        responses: list[Any] = [None] * len(requests)
        asked = dict(enumerate(read(request, self._inputs.check) for request in requests))
        if self._in_background is not None:
            for index, refusal in self._put_in_background(requests, asked, self._in_background).items():
                responses[index] = respond(refusal)
        waiting: dict[int, Divided] = {}
        for index, plain in zip(asked, self._inputs.tokenized([*asked.values()]), strict=True):
            if isinstance(plain, BackendError):
                responses[index] = respond(plain)
            else:
                waiting[index] = divide(plain, self._columns, now_s)
        whole = [waiter for each in waiting.values() for waiter in each.waiters]
        # What was divided is no single batch, let alone one so short that nothing could overtake it.
        computed = self._lanes.try_compute_inline(whole) if len(whole) == len(waiting) else None
        answers = self._admit(requests, waiting) if computed is None else computed
        for index, answer in zip(waiting, answers, strict=True):
            responses[index] = respond(answer) if answer is not None else None
        if None in answers:
            self._lanes.hold(GATHER_WAIT_S)
        return responses

    def finalize(self) -> None:
        """Answer all waiting requests, then release the model."""
        self._lanes.close()
        if self._in_background is not None:
            self._in_background.close()
        if self._yielding is not None:
            self._yielding.close()
        self._metrics.close()
        self._served.close()
        self._runtime.close()

    def _admit(self, requests: Sequence[Any], waiting: Mapping[int, Divided]) -> list[Answer | None]:
        """Queue requests while there is room; return None for each queued one, the refusal for the others."""
        answers: list[Answer | None] = []
        admitted: list[Waiter[EncoderRequest]] = []
        rows = self._lanes.waiting_rows
        for index, each in waiting.items():
            rows += each.rows
            answers.append(self._refusal(rows))
            if answers[-1] is None:
                each.request.send = partial(send, requests[index].get_response_sender())
                admitted.extend(each.waiters)
        self._lanes.submit(admitted)
        return answers

    def _put_in_background(
        self, requests: Sequence[Any], asked: dict[int, InferenceRequest | BackendError], lanes: BackgroundLanes[EncoderRequest]
    ) -> dict[int, BackendError]:
        """Take what yields out of `asked` and queue it while there is room; return the refusals of the others."""
        refused: dict[int, BackendError] = {}
        for index, plain in [*asked.items()]:
            if isinstance(plain, InferenceRequest) and plain.yields:
                del asked[index]
                rows = len(next(iter(plain.inputs.values())))
                if (refusal := self._refusal(lanes.waiting_rows + rows)) is not None:
                    refused[index] = refusal
                    continue
                request = EncoderRequest(plain)
                request.send = partial(send, requests[index].get_response_sender())
                lanes.submit([request], rows)
        return refused

    def _refusal(self, rows: int) -> QueueFull | None:
        return QueueFull(f"{self._max_waiting} rows are waiting already: try again later") if rows > self._max_waiting else None

    def _prepared(self, requests: Sequence[EncoderRequest]) -> list[Sequence[Waiter[EncoderRequest]] | BackendError]:
        """Tokenize requests in the background, each of which keeps its sender."""
        now_s = time.monotonic()
        prepared: list[Sequence[Waiter[EncoderRequest]] | BackendError] = []
        for request, plain in zip(requests, self._inputs.tokenized([request.plain for request in requests]), strict=True):
            if isinstance(plain, BackendError):
                prepared.append(plain)
                continue
            divided = divide(plain, self._columns, now_s)
            divided.request.send = request.send
            prepared.append(divided.waiters)
        return prepared


def _choose(args: Mapping[str, str], config: ModelConfig) -> Variant:
    kind = args["model_instance_kind"]
    variant = choose_variant(
        version_directory(args),
        config.parameters.get("variant", AUTO),
        kind=kind,
        machine_kind=this_machine("gpu" if kind == "GPU" else "cpu").kind,
        filename=config.default_model_filename,
        mix=Mix.parse(config.parameters.get(PARAMETER, ONE_SHORT_TEXT.text)),
    )
    pb_utils.Logger.log_info(f"model '{config.name}' serves {variant.reason}")
    return variant


def _warm(runtime: Runtime) -> None:
    """Run the model once, since the first run allocates what later runs reuse."""
    tokens = {tensor.name: np.ones((1, WARM_LENGTH), TOKEN_TYPES.get(tensor.data_type, np.int64)) for tensor in runtime.signature.inputs}
    runtime.run([tensor.name for tensor in runtime.signature.outputs], tokens)


def _cost(variant: Variant) -> CostMs:
    return variant.latency_table.cost_ms if variant.latency_table else token_cost


def _at_least_one(config: ModelConfig, key: str, default: int) -> int:
    value = config.integer(key, default)
    if value < 1:
        raise ConfigError(f"model '{config.name}': parameter '{key}' must be at least 1, not {value}")
    return value
