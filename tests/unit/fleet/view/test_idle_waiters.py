from __future__ import annotations

from control_plane.fleet.view.idle_waiters import IdleWaiters


async def test_who_has_waited_longest_is_woken_and_nobody_else() -> None:
    waiters = IdleWaiters()
    first, second = (waiters.next(who, "m", avoid=()) for who in "ab")
    waiters.freed("s", "m")
    assert (first.done(), second.done()) == (True, False)
    waiters.freed("s", "m")
    assert second.done()


async def test_not_one_for_whom_that_server_will_not_do_nor_of_another_model() -> None:
    waiters = IdleWaiters()
    own, other = waiters.next("a", "m", avoid={"s"}), waiters.next("b", "n", avoid=())
    waiters.freed("s", "m")
    assert not own.done()
    assert not other.done()
    waiters.freed("t", "m")
    assert own.done()


async def test_who_waits_on_keeps_its_place() -> None:
    waiters = IdleWaiters()
    waiters.next("a", "m", avoid=())
    second = waiters.next("b", "m", avoid=())
    waiters.freed("s", "m")
    again = waiters.next("a", "m", avoid=())
    waiters.freed("s", "m")
    assert again.done()
    assert not second.done()


async def test_of_those_who_have_left_nothing_remains() -> None:
    waiters = IdleWaiters()
    waiters.next("a", "m", avoid=())
    waiters.leave("b", "m")
    waiters.leave("a", "n")
    assert waiters.models
    waiters.leave("a", "m")
    assert not waiters.models
    waiters.freed("s", "m")
