"""One connection to the Redis of the shared cache: RESP on asyncio's streams, without a pool or retries, which would delay callers.

Used by `redis_cache_lookups` and `redis_cache_writes`. Callers treat all errors alike: they drop the connection and log what
`describe` returns.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import parse_qs, unquote, urlsplit

from pydantic import SecretStr

from control_plane.cache.adapters.loop_timeout import LoopTimeout
from control_plane.protocols.resp import Answer, ReplyError, RespError, RespReader, pack_command
from control_plane.storage.redis import place_of

_OPEN_S = 1.0
"""Time limit for connecting: TCP, TLS, AUTH and SELECT together. It is spent in the background, so it may be
generous.
"""
_READ_BYTES = 256 * 1024

_MAX_REASON_CHARS = 200
"""Most characters of another program's error message that are logged."""
_ARGUMENTS = ", with args beginning with"
"""After these words a Redis quotes the arguments of a command that it does not know; those of AUTH are secret."""


class CacheConnection:
    """Redis connection for one call at a time; it must be opened first, and opened again after a call that
    raised.
    """

    def __init__(self, url: SecretStr) -> None:
        """Prepare without connecting. Raises StartupError: the URL is not one of a Redis."""
        self.place = place_of(url, setting="--cache-url")
        self._url = url
        self._stream: _RedisStream | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the connection was opened and not dropped since."""
        return self._stream is not None

    async def open(self) -> None:
        """Connect anew, within `_OPEN_S`. Raises TimeoutError, OSError, RespError or ReplyError."""
        # An earlier one may still be sent the answer to a call that was given up.
        self.drop()
        place = urlsplit(self.place)
        async with LoopTimeout(_OPEN_S):
            reader, writer = await asyncio.open_connection(unquote(place.hostname or ""), place.port, ssl=self._tls())
            self._stream = _RedisStream(reader, writer)
            for answer in await self._stream.exchange(list(self._greeting())):
                if isinstance(answer, ReplyError):
                    raise answer

    def drop(self) -> None:
        """Abort the connection at once, without waiting until all is sent: a Redis that hangs takes nothing.

        Idempotent.
        """
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.abort()

    async def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of `names`, None for each that is not there. Raises RespError: the answer is not
        an MGET's.
        """
        values = await self._call(b"MGET", *names)
        if not isinstance(values, list) or len(values) != len(names):
            raise RespError("the answer is not an MGET's")
        return [value if isinstance(value, bytes) else None for value in values]

    async def is_in_sync(self) -> bool:
        """Whether Redis's next answer belongs to this process's last command, asked with an ECHO of random
        bytes.
        """
        # Random, so that a late answer to an earlier probe is not taken for this one's.
        nonce = os.urandom(8)
        try:
            return await self._call(b"ECHO", nonce) == nonce
        except ReplyError:
            return False

    async def set_many(self, entries: Iterable[tuple[bytes, bytes, int]]) -> list[ReplyError | None]:
        """Write entries `(name, value, ttl_s)` in one pipeline; return for each the error it was refused
        with, or None.
        """
        assert self._stream is not None
        # A full Redis may refuse one entry and take the next.
        answers = await self._stream.exchange([pack_command(b"SET", name, value, b"EX", b"%d" % ttl_s) for name, value, ttl_s in entries])
        return [answer if isinstance(answer, ReplyError) else None for answer in answers]

    async def memory(self) -> dict[str, str]:
        """Return the fields of `INFO memory`; empty where this user may not read them."""
        try:
            text = await self._call(b"INFO", b"memory")
        except ReplyError:
            return {}
        lines = (line.partition(":") for line in text.decode("ascii", "replace").splitlines()) if isinstance(text, bytes) else ()
        return {name: value for name, _, value in lines}

    def describe(self, exc: Exception) -> str:
        """Describe an error for the log, without the URL's password.

        The text of an unexpected error is left out: it may quote what some other program answered.
        """
        if isinstance(exc, TimeoutError):
            return "it does not answer"
        if not isinstance(exc, OSError | ReplyError):
            return f"it does not answer as Redis does ({exc if isinstance(exc, RespError) else type(exc).__name__})"
        reason, (_, password) = str(exc).partition(_ARGUMENTS)[0], self._credentials()
        return (reason.replace(password, "***") if password else reason)[:_MAX_REASON_CHARS]

    async def _call(self, *words: bytes) -> Answer:
        assert self._stream is not None
        (answer,) = await self._stream.exchange([pack_command(*words)])
        if isinstance(answer, ReplyError):
            raise answer
        return answer

    def _greeting(self) -> Iterator[bytes]:
        """The commands that must come first."""
        user, password = self._credentials()
        if user or password:
            yield pack_command(b"AUTH", *([user.encode()] if user else []), password.encode())
        database = urlsplit(self.place).path.removeprefix("/")
        if database != "0":
            yield pack_command(b"SELECT", database.encode())

    def _credentials(self) -> tuple[str, str]:
        parts = urlsplit(self._url.get_secret_value())
        return unquote(parts.username or ""), unquote(parts.password or "")

    def _tls(self) -> ssl.SSLContext | None:
        """The TLS context that the URL asks for, with files as they are now. Raises OSError."""
        parts = urlsplit(self._url.get_secret_value())
        if parts.scheme != "rediss":
            return None
        files = {name: values[0] for name, values in parse_qs(parts.query).items()}
        context = ssl.create_default_context()
        if "ssl_certfile" in files:
            context.load_cert_chain(files["ssl_certfile"], files.get("ssl_keyfile"))
        if "ssl_ca_certs" in files:
            context.load_verify_locations(files["ssl_ca_certs"])
        return context


class _RedisStream:
    """Open stream to a Redis: commands out, answers in, in the same order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = RespReader()
        self._answers: list[Answer] = []

    async def exchange(self, commands: Sequence[bytes]) -> list[Answer]:
        """Send commands in one pipeline and return the answers. Raises OSError or RespError."""
        self._writer.writelines(commands)
        count = len(commands)
        while len(self._answers) < count:
            data = await self._reader.read(_READ_BYTES)
            if not data:
                raise ConnectionResetError("it has closed the connection")
            self._answers += self._parser.feed(data)
        answers, self._answers = self._answers[:count], self._answers[count:]
        return answers

    def abort(self) -> None:
        self._writer.transport.abort()
