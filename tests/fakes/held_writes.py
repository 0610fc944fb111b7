"""Writes of a turn of the event loop that does not end until the test ends it."""

from __future__ import annotations

from control_plane.concurrency.turn_writes import TurnWrites, Unsent


class HeldWrites(TurnWrites):
    """Fake `TurnWrites`: keeps the connections in `held`."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Unsent] = []

    def put_off(self, connection: Unsent) -> None:
        self.held.append(connection)
