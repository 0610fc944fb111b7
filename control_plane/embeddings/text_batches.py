"""Splits the texts of one embeddings call into batches of the model's size and sends a few of them at a
time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from control_plane.core.infer_call import InferCall
from control_plane.embeddings.domain.embedding_tensors import EmbeddedText, infer_request, read_answer
from control_plane.embeddings.domain.text_model import TextModel
from control_plane.inference.model_configuration.model_configs import path_of_model
from control_plane.metering.domain.compute_units import estimated_tokens
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.triton.ports import Slot

MAX_BATCHES_IN_FLIGHT = 4
"""Batches of one call in flight: enough to keep a model busy, few enough that no call fills the model's
queue."""

_ID_BYTES = 8  # of a token id, INT64


class SendsBatches(Protocol):
    """Sender of batches: `embeddings/dispatched_batches`, or to one server `embeddings/copies`."""

    def send(self, request: HttpRequest, inputs: Sequence[bytes], *, timeout_s: float, slot: Slot | None) -> Awaitable[HttpAnswer]:
        """Send the request for a batch of `inputs`, and return the answer. Raises as `triton/ports.HttpUpstream.send`."""


@dataclass(slots=True)
class TextBatches:
    """Batches of one call's texts: sends them, and puts the rows back in order."""

    sender: SendsBatches
    call: InferCall
    model: TextModel
    are_tokens: bool
    left_s: Callable[[], float]
    """Returns the seconds that the call has left. Raises DeadlineExceeded: none are left."""
    slot: Slot | None = None
    """Slot of the call, which all its batches share."""
    yields: bool = False
    """Whether the call is work in the background."""

    async def compute(self, inputs: Sequence[bytes]) -> list[EmbeddedText]:
        """Embed the inputs; rows in the order of `inputs`.

        Raises the error of the first batch that fails (`read_answer`), after cancelling the others.
        """
        # Sorted by length, since the rows of a batch are padded to its longest: equal lengths waste least
        # computing.
        order = sorted(range(len(inputs)), key=lambda number: len(inputs[number]))
        size = self.model.max_batch_size or 1
        batches = [order[at : at + size] for at in range(0, len(order), size)]
        found: dict[int, EmbeddedText] = {}
        if len(batches) == 1:
            await self._send_all(iter(batches), inputs, found)
        else:
            await self._send_some_at_once(iter(batches), inputs, found)
        return [found[number] for number in range(len(inputs))]

    async def _send_some_at_once(self, batches: Iterator[list[int]], inputs: Sequence[bytes], found: dict[int, EmbeddedText]) -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(MAX_BATCHES_IN_FLIGHT):
                    tasks.create_task(self._send_all(batches, inputs, found), name="text-batches")
        except ExceptionGroup as group:  # callers know single errors; the group's others are of the same cause
            raise group.exceptions[0] from group

    async def _send_all(self, batches: Iterator[list[int]], inputs: Sequence[bytes], found: dict[int, EmbeddedText]) -> None:
        """Send batches one after the other until none is left; `batches` is an iterator that several tasks
        share."""
        for batch in batches:
            found.update(zip(batch, await self._send([inputs[number] for number in batch]), strict=True))

    async def _send(self, inputs: list[bytes]) -> list[EmbeddedText]:
        target = b"%b/infer" % path_of_model(self.call.model_name, self.call.model_version)
        request = infer_request(self.model, target, inputs, are_tokens=self.are_tokens, yields=self.yields)
        answer = await self.sender.send(request, inputs, timeout_s=self.left_s(), slot=self.slot)
        rows = zip(inputs, read_answer(self.model, answer, len(inputs)), strict=True)
        return [EmbeddedText(values, self._tokens(each) if tokens is None else tokens) for each, (values, tokens) in rows]

    def _tokens(self, each: bytes) -> int:
        """The number of tokens of an input, for models that do not return it; estimated for texts."""
        return len(each) // _ID_BYTES if self.are_tokens else estimated_tokens(len(each))
