"""Fence of a node: which gateway may change what is loaded there; pure decisions.

The fleet's leader shows the token of its lease with each look before a change and with each change. The newest
token that a node has seen wins, so a leader that was paused past its lease changes nothing. One fleet at a time
owns a node: another one is refused for as long as a gateway of the first has been heard of lately, by the node's
own clock alone. A lower token of the owner counts again once nobody has shown the newest for as long: a store that lost the
lease may give lower ones where a host's clock is behind.
"""

from __future__ import annotations

from dataclasses import dataclass

OWNER_LASTS_S = 10.0
"""Time after which a fleet of which nothing was heard owns the node no longer, and a token that was not shown fences off no
lower one: longer than the lease, so that a leader that is cut off has stopped loading by then."""


@dataclass(frozen=True, slots=True)
class Term:
    """Right to change models, as the leader of a fleet shows it."""

    fleet: str
    """Name of the fleet; gateways that share no state are fleets of their own."""
    token: int
    """Fencing token of the leader's lease."""


class Fence:
    """Fencing state of one node: the fleet that owns it, and the newest token of that."""

    def __init__(self) -> None:
        self._owner: str | None = None
        self._token = 0
        self._heard_s = self._shown_s = 0.0
        """When a gateway of the owner was last heard, and when its leader last showed the newest token."""

    @property
    def owner(self) -> str | None:
        """The fleet that has changed models here last; None if none has yet."""
        return self._owner

    def heard(self, fleet: str, now_s: float) -> None:
        """Note a sign of life of one of the fleet's gateways."""
        if fleet == self._owner:
            self._heard_s = now_s

    def left(self, fleet: str) -> None:
        """Note that the last gateway of the fleet has said goodbye: any other may own the node at once."""
        if fleet == self._owner:
            self._owner = None

    def refusal(self, term: Term, now_s: float) -> str | None:
        """Return why the holder of this term may not change models here; None if it may, which is remembered."""
        is_other = self._owner is not None and term.fleet != self._owner
        if is_other and now_s - self._heard_s < OWNER_LASTS_S:
            return (
                f"fleet {self._owner!r} uses this node, and {term.fleet!r} must not load there; gateways of one fleet list the same "
                "servers, or set the same --fleet-name, and share one --state-url"
            )
        if term.fleet == self._owner and term.token < self._token and now_s - self._shown_s < OWNER_LASTS_S:
            return f"another gateway leads the fleet now, with token {self._token}; this one had {term.token}"
        self._owner, self._token = term.fleet, term.token
        self._heard_s = self._shown_s = now_s
        return None
