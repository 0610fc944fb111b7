"""The service of a node: answers gateways' calls about its one Triton, and tells them what changes.

It decides nothing of where models go: gateways do. What it does it does by the same services as a gateway does
for an embedded Triton. `app/node` wires it; `adapters/server` accepts the connections.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import inf
from uuid import uuid4

from control_plane.concurrency.task_owner import TaskOwner
from control_plane.core.errors import ControlPlaneError, UpstreamFailed, UpstreamUnavailable
from control_plane.core.model import check_name
from control_plane.fleet.ports import PreparedLoad, ServerInstance
from control_plane.node.board import NodeBoard
from control_plane.node.domain.fence import Fence, Term
from control_plane.node.domain.messages import (
    Acknowledge,
    Complete,
    Done,
    FromNode,
    Goodbye,
    Hold,
    Index,
    Leave,
    Load,
    LookIndex,
    LookMemory,
    Memory,
    Message,
    Ping,
    Pong,
    Prepare,
    Replace,
    StubDied,
    Suspect,
    TritonState,
    Unload,
    WrongMessage,
)
from control_plane.node.errors_on_wire import failure_of
from control_plane.node.held import HeldContext
from control_plane.node.ports import GatewayLink, NodeFiles
from control_plane.node.settled_index import SettledIndex
from control_plane.node.told_models import ToldModels
from control_plane.triton.ports import Upstream
from control_plane.triton.server_state import ServerState

_log = logging.getLogger(__name__)

_UNHEARD_S = 5.0
"""A gateway that has sent nothing for so long is gone: it sends a ping twice a second."""
_MAX_HELD = 1000
"""Contexts that one gateway may hold open."""


class _Gateway:
    """One connected gateway: what it holds open, and which requests it waits for."""

    def __init__(self, link: GatewayLink) -> None:
        self.link = link
        self.held: dict[int, HeldContext[PreparedLoad] | HeldContext[None]] = {}
        self.awaited: dict[str, float] = {}
        """Model -> when its oldest request was sent, on this node's loop clock."""
        self.says_goodbye = False


class NodeService:
    """Server of one Triton to gateways; a `triton/server_state.ServerObserver` of that Triton's state."""

    def __init__(
        self,
        instance: ServerInstance,
        member: ServerState,
        board: NodeBoard,
        files: NodeFiles,
        *,
        suspect: Callable[[str, float], None] = lambda model, since_s: None,
        now_s: Callable[[], float],
    ) -> None:
        """`suspect` is told of a model that seems to hang and since when, on the event loop's clock; `now_s`
        runs on while the machine sleeps."""
        self._instance = instance
        self._board = board
        self._files = files
        self._told = ToldModels(files)
        self._suspect = suspect
        self._now_s = now_s
        self._fence = Fence()
        self._tasks = TaskOwner("models cannot be changed")
        self._gateways: dict[GatewayLink, _Gateway] = {}
        self._triton_index = SettledIndex(lambda: member.ask(lambda upstream: upstream.control.index()), now_s=now_s)
        self._refused: dict[GatewayLink, str] = {}
        """Gateway -> why it was refused last, so that it is logged once."""
        self._state = TritonState("", "Triton is starting")

    async def open(self) -> None:
        """Read the models' folders, before the first gateway is served."""
        await self._told.look()

    async def run(self) -> None:
        """Own the tasks of calls, and follow the models' folders, until cancelled."""
        async with self._tasks.open():
            while True:
                await self._told.wait_until_due()
                await self._tell_models()

    def oldest_s(self, model: str) -> float:
        """Return when the first request for a model was sent that any gateway still waits for, on the event
        loop's clock; infinity if there is none."""
        return min((gateway.awaited.get(model, inf) for gateway in self._gateways.values()), default=inf)

    def stub_died(self, model: str, how: str) -> None:
        """Tell gateways that a stub of a loaded model has died."""
        self._tell(StubDied(model, how))

    # `triton/server_state.ServerObserver`

    def up(self, upstream: Upstream, server: str) -> None:
        self._state = TritonState(uuid4().hex, "")
        self._triton_index.changed()
        self._tell(self._state)

    def down(self, reason: str, server: str) -> None:
        self._state = TritonState("", reason)
        self._triton_index.changed()
        self._tell(self._state)

    def silence_changed(self, is_silent: bool, server: str) -> None:
        """Nothing to tell: gateways listen to Triton themselves."""

    def left(self, server: str) -> None: ...

    # One gateway

    async def serve(self, link: GatewayLink) -> None:
        """Serve one authenticated gateway until its connection ends."""
        gateway = self._gateways[link] = _Gateway(link)
        _log.info("gateway %s of fleet %s is connected", link.gateway, link.fleet)
        try:
            everything: list[FromNode] = [self._state, *self._told.all(), self._board.join(link), Complete()]
            for each in everything:
                link.send(each)
            while (message := await self._next(link)) is not None:
                self._take(gateway, message)
                await asyncio.sleep(0)  # what has come already is read without a wait: a flood must not starve other gateways
        except (WrongMessage, TimeoutError) as exc:
            _log.warning("gateway %s is cut off: %s", link.gateway, exc or f"it said nothing for {_UNHEARD_S:g} s")
        finally:
            link.close()
            del self._gateways[link]
            self._refused.pop(link, None)
            for held in gateway.held.values():
                held.leave(is_well=False)
            self._board.left(link, says_goodbye=gateway.says_goodbye)
            if gateway.says_goodbye and all(each.fleet != link.fleet for each in self._gateways):
                self._fence.left(link.fleet)
            _log.info("gateway %s is not connected any more", link.gateway)

    async def _next(self, link: GatewayLink) -> Message | None:
        async with asyncio.timeout(_UNHEARD_S):
            return await link.receive()

    def _take(self, gateway: _Gateway, message: Message) -> None:
        """Take in one message. Whatever takes time goes on in a task. Raises WrongMessage."""
        link = gateway.link
        match message:
            case Ping(sent_s, awaited):
                now_s = asyncio.get_running_loop().time()
                gateway.awaited = {model: now_s - age_s for model, age_s in awaited.items()}
                self._fence.heard(link.fleet, self._now_s())
                self._board.promised(link)
                link.send(Pong(sent_s))
            case Acknowledge(number):
                self._board.acknowledged(link, number)
            case Suspect(name, silent_for_s):
                self._suspect(name, asyncio.get_running_loop().time() - silent_for_s)
            case Leave(number, is_well):
                if (held := gateway.held.pop(number, None)) is not None:
                    held.leave(is_well=is_well)
            case Goodbye():
                gateway.says_goodbye = True
                link.close()
            case LookIndex(number, known, term):
                self._answer(link, number, partial(self._index, number, link, known, term))
            case LookMemory(number):
                self._answer(link, number, partial(self._memory, number))
            case Prepare(number, name):
                self._hold(gateway, number, lambda: HeldContext(self._instance.prepared(name), name), f"load of {name}")
            case Replace(number, models):
                self._hold(gateway, number, lambda: HeldContext(self._instance.replacing(_checked(*models))), "repair")
            case Hold(number, name):
                self._hold(gateway, number, lambda: HeldContext(self._files.held(*_checked(name)), name), f"files of {name}")
            case Load(number, prepared, term):
                self._answer(link, number, partial(self._load, number, gateway, prepared, term))
            case Unload(number, name, unload_dependents, term):
                self._answer(link, number, partial(self._unload, number, link, name, unload_dependents, term))
            case _:
                raise WrongMessage(f"{type(message).__name__} is no message to a node")

    def _hold(self, gateway: _Gateway, number: int, make: Callable[[], HeldContext[PreparedLoad] | HeldContext[None]], what: str) -> None:
        if number in gateway.held or len(gateway.held) >= _MAX_HELD:
            raise WrongMessage(f"it holds {len(gateway.held)} open, and {number} may be one of these")

        async def enter() -> FromNode:
            await held.enter(self._tasks, name=what)
            if self._told.is_cold(held.model):  # by its size, and what its owner declares, the gateway places it
                await self._tell_models()
            return Done(number)

        try:
            held = gateway.held[number] = make()
        except ControlPlaneError as exc:
            gateway.link.send(failure_of(number, exc))
            return
        self._answer(gateway.link, number, enter)

    def _answer(self, link: GatewayLink, number: int, work: Callable[[], Awaitable[FromNode]]) -> None:
        """Answer a call in a task of its own."""

        async def answer() -> None:
            try:
                link.send(await work())
            except ControlPlaneError as exc:
                link.send(failure_of(number, exc))
            except Exception as exc:  # the root of a task: one call must not end the node
                _log.exception("a gateway's call failed")
                link.send(failure_of(number, UpstreamFailed(f"the node failed: {exc!r}")))

        with suppress(UpstreamUnavailable):  # the node stops: the connection is about to end
            self._tasks.create_task(answer(), name=f"call-{number}")

    async def _index(self, number: int, link: GatewayLink, known: int, term: Term | None) -> FromNode:
        if term is not None:
            self._require(link, term)
        edition, lines = await self._triton_index.look()
        return Index(number, edition, None if edition == known else lines)

    async def _memory(self, number: int) -> FromNode:
        return Memory(number, await self._instance.held_memory())

    async def _load(self, number: int, gateway: _Gateway, prepared: int, term: Term) -> FromNode:
        held = gateway.held.pop(prepared, None)
        if held is None:
            raise UpstreamUnavailable("this load was not prepared, or has been given up")

        async def load(value: PreparedLoad | None) -> None:
            if value is None:
                raise UpstreamUnavailable("what was begun under this number is no load")
            self._require(gateway.link, term)
            with self._triton_index.loading(held.model):
                await value.load()

        try:
            await held.carry_out(load)
        finally:
            await self._tell_index()
        return Done(number)

    async def _unload(self, number: int, link: GatewayLink, name: str, unload_dependents: bool, term: Term) -> FromNode:
        self._require(link, term)
        with self._triton_index.changing():
            await self._instance.unload_now(name, unload_dependents=unload_dependents)
        await self._tell_index()
        return Done(number)

    def _require(self, link: GatewayLink, term: Term) -> None:
        """Raise UpstreamUnavailable unless the holder of the term may change models."""
        if term.fleet != link.fleet:
            raise UpstreamUnavailable(f"a gateway of fleet {link.fleet!r} cannot act for {term.fleet!r}")
        if (why := self._fence.refusal(term, self._now_s())) is not None:
            if self._refused.get(link) != why:  # it asks twice a second
                _log.warning("gateway %s may not load or unload here: %s", link.gateway, why)
            self._refused[link] = why
            raise UpstreamUnavailable(why)
        self._refused.pop(link, None)

    async def _tell_index(self) -> None:
        """Tell all gateways what is loaded now; one that is not told sees it at its next look."""
        with suppress(ControlPlaneError):
            self._tell(Index(0, *await self._triton_index.look()))

    async def _tell_models(self) -> None:
        """Tell all gateways what is new of the models in this node's folders and stores."""
        for message in await self._told.look():
            self._tell(message)

    def _tell(self, message: FromNode) -> None:
        for link in self._gateways:
            link.send(message)


def _checked(*names: str) -> tuple[str, ...]:
    """Return names that become paths on this host. Raises InvalidRequest: no model can have one of them."""
    for name in names:
        check_name(name)
    return names
