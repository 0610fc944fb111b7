"""Order in which models are loaded at once into a Triton that has just started.

What Triton has loaded as a step of an ensemble stays a step for it when the model is loaded by its own name, too,
without having changed: an unload of the ensemble with its dependents takes it along. So a model is loaded by its own
name before what needs it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence


async def after_steps(closures: Mapping[str, Sequence[str]], load: Callable[[str], Awaitable[None]]) -> list[BaseException | None]:
    """Load models at once, but each after those of them that are its steps; return what became of each.

    `closures` has each model's steps, theirs and itself. Ensembles in a circle, which Triton refuses, do not wait for
    each other; a step that fails holds nothing up.
    """
    ended = {name: asyncio.Event() for name in closures}

    async def load_one(name: str) -> None:
        try:
            for step in closures[name]:
                if step in ended and len(closures[step]) < len(closures[name]):
                    await ended[step].wait()
            await load(name)
        finally:
            ended[name].set()

    return await asyncio.gather(*map(load_one, closures), return_exceptions=True)
