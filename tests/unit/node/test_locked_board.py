from __future__ import annotations

from collections.abc import Iterable, Mapping

from control_plane.core.fingerprint import Fingerprint
from control_plane.node.locked_board import LockedBoard

KNOWN = Fingerprint(b"digest", True)


class Board:
    def __init__(self) -> None:
        self.said: list[object] = []

    async def publish(self, changes: Mapping[str, Fingerprint | None]) -> None:
        self.said.append(dict(changes))

    async def make_unknown(self, models: Iterable[str]) -> None:
        self.said.append(("unknown", *models))

    async def forget(self, models: Iterable[str]) -> None:
        self.said.append(("forget", *models))


async def test_only_of_a_locked_triton_anything_is_known() -> None:
    board = Board()
    locked = LockedBoard(board)
    await locked.publish({"m": KNOWN})
    locked.lock(True)
    await locked.publish({"m": KNOWN, "n": None})
    locked.lock(False)
    await locked.publish({"m": KNOWN})
    await locked.make_unknown(["m"])
    await locked.forget(["m"])
    assert board.said == [{"m": None}, {"m": KNOWN, "n": None}, {"m": None}, ("unknown", "m"), ("forget", "m")]
