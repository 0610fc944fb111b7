from __future__ import annotations

import asyncio

from control_plane.concurrency.turn_writes import TurnWrites


class Connection:
    def __init__(self, log: list[Connection]) -> None:
        self._log = log

    def flush(self) -> None:
        self._log.append(self)


async def test_they_come_when_all_that_is_ready_has_run() -> None:
    writes, log = TurnWrites(), list[Connection]()
    connections = [Connection(log) for _ in range(5)]
    loop = asyncio.get_running_loop()
    for connection in connections:
        loop.call_soon(writes.put_off, connection)
    loop.call_soon(lambda: log.append(connections[0]) if log else None)  # the last of this turn: nothing was written yet
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert log == connections


async def test_each_turn_has_its_own() -> None:
    writes, log = TurnWrites(), list[Connection]()
    for count in (1, 2):
        writes.put_off(Connection(log))
        await asyncio.sleep(0)
        assert len(log) == count


async def test_many_do_not_wait_for_the_turns_end() -> None:
    writes, log = TurnWrites(), list[Connection]()
    connections = [Connection(log) for _ in range(40)]
    for connection in connections:
        writes.put_off(connection)
    assert log == connections[:32]
    await asyncio.sleep(0)
    assert log == connections
