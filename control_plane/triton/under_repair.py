"""Models of the only server that are being loaded anew since a Python process of theirs has died: requests for
them wait. A fleet has replicas elsewhere, and its own view of what is LOADING.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress

from control_plane.core.errors import Overloaded

_SOONEST_RETRY_S = 1.0


class ModelsUnderRepair:
    """Gate of the models under repair, in each process that sends requests."""

    def __init__(self) -> None:
        self.ready_s: Mapping[str, float] = {}
        """Model -> when it is expected to be ready, on the machine's monotonic clock."""
        self._copies: Counter[str] = Counter()
        """How often a model has left repair; of models that have been under repair."""
        self._changed = asyncio.Event()
        self._followers: list[Callable[[Mapping[str, float]], None]] = []

    def __contains__(self, model: str) -> bool:
        return model in self.ready_s

    def follow(self, follower: Callable[[Mapping[str, float]], None]) -> None:
        """Tell one more process of all changes."""
        self._followers.append(follower)

    def show(self, ready_s: Mapping[str, float]) -> None:
        """Replace what is under repair, and let go on who waits for anything else."""
        self._copies.update(self.ready_s.keys() - ready_s.keys())
        self.ready_s = dict(ready_s)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for follower in self._followers:
            follower(self.ready_s)

    def copy_of(self, model: str) -> int:
        """Return a number that tells a model's copies apart: those before and after it was loaded anew."""
        return self._copies.get(model, 0)  # every request asks: a Counter's own answer to an unknown name is Python code

    async def wait(self, model: str, *, timeout_s: float) -> float:
        """Return once the model is not under repair, with what is left of the time. Raises Overloaded: it will
        not be ready in time."""
        now_s = asyncio.get_running_loop().time
        deadline_s = now_s() + timeout_s
        while (ready_s := self.ready_s.get(model)) is not None:
            if ready_s > deadline_s or now_s() >= deadline_s:
                again_s = max(_SOONEST_RETRY_S, ready_s - now_s())
                text = f"model '{model}' has lost its Python process and is being loaded anew; try again in {again_s:.1f} s"
                raise Overloaded(text, retry_after_s=again_s)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(deadline_s):
                    await self._changed.wait()
        return deadline_s - now_s()
