"""A node as a gateway sees it: its connection, kept up by reconnecting, and what the node has said over it.

Everything that is known here belongs to one connection. When that ends, or when the node has not answered a ping
in time, the node's fingerprints are unknown, and calls under way have failed; the next connection begins with all
that the node knows.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from control_plane.concurrency.broadcast import Broadcast
from control_plane.core.errors import UpstreamUnavailable
from control_plane.core.fingerprint import Fingerprint
from control_plane.core.model import ModelVersion
from control_plane.metering.domain.compute_units import ModelCost
from control_plane.models.domain.description import DescribedModel
from control_plane.models.ports import FingerprintBoard
from control_plane.node.connection import NodeConnection
from control_plane.node.domain.fence import Term
from control_plane.node.domain.messages import (
    Acknowledge,
    Complete,
    Contents,
    Described,
    Done,
    Failed,
    Goodbye,
    Index,
    KnownContents,
    LookIndex,
    Memory,
    Message,
    Ping,
    Pong,
    StubDied,
    Suspect,
    TritonState,
    WrongMessage,
)
from control_plane.node.domain.promises import PING_EVERY_S, VALID_S
from control_plane.node.errors_on_wire import error_of
from control_plane.node.ports import NodeConnector, NodeLink, NodeRefused

_log = logging.getLogger(__name__)

_CONNECT_TIMEOUT_S = 3.0
_GOODBYE_S = 0.2
_FIRST_DELAY_S, _MAX_DELAY_S = 0.1, 2.0
_TIMES_TURNED_AWAY = 2
"""More than one: it may have closed one by chance. A way on which everything is lost turns nobody away."""
_MAX_UNTAKEN = 16
"""Messages that have come and are not taken in yet; then no more are read, so what a node says without an end waits on its
own host. Each may be as large as a message may be."""
_NOT_YET = "it has not been reached yet"

AnswerT = TypeVar("AnswerT", Done, Index, Memory)


class RemoteNode:
    """Client of one node."""

    def __init__(
        self,
        name: str,
        connector: NodeConnector,
        board: FingerprintBoard,
        *,
        relies_until: Callable[[str, float | None], None],
        awaited: Callable[[str], Mapping[str, float]] = lambda server: {},
        stub_died: Callable[[str, str, str], None] = lambda server, model, how: None,
        now_s: Callable[[], float],
    ) -> None:
        """`board` is the server's in its fleet. `relies_until` is told with the server's name until when its
        fingerprints may be relied on, None where none of it is relied on. `awaited` returns the ages of the
        server's models' oldest requests. `now_s` is a clock that runs on while the machine sleeps."""
        self.name = name
        self.connector = connector
        self.models: dict[str, DescribedModel] = {}
        self.costs: dict[str, ModelCost] = {}
        self.on_index: Callable[[list[ModelVersion]], None] = lambda index: None
        """Called with Triton's index after a change that any gateway has asked for."""
        self.on_models: Callable[[], None] = lambda: None
        """Called when `models` or `costs` have changed."""
        self.refusal = ""
        """Why the node lets this gateway look at nothing and change nothing; empty while it does."""
        self._board = board
        self._relies_until = relies_until
        self._awaited = awaited
        self._stub_died = stub_died
        self._now_s = now_s
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Message]] = {}
        self._known: set[str] = set()
        """Models of which the node has said what it has loaded, or that it is uncertain."""
        self._connection: NodeConnection | None = None
        self._why_away = _NOT_YET
        self._logged = ""
        """Why the node is away, as was logged last; empty while it is connected."""
        self._turned_away = 0
        """Connections in a row that the node's host has refused, or closed at once."""
        self._changed = Broadcast()

    @property
    def life(self) -> str:
        """The life of Triton that the node tells of; empty where it is down, or the node is away."""
        return "" if self._state is None else self._state.life

    @property
    def _state(self) -> TritonState | None:
        """What the node has said of its Triton over this connection; None until it has said everything."""
        return None if self._connection is None else self._connection.state

    @property
    def is_connected(self) -> bool:
        """Whether the node is connected and has said everything."""
        return self._state is not None

    @property
    def is_gone(self) -> bool:
        """Whether the node's host says that nobody listens there: the node has ended, and its Triton ends with
        it."""
        return self._turned_away >= _TIMES_TURNED_AWAY

    @property
    def why_away(self) -> str:
        """Why `life` is empty."""
        if self._state is not None:
            return f"the Triton of the node at {self.connector.address} is down: {self._state.reason}"
        return f"the node at {self.connector.address} is away: {self._why_away}"

    @property
    def why_unusable(self) -> str:
        """Why this gateway cannot have models loaded there; empty where it can."""
        if not self.is_connected:
            return self.why_away
        return f"the node at {self.connector.address} refuses this gateway: {self.refusal}" if self.refusal else ""

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait until something is true of this node."""
        while not is_so():
            await self._changed.wait()

    def call_number(self) -> int:
        """Return a number for a call."""
        return next(self._numbers)

    async def call(self, message: Message, number: int, kind: type[AnswerT]) -> AnswerT:
        """Make a call and return its answer. The message is sent before anything is awaited. Raises what the
        node says; UpstreamUnavailable: the node is away, or goes away meanwhile, when the call may have been
        carried out or not."""
        connection = self._connection
        if connection is None or connection.state is None:
            raise UpstreamUnavailable(f"{self.why_away}; try again shortly")
        waiting = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            connection.link.send(message)
            answer = await waiting
        finally:
            self._waiting.pop(number, None)
        if isinstance(answer, Failed):
            raise error_of(answer)
        if not isinstance(answer, kind):
            raise UpstreamUnavailable(f"the node at {self.connector.address} answers with {type(answer).__name__}")
        return answer

    def tell(self, message: Message) -> None:
        """Send a message without an answer; it is dropped while the node is away."""
        if self._connection is not None:
            self._connection.link.send(message)

    async def index(self, term: Term | None) -> list[ModelVersion]:
        """Return Triton's index; with a term, holders of older ones change nothing from then on. Raises
        UpstreamUnavailable."""
        number, connection = self.call_number(), self._connection
        await self.call(LookIndex(number, 0 if connection is None else connection.index[0], term), number, Index)
        return [] if connection is None else connection.index[1]

    def suspect(self, model: str, since_s: float) -> None:
        """Tell the node of a model that seems to hang, since then on the event loop's clock."""
        self.tell(Suspect(model, asyncio.get_running_loop().time() - since_s))

    @property
    def is_away(self) -> bool:
        """Whether there is no connection to the node."""
        return self._connection is None

    def reconnect(self) -> None:
        """End the connection, if it is in use: over the next one the node says anew what its Triton has."""
        if self._connection is not None and self._connection.state is not None:
            self._connection.link.close()
            self._connection = None

    async def forget_contents(self) -> None:
        """Forget what the node's Triton had: it is gone, or no request goes there before the node has said anew
        what it has."""
        known, self._known = self._known, set()
        await self._board.forget(known)

    async def run(self) -> None:
        """Keep the connection up until cancelled."""
        delay_s = _FIRST_DELAY_S
        while True:
            try:
                link = await self.connector.connect(timeout_s=_CONNECT_TIMEOUT_S)
                self._turned_away = 0
                if await self._use(link):
                    delay_s = _FIRST_DELAY_S
            except NodeRefused as exc:
                self._note_away(str(exc))
            except (OSError, TimeoutError) as exc:
                self._turned_away = self._turned_away + 1 if isinstance(exc, ConnectionError) else 0
                self._changed.wake()
                self._note_away(str(exc) or f"no answer within {_CONNECT_TIMEOUT_S:g} s")
            except WrongMessage as exc:
                self._note_away(f"it does not keep to the protocol: {exc}")
            except Exception as exc:  # the root of a task: what one node says must not end the gateway
                _log.exception("the connection to the node of server %s failed", self.name)
                self._note_away(f"what it says cannot be used: {exc!r}")
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, _MAX_DELAY_S)

    def _note_away(self, why: str) -> None:
        self._why_away = why
        if why != self._logged:
            _log.warning("the node of server %s, at %s, is away: %s", self.name, self.connector.address, why)
        self._logged = why

    async def _use(self, link: NodeLink) -> bool:
        """Use one connection until it ends; returns whether the node has said everything over it. Raises
        WrongMessage."""
        connection = self._connection = NodeConnection(link)
        inbox: asyncio.Queue[Message | None] = asyncio.Queue(_MAX_UNTAKEN)
        was_complete = False
        try:
            async with asyncio.TaskGroup() as tasks:
                receiving = tasks.create_task(self._receive(connection, inbox), name=f"from-node-{self.name}")
                pinging = tasks.create_task(self._ping(connection), name=f"ping-node-{self.name}")
                while connection.wrong is None and (message := await inbox.get()) is not None and self._connection is connection:
                    await self._take(connection, message)
                    was_complete = was_complete or connection.state is not None
                receiving.cancel()
                pinging.cancel()
        except asyncio.CancelledError:
            await self._say_goodbye(link)
            raise
        finally:
            link.close()
            await self._end_of_connection()
        if connection.wrong is not None:
            raise connection.wrong
        if was_complete:
            self._note_away("the connection broke, or the node said nothing any more")
        return was_complete

    async def _say_goodbye(self, link: NodeLink) -> None:
        """Rely on nothing any more, and say so: the node need not wait for this gateway."""
        await self._make_unknown()
        link.send(Goodbye())
        await link.flush(timeout_s=_GOODBYE_S)

    async def _end_of_connection(self) -> None:
        self._connection = None
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(UpstreamUnavailable(f"the connection to the node at {self.connector.address} broke"))
        self._changed.wake()
        await self._make_unknown()

    async def _make_unknown(self) -> None:
        """Make all unknown in every process, and then rely on this node no longer."""
        if self._known:
            await self._board.publish(dict.fromkeys(self._known))
        self._relies_until(self.name, None)

    async def _receive(self, connection: NodeConnection, inbox: asyncio.Queue[Message | None]) -> None:
        """Read messages: answers are for those who wait for them, descriptions hold at once; all else is taken in its
        order."""
        try:
            while (message := await connection.link.receive()) is not None:
                match message:
                    case Done(number) | Memory(number) | Failed(number):
                        self._answered(number, message)
                    case Described():  # before an answer that follows it: a model is placed by what it says
                        self._note_models(connection, message)
                    case Index(number):
                        connection.note_index(message)
                        if number:
                            self._answered(number, message)
                        else:
                            await inbox.put(message)
                    case _:
                        await inbox.put(message)
                await asyncio.sleep(0)  # what has come already is read without a wait, however much it is
        except WrongMessage as exc:
            connection.wrong = exc
        await inbox.put(None)

    def _note_models(self, connection: NodeConnection, described: Described) -> None:
        connection.named |= described.models.keys() | described.costs.keys()
        _apply(self.models, described.models)
        _apply(self.costs, described.costs)
        self.on_models()

    def _answered(self, number: int, message: Message) -> None:
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    async def _take(self, connection: NodeConnection, message: Message) -> None:
        """Take in one message; the next is looked at afterwards, so that a pong counts only once every process
        applies what was said before it."""
        match message:
            case Pong(sent_s) if sent_s <= connection.pinged_s:
                connection.valid_until_s = sent_s + VALID_S
                self._relies_until(self.name, connection.valid_until_s)
                if connection.first is not None:
                    await self._begin(connection, connection.first)
            case Pong():
                connection.wrong = WrongMessage("it answers a ping that was not sent yet")
            case TritonState():
                if connection.state is None:
                    connection.first_state = message
                else:
                    connection.state = message
            case Contents(number, changes, gone) if connection.state is not None:
                await self._apply_contents(changes, gone)
                connection.link.send(Acknowledge(number))
            case Contents(number, changes, gone):  # what changes before the first pong adds to what was said first
                known = changes if connection.first is None else {**connection.first.changes, **changes}
                connection.first = Contents(number, {name: each for name, each in known.items() if name not in gone})
            case Complete():
                pass  # the first pong comes after it
            case StubDied(model, how):
                self._stub_died(self.name, model, how)
            case Index():
                self.on_index(connection.index[1])
            case _:
                connection.wrong = WrongMessage(f"{type(message).__name__} is no message to a gateway")
        self._changed.wake()

    async def _begin(self, connection: NodeConnection, first: Contents) -> None:
        """Begin to use the node: it has said everything, and has answered a ping since, so that what it has
        said may be relied on."""
        connection.first = None
        for known in (self.models, self.costs):  # what is gone since the last connection was not named
            for name in known.keys() - connection.named:
                del known[name]
        before, self._known = self._known - first.changes.keys(), set()
        await self._board.forget(before)
        await self._apply_contents(first.changes, first.gone)
        connection.link.send(Acknowledge(first.number))
        connection.state, self._logged = connection.first_state, ""
        _log.info("the node of server %s is connected, at %s", self.name, self.connector.address)

    async def _apply_contents(self, changes: Mapping[str, KnownContents | None], gone: tuple[str, ...]) -> None:
        self._known = (self._known | changes.keys()) - set(gone)
        if changes:
            await self._board.publish({name: None if known is None else Fingerprint(*known) for name, known in changes.items()})
        if gone:
            await self._board.forget(gone)

    async def _ping(self, connection: NodeConnection) -> None:
        """Send pings, and end the connection when none has been answered in time."""
        connection.valid_until_s = self._now_s() + VALID_S
        while self._now_s() < connection.valid_until_s:
            connection.pinged_s = self._now_s()
            connection.link.send(Ping(connection.pinged_s, dict(self._awaited(self.name))))
            await asyncio.sleep(max(0.0, min(PING_EVERY_S, connection.valid_until_s - self._now_s())))
        connection.link.close()


ValueT = TypeVar("ValueT")


def _apply(known: dict[str, ValueT], changes: Mapping[str, ValueT | None]) -> None:
    for name, value in changes.items():
        if value is None:
            known.pop(name, None)
        else:
            known[name] = value
