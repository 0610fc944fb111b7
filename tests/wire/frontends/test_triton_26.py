"""The gateway before a Triton of 26.x, as far as that refuses what 24.10 takes.

By Triton's source (triton-inference-server/server, main of 2026-08, 2.73.0dev): reserved names of forwarded headers
(`src/common.h` kReservedParameterKeys, #8763), HTTP chunks (`src/http_server.cc` kMaxChunkedChunks), and clients' shared
memory (`--allow-client-shm`, #8721). What it takes of a body by HTTP is `tests/unit/deploy`'s.
"""

from __future__ import annotations

import re
from typing import Any, cast

import grpc
import grpc.aio
import pytest

from control_plane.core.endpoints import TcpAddress
from control_plane.protocols.header_forwarding import HeaderForwarding
from control_plane.triton.adapters.grpc.client import GrpcClient
from control_plane.triton.adapters.http.client import HttpClient
from tests.fakes import FakeGrpc, FakeHttp, FakeUpstream
from tests.unit.triton.adapters.fake_grpc_server import serving
from tests.unit.triton.adapters.scripted_triton import OK, Exchange, scripted_triton
from tests.wire.gateway import INFER, gateway, infer_request
from tests.wire.grpc_frontend import frontend, infer_message

RESERVED = ("sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output")
MAX_CHUNKS = 1 << 16
NO_SHARED_MEMORY = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
EVERYTHING = HeaderForwarding.of(".*")


def refusal(names: list[str]) -> str | None:
    """What a Triton with `--http-header-forward-pattern=(?i).*` says of these names of headers."""
    for name in names:
        if name in RESERVED or name.startswith("triton_"):
            return f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
    return None


async def over_http(exchange: Exchange) -> bytes:
    head, _, body = exchange.request.partition(b"\r\n\r\n")
    names = [line.partition(b":")[0].decode() for line in head.split(b"\r\n")[1:]]
    if b"systemsharedmemory" in head:
        told: str | None = NO_SHARED_MEMORY
    elif re.search(rb"(?i)transfer-encoding: *chunked", head) and body.count(b"\r\n") > 2 * MAX_CHUNKS:
        told = "Chunked request body exceeds maximum"
    else:
        told = refusal(names)
    if told is None:
        return OK
    said, status = b'{"error":"%s"}' % told.encode(), b"501 Not Implemented" if told is NO_SHARED_MEMORY else b"400 Bad Request"
    return b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (status, len(said), said)


async def over_grpc(message: bytes, context: Any) -> bytes:
    if (told := refusal([name for name, _ in context.invocation_metadata()])) is not None:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, told)
    return b""


@pytest.mark.parametrize("name", [*RESERVED, "triton_enable_empty_final_response", "triton_anything"])
async def test_no_caller_breaks_or_sets_a_reserved_parameter_by_a_header(name: str) -> None:
    """Browsers send `priority` with every request (RFC 9218)."""
    seen: list[tuple[str, str]] = []

    async def noted(message: bytes, context: Any) -> bytes:
        seen.extend(tuple(each) for each in context.invocation_metadata())
        return await over_grpc(message, context)

    async with scripted_triton(over_http) as triton, serving(noted) as grpc_triton:
        http, grpc_client = (
            HttpClient(TcpAddress("127.0.0.1", triton.port), max_connections=10, forwarding=EVERYTHING),
            GrpcClient(TcpAddress("127.0.0.1", grpc_triton.port), forwarding=EVERYTHING),
        )
        async with (
            gateway(FakeUpstream(http=cast("FakeHttp", http)), forwarding=EVERYTHING) as gate,
            frontend(cast("FakeGrpc", grpc_client), forwarding=EVERYTHING) as bench,
        ):
            answer = await (await gate.connect()).ask(infer_request(headers=b"%s: u=1\r\nx-tenant: a\r\n" % name.encode()))
            assert answer.status == 200, answer
            assert b"x-tenant: a" in triton.exchanges[0].request, "which others still reach it"
            await bench.call(message=infer_message(), metadata=((name, "1"), ("x-tenant", "a")))
            assert ("x-tenant", "a") in seen
        await http.close()
        await grpc_client.close()


async def test_a_body_of_very_many_chunks_arrives_as_one() -> None:
    body = INFER + b" " * MAX_CHUNKS
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
    head = infer_request().partition(b"\r\n\r\n")[0]
    head = re.sub(rb"\r\n(?i:content-length): \d+", b"\r\nTransfer-Encoding: chunked", head)
    async with scripted_triton(over_http) as triton:
        http = HttpClient(TcpAddress("127.0.0.1", triton.port), max_connections=10, forwarding=EVERYTHING)
        async with gateway(FakeUpstream(http=cast("FakeHttp", http))) as gate:
            answer = await (await gate.connect()).ask(head + b"\r\n\r\n" + chunks)
            assert answer.status == 200, answer
            assert triton.exchanges[0].request.endswith(body)
        await http.close()


async def test_that_shared_memory_is_off_there_is_told_in_tritons_words() -> None:
    async with scripted_triton(over_http) as triton:
        http = HttpClient(TcpAddress("127.0.0.1", triton.port), max_connections=10, forwarding=EVERYTHING)
        async with gateway(FakeUpstream(http=cast("FakeHttp", http)), allow_shared_memory=True) as gate:
            said = b'{"key":"/a","offset":0,"byte_size":4}'
            request = b"POST /v2/systemsharedmemory/region/a/register HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s" % (
                len(said),
                said,
            )
            answer = await (await gate.connect()).ask(request)
            assert (answer.status, NO_SHARED_MEMORY.encode() in answer.body) == (501, True), answer
        await http.close()
