"""Load planner: the steps that load a model on a server that may be full, in an order that never assigns memory twice.

A model holds memory while it loads, is ready, or is unloading and not certainly gone; after each step the memory held is within
the budget. There is no journal: after a crash, a failed step or a change of leader the next plan is made from Triton's index.
`fleet/loading/load_plans` carries plans out; the simulator does so in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from control_plane.core.errors import Overloaded
from control_plane.core.model import ModelState, ModelVersion
from control_plane.fleet.domain.fleet import ModelFacts, Replica, Server

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Unload:
    """Ask Triton to unload a model. Triton finishes its requests first: the memory is not free when Triton
    has accepted the call."""

    name: str


@dataclass(frozen=True, slots=True)
class AwaitReleased:
    """Wait until an unloading model's memory is free."""

    name: str


@dataclass(frozen=True, slots=True)
class Load:
    """Begin a load; from here on its memory counts as held."""

    name: str
    bytes: int


@dataclass(frozen=True, slots=True)
class AwaitReady:
    """Wait until a load has ended, well or not: a server loads one model at a time."""

    name: str


Step = Unload | AwaitReleased | Load | AwaitReady


def plan(server: Server, model: ModelFacts, victims: Sequence[str] = ()) -> Iterator[Step]:
    """Return the steps that bring `model` into `server` and `victims` out of it; no steps if it is ready and
    there is no victim.

    A model that is its own victim is loaded anew. (Triton's own reload keeps the old model beside the new one
    until that is ready: twice its memory.)

    Raises:
        Overloaded: the model would not fit; nothing has been done.
    """
    replicas = dict(server.replicas)
    leave = [name for name in victims if name in replicas]
    if model.name in replicas and replicas[model.name].state is not ModelState.UNLOADING and model.name not in leave:
        return iter([AwaitReady(model.name)] if replicas[model.name].state is ModelState.LOADING else [])
    # The size is fixed here: measurements may raise `resident_bytes` while the plan is carried out.
    load = Load(model.name, model.resident_bytes)
    _require_room(server, load, leave)
    return _steps(server.budget_bytes, replicas, load, leave)


def held_bytes(replicas: Iterable[Replica]) -> int:
    """Memory of all these replicas, including those that are unloading and not surely gone."""
    return sum(replica.bytes for replica in replicas)


def states_of(index: Iterable[ModelVersion]) -> dict[str, ModelState]:
    """Fold a server's repository index into one state for each model, over all its versions; models that take
    no memory are left out.

    Triton says UNAVAILABLE once it has freed a model's memory, with the reason `unloaded` or with that of a
    failed load (server 24.10). UNLOADING beside READY is an older version that leaves, and passes.
    """
    found: dict[str, ModelState] = {}
    for line in index:
        # Of a model's versions the state that binds memory for longest counts.
        if line.state is not ModelState.UNAVAILABLE:
            found[line.name] = min(found.get(line.name, line.state), line.state, key=_WEIGHTIEST_FIRST.index)
    return found


def replicas_of(index: Iterable[ModelVersion], bytes_of: Callable[[str], int], now_s: float) -> dict[str, Replica]:
    """Return the replicas that a server's index shows, each as if it had come into its state `now_s`."""
    return {name: Replica(name, state, bytes_of(name), now_s) for name, state in states_of(index).items()}


_WEIGHTIEST_FIRST = (ModelState.LOADING, ModelState.READY, ModelState.UNLOADING)


def _steps(budget_bytes: int, replicas: dict[str, Replica], load: Load, leave: list[str]) -> Iterator[Step]:
    """The steps in order, each checked against the invariant: no load beside the same model, none beyond the
    budget."""
    for step in _in_order(budget_bytes, replicas, load, leave):
        if isinstance(step, AwaitReleased):
            del replicas[step.name]
        elif isinstance(step, Load):
            assert step.name not in replicas, f"{step.name} would be loaded beside itself"
            replicas[step.name] = Replica(step.name, ModelState.LOADING, step.bytes, 0.0)
        # A server may hold more than its budget before the plan (the budget was cut, or sizes were learned);
        # but no load may add to that.
        assert not isinstance(step, Load) or held_bytes(replicas.values()) <= budget_bytes, f"{step} promises memory twice"
        yield step


def _in_order(budget_bytes: int, replicas: dict[str, Replica], load: Load, leave: list[str]) -> Iterator[Step]:
    """Begin with all unloads together, so that the victims drain at the same time."""
    # A load that somebody else began must end first: a server loads one model at a time.
    yield from [AwaitReady(replica.model) for replica in replicas.values() if replica.state is ModelState.LOADING]
    yield from [Unload(name) for name in leave if replicas[name].state is not ModelState.UNLOADING]
    draining = [replica.model for replica in replicas.values() if replica.state is ModelState.UNLOADING and replica.model not in leave]
    for name in (*leave, *draining):
        # Wait for every victim, but for models that others unload only as long as the new one does not fit
        # without them.
        fits = held_bytes(replicas.values()) + load.bytes <= budget_bytes
        if name in leave or name == load.name or not fits:
            yield AwaitReleased(name)
    yield load
    yield AwaitReady(load.name)


def _require_room(server: Server, load: Load, leave: list[str]) -> None:
    """Raise if the model does not fit even without the victims and what is unloading."""
    stays = [replica for replica in server.replicas.values() if replica.model not in leave and replica.state is not ModelState.UNLOADING]
    missing = held_bytes(stays) + load.bytes - server.budget_bytes
    if missing > 0:
        gone = f" without {', '.join(leave)}" if leave else ""
        raise Overloaded(
            f"model '{load.name}' needs {_mib(load.bytes)} on server '{server.name}': of its {_mib(server.budget_bytes)} "
            f"{_mib(held_bytes(stays))} are taken{gone}, {_mib(missing)} too many"
        )


def _mib(count: int) -> str:
    return f"{count / _MIB:,.1f} MiB"
