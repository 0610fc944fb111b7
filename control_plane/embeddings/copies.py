"""Copies of embeddings calls for another model, which nobody waits for: some of a call's texts, embedded by that model.

Made by `embeddings/embeddings` for a shadow (`inference/routes/shadowing`); both answers are compared as tensors `embedding`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np
from numpy.typing import NDArray

from control_plane.core.errors import DeadlineExceeded
from control_plane.core.infer_call import InferCall
from control_plane.embeddings.domain.embedding_tensors import EmbeddedText
from control_plane.embeddings.text_batches import TextBatches
from control_plane.embeddings.text_models import TextModels
from control_plane.protocols.http1 import HttpAnswer, HttpRequest
from control_plane.triton.ports import Slot, Upstream

MAX_TEXTS = 8
"""Texts of a call that are copied: a call may have thousands."""
OUTPUT = "embedding"


@dataclass(frozen=True, slots=True)
class OneServer:
    """Sender of batches to one server, which was chosen before: `embeddings/text_batches.SendsBatches`."""

    server: Upstream

    def send(self, request: HttpRequest, inputs: Sequence[bytes], *, timeout_s: float, slot: Slot | None) -> Awaitable[HttpAnswer]:
        return self.server.http.send(request, timeout_s=timeout_s, slot=slot)


@dataclass(frozen=True, slots=True)
class EmbeddingsCopy:
    """Copy of an embeddings call."""

    models: TextModels
    call: InferCall
    inputs: Sequence[bytes]
    are_tokens: bool

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.inputs))

    @property
    def is_whole(self) -> bool:
        """Never: of many texts some are copied, and of the original's the cache may have had some."""
        return False

    async def send(self, server: Upstream, *, timeout_s: float) -> list[EmbeddedText]:
        """Embed the texts. Raises what a batch's answer raises, and DeadlineExceeded."""
        ends_s = monotonic() + timeout_s

        def left_s() -> float:
            if (left := ends_s - monotonic()) <= 0.0:
                raise DeadlineExceeded("Deadline Exceeded")
            return left

        model = await self.models.describe(self.call.model_name, self.call.model_version, timeout_s=left_s())
        return await TextBatches(OneServer(server), self.call, model, self.are_tokens, left_s).compute(self.inputs)

    def outputs(self, answer: Any) -> dict[str, NDArray[Any]]:
        """The embeddings of the copied texts, of stable's answer or of this copy's."""
        rows = [each.values for each in answer[: len(self.inputs)]]
        return {OUTPUT: np.stack([np.frombuffer(row, "<f4") for row in rows])}


@dataclass(frozen=True, slots=True)
class CopyableEmbeddings:
    """An answered embeddings call, of which a copy can be made."""

    models: TextModels
    call: InferCall
    inputs: Sequence[bytes]
    are_tokens: bool

    def body_bytes(self) -> int:
        return sum(map(len, self.inputs[:MAX_TEXTS]))

    def unit(self, call: InferCall) -> tuple[bytes, ...]:
        return tuple(self.inputs[:MAX_TEXTS])

    def copy_for(self, model_name: str, model_version: str) -> EmbeddingsCopy:
        call = InferCall(model_name, model_version, "", ())
        return EmbeddingsCopy(self.models, call, tuple(map(bytes, self.inputs[:MAX_TEXTS])), self.are_tokens)
