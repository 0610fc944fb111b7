"""Runner of a sharded model's steps: each as soon as the tensors that it takes are there, independent ones at the same time.

It holds the tensors in between until the answer is made, within a budget. What computes a step is handed in
(`inference/sharded_models`). Cancelling it cancels the steps under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from control_plane.core.errors import Overloaded, PayloadTooLarge
from control_plane.core.tensor import RawTensor
from control_plane.sharding.domain.plan import Step

_UNCOUNTED_BYTES = 64 * 1024
"""Tensors of one step up to this size are not counted, as small bodies are not."""

Compute = Callable[[Step, Mapping[str, RawTensor], Sequence[str]], Awaitable[Mapping[str, RawTensor]]]
"""Computes a step from its inputs, by the part's names; returns those of its outputs that are wanted."""


class Bytes(Protocol):
    """Budget of memory for bodies: `frontends/common/body_budget.BodyBudget`."""

    def try_acquire(self, size_bytes: int) -> bool: ...

    def release(self, size_bytes: int) -> None: ...


class HeldBytes:
    """Bytes that the tensors in between of one request take of the budget for bodies, and at most."""

    def __init__(self, budget: Bytes, *, most: int) -> None:
        self._budget = budget
        self._most = most
        self._all = self._counted = 0

    def take(self, size_bytes: int) -> None:
        """Count the tensors of one more message. Raises PayloadTooLarge, Overloaded."""
        self._all += size_bytes
        if self._all > self._most:
            most = f"{self._most} bytes, the most for one request (TIDEGATE_MAX_BODY_BYTES)"
            raise PayloadTooLarge(f"the tensors between the parts take more than {most}")
        if size_bytes > _UNCOUNTED_BYTES:
            if not self._budget.try_acquire(size_bytes):
                raise Overloaded(f"no memory is free for {size_bytes} bytes of tensors between the parts (TIDEGATE_MAX_BUFFERED_BYTES)")
            self._counted += size_bytes

    def release(self) -> None:
        """Give everything back."""
        self._budget.release(self._counted)
        self._all = self._counted = 0


@contextmanager
def held_bytes(budget: Bytes, *, most: int) -> Iterator[HeldBytes]:
    """Bytes that are given back when the block ends."""
    held = HeldBytes(budget, most=most)
    try:
        yield held
    finally:
        held.release()


class StepRun:
    """Run of the steps of one request."""

    def __init__(
        self, steps: Iterable[Step], given: Mapping[str, RawTensor], outputs: Iterable[str], *, optional: Iterable[str], compute: Compute
    ) -> None:
        """`given` are the request's inputs; of those that are `optional` some may be missing."""
        self._left = list(steps)
        self._tensors = dict(given)
        self._there = {*given, *optional}
        self._needed = {*outputs}.union(*(step.takes for step in self._left))
        self._compute = compute
        self._tasks: asyncio.TaskGroup

    async def run(self) -> Mapping[str, RawTensor]:
        """Carry the steps out, and return all tensors by their names. Raises the error of the first step that fails, after
        cancelling the others."""
        try:
            async with asyncio.TaskGroup() as self._tasks:
                await self._follow(self._ready())
        except ExceptionGroup as group:  # callers know single errors
            raise group.exceptions[0] from group
        return self._tensors

    def _ready(self) -> list[Step]:
        """Take the steps whose tensors are there."""
        ready = [step for step in self._left if step.takes <= self._there]
        self._left = [step for step in self._left if step not in ready]
        return ready

    async def _follow(self, ready: list[Step]) -> None:
        """Carry out steps, and those that can be after one of them: a chain of steps needs no further task."""
        while ready:
            step, *others = ready
            for each in others:
                self._tasks.create_task(self._follow([each]), name="sharded-step")
            await self._carry_out(step)
            ready = self._ready()

    async def _carry_out(self, step: Step) -> None:
        inputs = {name: self._tensors[tensor] for name, tensor in step.inputs if tensor in self._tensors}
        wanted = {name: tensor for name, tensor in step.outputs if tensor in self._needed}
        found = await self._compute(step, inputs, tuple(wanted))
        for name, tensor in wanted.items():
            self._tensors[tensor] = found[name]
        self._there |= step.gives
