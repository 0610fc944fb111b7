"""Table of the fingerprints of loaded models in this process; read by every request whose response may be
cached.

`models/loaded_contents` writes it: before a load or unload begins the model's fingerprint becomes unknown,
and it is known again once it is certain what was loaded. In between, and for models that others have loaded,
the response cache is neither read nor written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf

from control_plane.core.fingerprint import Fingerprint
from control_plane.host.boot_clock import boot_time_s
from control_plane.triton.ports import Upstream

_LATEST_S = 300.0
"""Time for which what was certain last says something of what is served: as long as a load may take. Where it stays
uncertain, as after a load that timed out, other contents may be served, which must not compute a request twice."""


class Fingerprints:
    """Fingerprints by model. Where there is only one process this is also its `models/ports.FingerprintBoard`
    and a `triton/server_state.ServerObserver`.
    """

    def __init__(self, *, now_s: Callable[[], float] = boot_time_s) -> None:
        """`now_s` is the clock of `rely_until`."""
        self._known: dict[str, Fingerprint] = {}
        self._latest: dict[str, Fingerprint] = {}
        self._unknown_s: dict[str, float] = {}
        """Since when models of `_latest` are unknown."""
        self._generation = 0
        self._until_s = inf
        self._now_s = now_s

    def rely_until(self, until_s: float) -> None:
        """Have all fingerprints unknown from that time on, by a clock that all processes of this machine share;
        infinity for no end. A node on another host may load others then without having been heard."""
        self._until_s = until_s

    @property
    def generation(self) -> int:
        """Counter that grows whenever a fingerprint may have changed."""
        if self._until_s != inf and self._now_s() >= self._until_s:
            self._generation += 1  # another one each time it is asked for: nothing that was cached under one holds
        return self._generation

    def get(self, model: str) -> Fingerprint | None:
        """Return the fingerprint of what is served under that name now; None if that is not certain.

        The same object means that nothing has been loaded in between; callers compare by identity.
        """
        if self._until_s != inf and self._now_s() >= self._until_s:
            return None
        return self._known.get(model)

    def latest(self, model: str) -> Fingerprint | None:
        """Return the last fingerprint that was certain, for some minutes. While a replica of a fleet is loaded anew the
        others serve what they did before."""
        if self._unknown_s or self._until_s != inf:  # each request asks, and mostly all are known
            since_s = min(self._until_s, self._unknown_s.get(model, inf))
            if since_s != inf and self._now_s() >= since_s + _LATEST_S:
                return None
        return self._latest.get(model)

    def change(self, changes: Mapping[str, Fingerprint | None]) -> None:
        """Set fingerprints by model; None makes one unknown."""
        self._generation += 1
        for model, fingerprint in changes.items():
            if fingerprint is not None:
                self._known[model] = self._latest[model] = fingerprint
                self._unknown_s.pop(model, None)
            elif self._known.pop(model, None) is not None:
                self._unknown_s[model] = self._now_s()

    def all(self) -> dict[str, Fingerprint]:
        """Return all known fingerprints by model."""
        return dict(self._known)

    def forget_all(self) -> None:
        """Make all unknown, since Triton has ended or may have."""
        self._generation += 1
        self._unknown_s.update(dict.fromkeys(self._known, self._now_s()))
        self._known.clear()

    async def publish(self, changes: Mapping[str, Fingerprint | None]) -> None:
        self.change(changes)

    async def make_unknown(self, models: Iterable[str]) -> None:
        """Do nothing: in a single process they are unknown already, and no other server has them."""

    async def forget(self, models: Iterable[str]) -> None:
        """Do nothing, for the same reason as `doubt`."""

    def up(self, upstream: Upstream, server: str = "") -> None:
        """Do nothing: whoever loads models publishes their fingerprints."""

    def down(self, reason: str, server: str = "") -> None:
        self.forget_all()

    def silence_changed(self, is_silent: bool, server: str) -> None:
        """Do nothing: what is loaded stays loaded."""

    def left(self, server: str) -> None:
        """Do nothing: the server went down before it left."""
