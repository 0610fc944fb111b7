"""Promises of a node to gateways about what it has loaded; pure bookkeeping by the node's own clock.

A gateway may answer from its cache by the node's fingerprints until `VALID_S` after it sent the latest ping that
was answered. The node counts `HELD_S`, which is longer, from its answer, which came later: before that it changes
nothing without the gateway's acknowledgement. No two clocks are compared.
"""

from __future__ import annotations

VALID_S = 2.0
"""Time for which a gateway relies on a node's fingerprints after a ping that was answered."""
HELD_S = 3.0
"""Time for which a node waits for a gateway that does not acknowledge, after its answer to the gateway's latest
ping: half as long again, for clocks that run at different speeds."""
PING_EVERY_S = 0.5


class Promises:
    """Promises to the gateways that a node has answered, each until when it holds."""

    def __init__(self, started_s: float) -> None:
        """What the node promised before it was started at `started_s` is unknown, and may hold still."""
        self._until_s: dict[object, float] = {object(): started_s + HELD_S}

    def made(self, gateway: object, now_s: float) -> None:
        """Note an answer to a gateway's ping."""
        self._forget_those_over(now_s)  # here, too: what is loaded may not change for days, while gateways come and go
        self._until_s[gateway] = now_s + HELD_S

    def released(self, gateway: object) -> None:
        """Note that a gateway relies on nothing any more: it has said goodbye."""
        self._until_s.pop(gateway, None)

    def left_s(self, gateway: object, now_s: float) -> float:
        """Return the seconds for which a promise holds still; 0 if there is none."""
        return max(0.0, self._until_s.get(gateway, now_s) - now_s)

    def longest_s(self, now_s: float, *, but: frozenset[object] = frozenset()) -> float:
        """Return the seconds until no promise holds any more, without those to `but`; forgets those that are
        over."""
        self._forget_those_over(now_s)
        return max((until_s - now_s for each, until_s in self._until_s.items() if each not in but), default=0.0)

    def _forget_those_over(self, now_s: float) -> None:
        self._until_s = {each: until_s for each, until_s in self._until_s.items() if until_s > now_s}
