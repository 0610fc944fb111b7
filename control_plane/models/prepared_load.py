"""The last step of a load: Triton is asked for it, and watched until it has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from control_plane.core.errors import DeadlineExceeded, ModelLoadFailed
from control_plane.core.model import ModelOverride
from control_plane.models.ports import LoadWatch
from control_plane.triton.ports import ModelControl
from control_plane.triton.triton_log import is_told_in_log_only


@dataclass(slots=True)
class PreparedLoad:
    """Load of a model for which everything is done but asking Triton (`ModelService.prepared`)."""

    control: ModelControl
    models: Sequence[str]
    """The model, then an ensemble's steps."""
    override: ModelOverride | None
    watch: LoadWatch
    timeout_s: float
    asked_s: float | None = field(default=None, init=False)
    """When Triton was asked, on the event loop's clock; None if it has not been."""

    async def load(self) -> None:
        """Ask Triton, without any await before, and return when the model is ready. Raises ModelLoadFailed,
        DeadlineExceeded, UpstreamUnavailable."""
        self.asked_s = asyncio.get_running_loop().time()
        await self.watch.carry_out(self.models, self._ask, timeout_s=self.timeout_s)

    async def _ask(self, timeout_s: float) -> None:
        await self.control.load(self.models[0], override=self.override, timeout_s=timeout_s)


class Unwatched:
    """`models/ports.LoadWatch` of an attached Triton, run by others: its answers are all that is known, and
    its log is not here.
    """

    async def carry_out(self, models: Sequence[str], load: Callable[[float], Awaitable[None]], *, timeout_s: float) -> None:
        try:
            await load(timeout_s)
        except ModelLoadFailed as exc:
            if not is_told_in_log_only(str(exc)):
                raise
            raise ModelLoadFailed(f"{exc}; the log of that Triton says why", upstream_code=exc.upstream_code) from exc
        except DeadlineExceeded as exc:
            raise DeadlineExceeded(
                f"model '{models[0]}' was not loaded within {timeout_s:g} s (TIDEGATE_LOAD_TIMEOUT_S); that Triton goes on with it"
            ) from exc
