"""Callers of a language model, who all ask at the same moment; unmodified clients of Triton over gRPC."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import tritonclient.grpc.aio as triton

_ENDLESS = 1024
"""Tokens of an answer that is left before its end."""


@dataclass(frozen=True, slots=True)
class Heard:
    """One caller's answer: its tokens, and the seconds from the request to the first and to the last one."""

    tokens: int
    first_s: float
    last_s: float


def ask(address: str, model: str, prompts: Sequence[str], tokens: int) -> list[Heard]:
    """Have each prompt answered with so many tokens, all at once; prompts that are alike would not be cheaper."""
    return asyncio.run(_ask(address, model, prompts, tokens))


def ask_beside(address: str, model: str, prompt: str, long: str) -> tuple[float, float]:
    """Ask for one token after a long prompt while an answer to another one is being written.

    Returns the longest pause between two tokens of the latter meanwhile, and what the long prompt took, both in seconds.
    """
    return asyncio.run(_ask_beside(address, model, prompt, long))


async def _ask(address: str, model: str, prompts: Sequence[str], tokens: int) -> list[Heard]:
    async with triton.InferenceServerClient(address) as client:
        await client.get_model_metadata(model)  # the connection is there before the first second is counted
        return await asyncio.gather(*(_listen(client, model, prompt, tokens) for prompt in prompts))


async def _ask_beside(address: str, model: str, prompt: str, long: str) -> tuple[float, float]:
    async with triton.InferenceServerClient(address) as client, asyncio.TaskGroup() as group:
        heard_s: list[float] = []
        writes = asyncio.Event()

        async def write() -> None:
            async for _ in _tokens(client, model, prompt, _ENDLESS):
                heard_s.append(time.perf_counter())
                writes.set()

        writer = group.create_task(write())
        await writes.wait()
        began = len(heard_s) - 1
        read = await _listen(client, model, long, 1)
        heard_s.append(time.perf_counter())  # the pause that lasts
        writer.cancel()
        return max(after - before for before, after in pairwise(heard_s[began:])), read.first_s


async def _listen(client: Any, model: str, prompt: str, tokens: int) -> Heard:
    began_s, first_s, last_s, count = time.perf_counter(), 0.0, 0.0, 0
    async for written in _tokens(client, model, prompt, tokens):
        last_s = time.perf_counter() - began_s
        first_s = first_s or last_s
        count += written
    return Heard(count, first_s, last_s)


async def _tokens(client: Any, model: str, prompt: str, tokens: int) -> AsyncIterator[int]:
    """The number of tokens of each part of an answer, as it comes."""
    sampling = json.dumps({"temperature": 0, "max_tokens": tokens, "ignore_eos": True})
    inputs = [
        _input("text_input", "BYTES", np.array([prompt.encode()], np.object_)),
        _input("stream", "BOOL", np.array([True])),
        _input("sampling_parameters", "BYTES", np.array([sampling.encode()], np.object_)),
        _input("return_num_output_tokens", "BOOL", np.array([True])),
    ]

    async def requests() -> AsyncIterator[dict[str, Any]]:
        yield {"model_name": model, "inputs": inputs, "enable_empty_final_response": True}

    async for result, error in client.stream_infer(requests()):
        if error is not None:
            raise error
        if (written := result.as_numpy("num_output_tokens")) is not None:
            yield int(written.sum())
        if result.get_response().parameters["triton_final_response"].bool_param:
            break


def _input(name: str, datatype: str, values: Any) -> Any:
    made = triton.InferInput(name, [1], datatype)
    made.set_data_from_numpy(values)
    return made
