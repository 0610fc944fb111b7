"""Assignment of requests to the targets of a route: a hash of the route's salt and of what sticks, nothing remembered.

Every process decides alike, and a target that gets more weight takes requests only from those that stand behind
it in the list, last of all from the route's own model: widening never moves anybody back. Pure; called by
`inference/routes/targets`, and by `rollout/` for its simulations.
"""

from __future__ import annotations

from hashlib import blake2b

from control_plane.objects.domain.route import WHOLE, Route, Target


def unit_digest(salt: str, *parts: bytes) -> int:
    """Return the digest (64 bits) of what sticks, `parts`, under this salt."""
    lengths = b"".join([b"%d:" % len(part) for part in parts])
    return int.from_bytes(blake2b(b"".join((salt.encode(), b"\0", lengths, *parts)), digest_size=8).digest())


def target_of(route: Route, digest: int) -> Target | None:
    """Return the target of the unit with this digest; None for the route's own model."""
    place = digest % WHOLE
    for target in route.targets:
        place -= target.weight
        if place < 0:
            return target
    return None
