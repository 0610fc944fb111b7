"""Fingerprints of a fleet: merges those of its servers, so that a model's is known only if all servers have
equal contents.

A cached response must be the same whichever server would compute it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from control_plane.core.fingerprint import Fingerprint
from control_plane.models.ports import FingerprintBoard


class FleetFingerprints:
    """Merge of the servers' fingerprints, between each server's `LoadedContents` and the board of all
    processes.
    """

    def __init__(self, board: FingerprintBoard) -> None:
        self._board = board
        self._known: dict[str, dict[str, Fingerprint | None]] = {}
        """Fingerprints by server and model, None for unknown; models that a server does not have are left
        out.
        """

    def of_server(self, server: str) -> ServerFingerprints:
        return ServerFingerprints(self, server)

    async def publish(self, server: str, changes: Mapping[str, Fingerprint | None]) -> None:
        """Publish a server's fingerprints, and return when every process applies them.

        A model of which servers have different contents is unknown until they agree.
        """
        self._known.setdefault(server, {}).update(changes)
        await self._board.publish({model: self._common(model, newest) for model, newest in changes.items()})

    async def forget(self, server: str, models: Iterable[str]) -> None:
        """Drop models that a server has unloaded; what the other servers have of them counts."""
        known = self._known.get(server, {})
        gone = [model for model in models if known.pop(model, _ABSENT) is not _ABSENT]
        if not known:  # it may have left the fleet for good
            self._known.pop(server, None)
        if gone:
            await self._board.publish({model: self._common(model, None) for model in gone})

    def _common(self, model: str, newest: Fingerprint | None) -> Fingerprint | None:
        found = [known[model] for known in self._known.values() if model in known]
        certain = [each for each in found if each is not None]
        if not certain or len(certain) < len(found) or len({each.digest for each in certain}) > 1:
            return None
        # A new object, since fingerprints are compared by identity: requests that were under way during the
        # change must not match it.
        return newest if newest is not None else replace(certain[0])


_ABSENT = Fingerprint(b"", False)


class ServerFingerprints:
    """View of the merge for one server; implements `models/ports.FingerprintBoard`."""

    def __init__(self, fleet: FleetFingerprints, server: str) -> None:
        self._fleet = fleet
        self._server = server

    async def publish(self, changes: Mapping[str, Fingerprint | None]) -> None:
        await self._fleet.publish(self._server, changes)

    async def make_unknown(self, models: Iterable[str]) -> None:
        await self._fleet.publish(self._server, dict.fromkeys(models))

    async def forget(self, models: Iterable[str]) -> None:
        await self._fleet.forget(self._server, models)
