"""Makes the later requests of a sequence wait until the request that starts it has ended.

If all of a model's sequence slots are taken, Triton holds back a new sequence's start and every request that follows it.
Those that follow would occupy slots (`admission/model_slots`) that running sequences need, until their deadlines. Starts
that other processes have sent are not known here. Called by `inference/inference`, with the models of a call that batch by
sequences.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from control_plane.admission.permit import Permit
from control_plane.core.errors import DeadlineExceeded
from control_plane.core.infer_call import InferCall

_RETRY_AFTER_S = 1.0
"""When a client may try again whose later requests fill the waiting room."""


@dataclass(slots=True)
class _Starts:
    """Starts of one sequence that have not ended."""

    under_way: int = 0
    have_ended: asyncio.Event = field(default_factory=asyncio.Event)


class SequenceStarts:
    """Starts of sequences that one process has under way, by model and sequence id."""

    def __init__(self) -> None:
        self._starts: dict[tuple[str, str], _Starts] = {}

    def begin(self, call: InferCall, models: Iterable[str], permit: Permit) -> None:
        """Note a start until its permit's slot is free, or it has ended without one."""
        sequences = [(model, call.sequence_id) for model in models]
        for sequence in sequences:
            self._starts.setdefault(sequence, _Starts()).under_way += 1
        permit.at_end = lambda: self._end(sequences)

    async def queue(self, call: InferCall, batching: list[str], permit: Permit, deadline_s: float) -> None:
        """Note the start of a sequence; of a later request wait for that. `batching` are the models that batch by sequences.

        Raises DeadlineExceeded, LimitExceeded, Overloaded.
        """
        permit.continues_sequence = bool(batching) and not call.starts_sequence
        if call.starts_sequence:
            self.begin(call, batching, permit)
        else:
            await self.wait(call, batching, permit, deadline_s)

    async def wait(self, call: InferCall, models: Iterable[str], permit: Permit, deadline_s: float) -> None:
        """Wait in the waiting room until the starts of the call's sequence have ended. Raises DeadlineExceeded, LimitExceeded,
        Overloaded."""
        for starts in filter(None, [self._starts.get((model, call.sequence_id)) for model in models]):
            place = permit.enter_room(_RETRY_AFTER_S)
            permit.is_waiting = True
            try:
                async with asyncio.timeout_at(deadline_s):
                    await starts.have_ended.wait()
            except TimeoutError:
                raise DeadlineExceeded("the request that starts this sequence was not answered before the deadline") from None
            finally:
                permit.is_waiting = False
                place.leave()

    def _end(self, sequences: Iterable[tuple[str, str]]) -> None:
        for sequence in sequences:
            starts = self._starts[sequence]
            starts.under_way -= 1
            if not starts.under_way:
                del self._starts[sequence]
                starts.have_ended.set()
