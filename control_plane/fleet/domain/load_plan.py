"""How a model gets into a server that may be full: steps in an order in which its memory is never promised twice.

What loads, is ready, or is unloaded and not surely gone counts; after each step all of it is within the budget. There is no
journal: after a crash, a failure or a takeover at any step the next plan is made from what Triton's index says. Carried out
by `fleet/loading/load_plans`, and by the simulator in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from control_plane.core.errors import Overloaded
from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.domain.fleet import Copy, ModelFacts, Server

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Unload:
    """Requests that are there finish first: its memory is not free when this has been accepted."""

    name: str


@dataclass(frozen=True, slots=True)
class AwaitReleased:
    """Until its memory is free."""

    name: str


@dataclass(frozen=True, slots=True)
class Load:
    """Begin it; from here its memory is taken."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class AwaitReady:
    """Until its load has ended, one way or the other: a server loads one model at a time."""

    name: str


Step = Unload | AwaitReleased | Load | AwaitReady


def plan(server: Server, model: ModelFacts, victims: Sequence[str] = ()) -> Iterator[Step]:
    """The steps that bring `model` into `server`, with `victims` out of it; none where it is ready and no victim.

    A model that is its own victim is loaded anew. (Triton's own reload keeps the old one beside the new until that is ready:
    twice its memory.)

    Raises:
        Overloaded: it would not fit; nothing has been done.
    """
    copies = dict(server.copies)
    leave = [name for name in victims if name in copies]
    if model.name in copies and copies[model.name].state is not ModelState.UNLOADING and model.name not in leave:
        return iter([AwaitReady(model.name)] if copies[model.name].state is ModelState.LOADING else [])
    load = Load(model.name, model.resident_bytes)  # which may be found to be larger while the plan is carried out
    _require_room(server, load, leave)
    return _steps(server.budget_bytes, copies, load, leave)


def held_bytes(copies: Iterable[Copy]) -> int:
    """Of everything that is not surely gone."""
    return sum(copy.bytes for copy in copies)


def states_of(index: Iterable[ModelVersion]) -> dict[str, ModelState]:
    """What is on a server by its index, every version of a model together; a model that is not in it takes no memory.

    Triton says UNAVAILABLE when it has freed a model's memory, `unloaded` as well as with the reason of a failed load (server
    24.10). UNLOADING beside READY is an older version that leaves, and passes.
    """
    found: dict[str, ModelState] = {}
    for line in index:
        if line.state is not ModelState.UNAVAILABLE:
            found[line.name] = min(found.get(line.name, line.state), line.state, key=_WEIGHTIEST_FIRST.index)
    return found


def copies_of(index: Iterable[ModelVersion], bytes_of: Callable[[str], int], now_s: float) -> dict[str, Copy]:
    """The same as copies, which came into their states `now_s`."""
    return {name: Copy(name, state, bytes_of(name), now_s) for name, state in states_of(index).items()}


_WEIGHTIEST_FIRST = (ModelState.LOADING, ModelState.READY, ModelState.UNLOADING)


def _steps(budget_bytes: int, copies: dict[str, Copy], load: Load, leave: list[str]) -> Iterator[Step]:
    for step in _in_order(budget_bytes, copies, load, leave):
        if isinstance(step, AwaitReleased):
            del copies[step.name]
        elif isinstance(step, Load):
            assert step.name not in copies, f"{step.name} would be loaded beside itself"
            copies[step.name] = Copy(step.name, ModelState.LOADING, step.bytes, 0.0)
        # More than the budget may be there before, when it was cut or sizes were learned; no step adds to that.
        assert not isinstance(step, Load) or held_bytes(copies.values()) <= budget_bytes, f"{step} promises memory twice"
        yield step


def _in_order(budget_bytes: int, copies: dict[str, Copy], load: Load, leave: list[str]) -> Iterator[Step]:
    """Unloads first and together: what drains, drains meanwhile."""
    yield from [AwaitReady(copy.model) for copy in copies.values() if copy.state is ModelState.LOADING]
    yield from [Unload(name) for name in leave if copies[name].state is not ModelState.UNLOADING]
    draining = [copy.model for copy in copies.values() if copy.state is ModelState.UNLOADING and copy.model not in leave]
    for name in (*leave, *draining):
        fits = held_bytes(copies.values()) + load.bytes <= budget_bytes
        if name in leave or name == load.name or not fits:
            yield AwaitReleased(name)
    yield load
    yield AwaitReady(load.name)


def _require_room(server: Server, load: Load, leave: list[str]) -> None:
    stays = [copy for copy in server.copies.values() if copy.model not in leave and copy.state is not ModelState.UNLOADING]
    missing = held_bytes(stays) + load.bytes - server.budget_bytes
    if missing > 0:
        gone = f" without {', '.join(leave)}" if leave else ""
        raise Overloaded(
            f"model '{load.name}' needs {_mib(load.bytes)} on server '{server.name}': of its {_mib(server.budget_bytes)} "
            f"{_mib(held_bytes(stays))} are taken{gone}, {_mib(missing)} too many"
        )


def _mib(count: int) -> str:
    return f"{count / _MIB:,.1f} MiB"
