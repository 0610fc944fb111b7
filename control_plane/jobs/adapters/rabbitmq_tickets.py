"""Queue of tickets in RabbitMQ; implements `jobs/ports.JobQueue`.

A quorum queue, publisher confirms, manual acknowledgements; what is delivered too often goes to a queue of dead letters.
One task keeps the connection: aio-pika's own reconnecting connection and its iterators can wait for ever. A runner
pulls a ticket when it has room for a job, so that a broker's prefetch never gives it more than its gate allows; while
the queue is empty a consumer of one message waits for the next.

Every call has a deadline. A ticket whose acknowledgement is lost comes again, and finds no job.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

import aio_pika
from aio_pika.abc import AbstractChannel, AbstractConnection, AbstractIncomingMessage, AbstractQueue
from aio_pika.exceptions import AMQPError, ChannelInvalidStateError, ConnectionClosed, DeliveryError
from aiormq.exceptions import ConnectionInternalError
from pydantic import SecretStr

from control_plane.core.algorithms.backoff import RestartLimits, restart_delay_s
from control_plane.core.endpoints import authority
from control_plane.core.errors import StartupError, StoreUnavailable

_log = logging.getLogger(__name__)
logging.getLogger("aiormq").setLevel(logging.CRITICAL)  # what it logs, with a traceback each time, is told here in one line

QUEUE, DEAD_LETTERS = "tidegate.jobs", "tidegate.jobs.dead"
OLDEST = (3, 10)
"""RabbitMQ's first version with dead letters that are not lost on their way (`at-least-once`)."""
_DELIVERY_LIMIT = 20
"""Deliveries after which a ticket is a dead letter: RabbitMQ 4's default, where 3.x has none."""
_DEAD_LETTERS_KEPT_MS = 7 * 86_400_000
_ARGUMENTS: dict[str, int | str] = {
    "x-queue-type": "quorum",
    "x-delivery-limit": _DELIVERY_LIMIT,
    "x-dead-letter-exchange": "",
    "x-dead-letter-routing-key": DEAD_LETTERS,
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",  # without it dead letters are at-most-once
}
_ARGUMENTS_OF_DEAD: dict[str, int | str] = {"x-queue-type": "quorum", "x-message-ttl": _DEAD_LETTERS_KEPT_MS, "x-max-length": 100_000}

_TIMEOUT_S = 5.0
_GET_TIMEOUT_S = 3.0
_AT_ONCE = 8
"""Tickets that are got before jobs are claimed for them: each is a trip to the broker."""
_RELEASE_TIMEOUT_S = 2.0
_GOODBYE_TIMEOUT_S = 1.0
"""Time for a call that is only polite: it may be made while this process ends, and to a broker that says nothing."""
_CONNECT_TIMEOUT_S = 10.0
_HEARTBEAT_S = 10
_BROKEN_AFTER = 2
"""Internal errors or silences in a row after which the queue is made anew. RabbitMQ 3.10 that was killed soon after a
quorum queue was declared knows the queue and has lost its process (`noproc`) or its leader, for good."""
_IDLE_S = 20.0
"""Time after which a consumer that got nothing is made anew: one that was forgotten somewhere costs no more."""
_BACK_OFF = RestartLimits(first_delay_s=0.2, max_delay_s=5.0, settled_after_s=30.0)
_FORM = (
    "amqp://[USER:PASSWORD@]HOST[:PORT][/VHOST], amqps:// for TLS; in a password %, /, ?, #, @ and \\ are written "
    "%25, %2F, %3F, %23, %40, %5C"
)
_FAILURES = (AMQPError, ChannelInvalidStateError, OSError, TimeoutError, RuntimeError)
"""What aio-pika raises where the broker is away, or goes away during a call; RuntimeError: its channel was closed meanwhile."""


@dataclass(frozen=True, slots=True)
class _Link:
    """A connection with its channels and the queue."""

    connection: AbstractConnection
    channel: AbstractChannel
    queue: AbstractQueue
    lost: asyncio.Future[None]
    """Ends when the connection or the channel does."""


class RabbitmqTickets:
    """Queue of tickets in one RabbitMQ, or a cluster behind one address; `run` keeps the connection."""

    def __init__(self, url: SecretStr) -> None:
        """Raises StartupError: the URL is not a RabbitMQ's."""
        self.place = place_of_broker(url)
        self._url = url
        self._link: _Link | None = None
        self._linked = asyncio.Event()
        self._failures = 0

    async def publish(self, count: int = 1) -> None:
        async with self._calling() as link:
            message = aio_pika.Message(b"", delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
            try:
                for _ in range(count):
                    await link.channel.default_exchange.publish(message, QUEUE, mandatory=True, timeout=_TIMEOUT_S)
            except DeliveryError as exc:  # nobody has the queue any more: connecting declares it anew
                self._drop(link)
                raise StoreUnavailable(f"{self.place} has lost the queue {QUEUE}, which is made anew: {exc}") from exc

    async def take(self, most: int = 1) -> list[RabbitmqTicket]:
        while True:
            await self._linked.wait()
            link = self._link
            if link is None:
                continue
            try:
                with _heeding_cancellation(), _may_be_closed():
                    messages = await _messages_now(link, min(most, _AT_ONCE))
                    self._failures = 0
                    if not messages and (message := await _next(link)) is not None:
                        messages.append(message)
            except _FAILURES as exc:
                self._failures += isinstance(exc, ConnectionInternalError | TimeoutError)
                _log.warning("no ticket can be taken from %s: %s", self.place, _text_of(exc))
                self._drop(link)
                await asyncio.sleep(_BACK_OFF.first_delay_s)
                continue
            if messages:
                return [RabbitmqTicket(message, self.place) for message in messages]

    async def depth(self) -> int:
        async with self._calling() as link:
            declared = await link.channel.declare_queue(QUEUE, durable=True, arguments={**_ARGUMENTS}, timeout=_TIMEOUT_S)
            return declared.declaration_result.message_count or 0

    async def run(self) -> None:
        """Connect, again and again, until cancelled."""
        failures = 0
        while True:
            try:
                link = await self._connect()
            except _FAILURES as exc:
                failures += 1
                _log.warning("%s cannot be reached; jobs wait in their store: %s", self.place, _text_of(exc))
            else:
                failures = 0
                self._link = link
                self._linked.set()
                try:
                    await asyncio.wait((link.lost,))
                finally:
                    self._drop(link)
                    await _close(link.connection)
                _log.warning("the connection to %s is lost", self.place)
            await asyncio.sleep(restart_delay_s(max(1, failures), limits=_BACK_OFF))

    async def close(self) -> None:
        if self._link is not None:
            link = self._link
            self._drop(link)
            await _close(link.connection)

    @asynccontextmanager
    async def _calling(self) -> AsyncIterator[_Link]:
        """A block that calls the broker. Raises StoreUnavailable."""
        link = self._link
        if link is None:
            raise StoreUnavailable(f"{self.place} is not connected")
        try:
            with _heeding_cancellation():
                async with asyncio.timeout(2 * _TIMEOUT_S):
                    with _may_be_closed():
                        yield link
        except _FAILURES as exc:
            self._drop(link)
            raise StoreUnavailable(f"{self.place}: {_text_of(exc)}") from exc

    def _drop(self, link: _Link) -> None:
        """Have `run` connect anew; the tickets that were taken by this connection come again."""
        if self._link is link:
            self._link = None
            self._linked.clear()
        if not link.lost.done():
            link.lost.set_result(None)

    async def _connect(self) -> _Link:
        async with asyncio.timeout(_CONNECT_TIMEOUT_S):
            with _may_be_closed():
                connection = await aio_pika.connect(self._url.get_secret_value(), heartbeat=_HEARTBEAT_S, timeout=_CONNECT_TIMEOUT_S)
                try:
                    return await self._declare(connection)
                except BaseException:
                    await _close(connection)
                    raise

    async def _declare(self, connection: AbstractConnection) -> _Link:
        version = _version_of(connection)
        if version < OLDEST:
            raise ConnectionClosed(
                0, f"it is RabbitMQ {'.'.join(map(str, version))}, and {'.'.join(map(str, OLDEST))} is the oldest that will do"
            )
        # Unroutable messages raise: one that nobody has is no ticket.
        channel = await connection.channel(publisher_confirms=True, on_return_raises=True)
        await channel.set_qos(prefetch_count=1)
        await channel.declare_queue(DEAD_LETTERS, durable=True, arguments={**_ARGUMENTS_OF_DEAD})
        if self._failures >= _BROKEN_AFTER:
            self._failures = 0
            _log.warning("the queue %s at %s is broken and is made anew; its tickets are written again", QUEUE, self.place)
            await channel.queue_delete(QUEUE)
        queue = await channel.declare_queue(QUEUE, durable=True, arguments={**_ARGUMENTS})
        lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def end(*_: object) -> None:
            if not lost.done():
                lost.set_result(None)

        connection.close_callbacks.add(end)
        channel.close_callbacks.add(end)
        return _Link(connection, channel, queue, lost)


class RabbitmqTicket:
    """A ticket that was delivered; one that is neither acknowledged nor given back comes again when the connection ends."""

    def __init__(self, message: AbstractIncomingMessage, place: str) -> None:
        self._message = message
        self._place = place

    def claimed(self) -> None: ...

    async def ack(self) -> None:
        try:
            with _may_be_closed():
                await asyncio.wait_for(self._message.ack(), _RELEASE_TIMEOUT_S)
        except _FAILURES as exc:
            _log.info("a ticket comes again, as it could not be acknowledged to %s: %s", self._place, _text_of(exc))

    async def give_back(self) -> None:
        try:
            with _may_be_closed():
                await asyncio.wait_for(self._message.nack(requeue=True), _RELEASE_TIMEOUT_S)
        except _FAILURES as exc:
            _log.info("a ticket could not be given back to %s and comes again: %s", self._place, _text_of(exc))


def place_of_broker(url: SecretStr) -> str:
    """Return the URL without its credentials and options. Raises StartupError if it is not a RabbitMQ's."""
    try:
        parts = urlsplit(url.get_secret_value())
        port = parts.port or (5671 if parts.scheme == "amqps" else 5672)
        if "\\" in parts.netloc:
            raise ValueError("the client refuses it when it connects")
    except ValueError:
        raise StartupError(f"TIDEGATE_JOBS_URL cannot be read; expected {_FORM}") from None  # the cause repeats parts of the URL
    if parts.scheme not in ("amqp", "amqps") or not parts.hostname or parts.fragment or parts.query:
        raise StartupError(f"TIDEGATE_JOBS_URL is not a RabbitMQ; expected {_FORM}")
    return f"{parts.scheme}://{authority(parts.hostname, port)}{parts.path}"


@contextmanager
def _may_be_closed() -> Iterator[None]:
    """A block whose calls raise ConnectionClosed where the connection is closed under them: for a close that nobody gave a
    reason for, such as our own, aiormq ends them with a bare `Exception`, and for one after a silence with a CancelledError,
    as if their task had been told to end."""
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        yield
    except asyncio.CancelledError as exc:
        if task is None or task.cancelling() > before:
            raise
        raise ConnectionClosed(0, "nothing came from the broker for a while") from exc
    except Exception as exc:
        if type(exc) is not Exception:
            raise
        raise ConnectionClosed(0, "it was closed during a call") from exc


@contextmanager
def _heeding_cancellation() -> Iterator[None]:
    """A block that ends its task if that was told to end meanwhile: aiormq waits with `wait_for`, which on Python 3.11
    swallows a cancellation in whose turn it is woken, as by the end of the connection when everything stops."""
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    try:
        yield
    finally:
        if task is not None and task.cancelling() > before:
            raise asyncio.CancelledError


async def _messages_now(link: _Link, most: int) -> list[AbstractIncomingMessage]:
    """Return messages that the queue has now, one for each trip. Those that were got before a failure are lost with the
    connection, and so come again."""
    found: list[AbstractIncomingMessage] = []
    while len(found) < most:
        # Not `wait_for`, which on Python 3.11 swallows a cancellation that comes just as it is woken.
        async with asyncio.timeout(2 * _GET_TIMEOUT_S):
            message = await link.queue.get(fail=False, timeout=_GET_TIMEOUT_S)
        if message is None:
            break
        found.append(message)
    return found


async def _next(link: _Link) -> AbstractIncomingMessage | None:
    """Wait for the next message; None: none came for a while, or the link is lost."""
    arrived: asyncio.Future[AbstractIncomingMessage] = asyncio.get_running_loop().create_future()

    async def on_message(message: AbstractIncomingMessage) -> None:
        if not arrived.done():
            arrived.set_result(message)
        else:  # delivered between the first one's arrival and the end of the consumer
            await message.nack(requeue=True)

    tag = await link.queue.consume(on_message, timeout=_TIMEOUT_S)
    is_taken = False
    try:
        await asyncio.wait((arrived, link.lost), timeout=_IDLE_S, return_when=asyncio.FIRST_COMPLETED)
        if not link.lost.done():
            await link.queue.cancel(tag, timeout=_TIMEOUT_S)
        is_taken = arrived.done() and not link.lost.done()
        return arrived.result() if is_taken else None
    finally:
        if not is_taken:
            await _let_go(link, tag, arrived)


async def _let_go(link: _Link, tag: str, arrived: asyncio.Future[AbstractIncomingMessage]) -> None:
    """End a consumer whose message nobody takes."""
    with suppress(*_FAILURES), _may_be_closed():
        await asyncio.wait_for(link.queue.cancel(tag), _GOODBYE_TIMEOUT_S)
    if arrived.done() and not link.lost.done():
        with suppress(*_FAILURES), _may_be_closed():
            await asyncio.wait_for(arrived.result().nack(requeue=True), _GOODBYE_TIMEOUT_S)
    arrived.cancel()


async def _close(connection: AbstractConnection) -> None:
    with suppress(*_FAILURES), _may_be_closed():
        await asyncio.wait_for(connection.close(), _GOODBYE_TIMEOUT_S)


def _version_of(connection: AbstractConnection) -> tuple[int, ...]:
    """The version of RabbitMQ, such as (3, 10)."""
    transport = connection.transport
    told = str(transport.connection.server_properties.get("version", "")) if transport is not None else ""
    major, _, rest = told.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


def _text_of(error: BaseException) -> str:
    """An error as text; aio-pika's may repeat the URL, whose password it masks, and some say nothing."""
    return str(error) or type(error).__name__
