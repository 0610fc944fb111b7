"""The HTTP frontend on a real socket, before a fake Triton; and a raw client."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from control_plane.cache.domain.eviction import EvictingCache
from control_plane.cache.response_cache import ResponseCache
from control_plane.embeddings.embeddings import Embeddings
from control_plane.embeddings.text_models import TextModels
from control_plane.frontends.common.http_errors import render_error
from control_plane.frontends.data_http import DataHttp
from control_plane.frontends.http.limits import HttpLimits
from control_plane.frontends.http.server import HttpServer
from control_plane.frontends.kserve.http import EventsApplication, JobsApplication, V2Http
from control_plane.frontends.openai import BatchesApplication, OpenaiHttp
from control_plane.generation.adapters.template_process import TemplateProcesses
from control_plane.generation.domain.completion_request import GenerationLimits
from control_plane.generation.generation import Generation
from control_plane.generation.generative_models import GenerativeModels
from control_plane.host.network.exposure import AllowedHosts
from control_plane.host.network.listening import bind_tcp
from control_plane.inference.dispatch.single_server import SingleServerDispatch
from control_plane.jobs.attempts import envelope_bytes
from control_plane.models.fingerprints import Fingerprints
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from tests.fakes import FakeUpstream
from tests.fakes.triton.text_model import no_parts
from tests.wire.services import INFER_TIMEOUT_S, READ_TIMEOUT_S, Services

LIMITS = HttpLimits(
    max_body_bytes=1 << 20, max_header_bytes=16 << 10, max_connections=100, max_upload_bytes=4 << 20, envelope_bytes=envelope_bytes
)
MAX_PROMPT_BYTES, MAX_COMPLETION_TOKENS = 64 << 10, 1000
INFER = b'{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1]}]}'


class Answer(NamedTuple):
    status: int
    head: bytes
    body: bytes

    @property
    def says_close(self) -> bool:
        return re.search(rb"\r\nConnection: close\r\n", self.head) is not None


@dataclass
class Client:
    """A raw client connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self, *, has_body: bool = True) -> Answer:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"\r\nContent-Length: (\d+)\r\n", head)
        assert length is not None, head
        body = await self.reader.readexactly(int(length.group(1))) if has_body else b""
        return Answer(int(head[9:12]), head, body)

    async def ask(self, data: bytes) -> Answer:
        await self.send(data)
        return await self.answer()

    async def is_closed_by_server(self) -> bool:
        """Wait for the end of the connection; False if more bytes arrive instead."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionError:
            return True

    async def close(self) -> None:
        self.writer.transport.abort()
        await asyncio.sleep(0)


@dataclass(kw_only=True)
class Gateway(Services):
    """The HTTP frontend on a port of its own, and what it has behind it."""

    server: HttpServer = field(init=False)
    port: int = field(init=False)
    clients: list[Client] = field(init=False, default_factory=list)

    async def connect(self, *, receive_buffer_bytes: int | None = None) -> Client:
        own = socket.socket()
        if receive_buffer_bytes is not None:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        own.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(own, ("127.0.0.1", self.port))
        except OSError:
            own.close()
            raise
        client = Client(*await asyncio.open_connection(sock=own, limit=1 << 20))
        self.clients.append(client)
        return client


def _openai(
    own: Gateway, fingerprints: Fingerprints, templates: TemplateProcesses, batches: BatchesApplication | None
) -> tuple[OpenaiHttp, Embeddings]:
    """The OpenAI frontend, and the embeddings behind it, which have tasks of their own."""
    access, dispatch = own.governed.access, SingleServerDispatch(own.servers)
    text_models = TextModels(dispatch, fingerprints, access)
    cache = ResponseCache(fingerprints, EvictingCache(1 << 24))
    embeddings = Embeddings(inference=own.inference, models=text_models, cache=cache, default_timeout_s=INFER_TIMEOUT_S, part_of=no_parts)
    generation = Generation(
        inference=own.inference,
        models=GenerativeModels(dispatch, fingerprints, access),
        templates=templates,
        limits=GenerationLimits(MAX_PROMPT_BYTES, MAX_COMPLETION_TOKENS),
        meter=own.governed.meter,
    )
    openai = OpenaiHttp(
        inference=own.inference,
        embeddings=embeddings,
        models=text_models,
        generation=generation,
        access=access,
        read_timeout_s=READ_TIMEOUT_S,
        batches=batches,
    )
    return openai, embeddings


@asynccontextmanager
async def gateway(
    upstream: FakeUpstream | None = None,
    limits: HttpLimits = LIMITS,
    *,
    max_buffered_bytes: int = 64 << 20,
    body_limits: BodyLimits | None = None,
    fingerprints: Fingerprints | None = None,
    hosts: AllowedHosts | None = None,
    jobs: JobsApplication | None = None,
    events: EventsApplication | None = None,
    batches: BatchesApplication | None = None,
    **services: Any,
) -> AsyncIterator[Gateway]:
    """Listen on a port of its own; `services` are fields of `Services`, `fingerprints` are for embeddings only."""
    own = Gateway(
        upstream=upstream or FakeUpstream(),
        max_buffered_bytes=max_buffered_bytes,
        body_limits=body_limits or BodyLimits(max_body_bytes=limits.max_body_bytes),
        **services,
    )
    v2 = V2Http(own.kserve, jobs=jobs, events=events)
    templates = TemplateProcesses(max_prompt_bytes=MAX_PROMPT_BYTES)
    openai, embeddings = _openai(own, fingerprints or Fingerprints(), templates, batches)
    application = DataHttp(v2, openai)
    own.server = HttpServer(
        application.answer,
        render_error,
        limits,
        admit=application.admit,
        streams=application.streams,
        verbatim=v2.verbatim,
        budget=own.budget,
        hosts=hosts,
    )
    bound = bind_tcp("127.0.0.1", 0, setting="--http-port")
    own.port = bound.getsockname()[1]
    async with own.running() as tasks:
        embeddings.begin(tasks)
        await own.server.listen(tasks, bound)
        try:
            yield own
        finally:
            for client in own.clients:
                await client.close()
            await own.server.drain(0)
            await templates.close()


def infer_request(body: bytes = INFER, *, headers: bytes = b"", model: bytes = b"m") -> bytes:
    """An inference request as bytes; `headers` are whole lines."""
    return b"POST /v2/models/%b/infer HTTP/1.1\r\nHost: localhost\r\n%bContent-Length: %d\r\n\r\n%b" % (model, headers, len(body), body)


@asynccontextmanager
async def in_its_slot(it: Gateway) -> AsyncIterator[None]:
    """Have a request in a slot of its model within the block, at whose end it is answered."""
    it.upstream.http.calls.may_answer.clear()
    other = await it.connect()
    await other.send(infer_request())
    while not it.upstream.http.requests:
        await asyncio.sleep(0.001)
    yield
    it.upstream.http.calls.may_answer.set()
    assert (await other.answer()).status == 200


LIVE = b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
