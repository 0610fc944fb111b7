"""The gRPC frontend against HTTP/2 programs: nghttp2's tools, and grpc's keep-alive."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

import pytest

from control_plane.core.infer_call import Outcome
from control_plane.frontends.common import connection_server
from control_plane.protocols.grpc import frame_message, message_answer
from tests.fakes import FakeGrpc
from tests.wire.grpc_frontend import INFER, frontend, infer_message, until

GRPC_FIELDS = ("-H", "content-type: application/grpc", "-H", "te: trailers")


async def said(program: str, *arguments: str) -> str:
    """Run a program; returns what it printed. Raises AssertionError when it fails."""
    process = await asyncio.create_subprocess_exec(program, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT)
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed
    return printed.decode()


@pytest.mark.skipif(shutil.which("h2load") is None, reason="h2load is not installed (Debian's nghttp2-client)")
@pytest.mark.parametrize("answer_bytes", [10, 100_000])
@pytest.mark.parametrize("request_bytes", [10, 100_000])
async def test_h2load(tmp_path: Path, request_bytes: int, answer_bytes: int) -> None:
    message = tmp_path / "message"
    message.write_bytes(frame_message(infer_message(padding=request_bytes)))

    async with frontend(FakeGrpc(answer=lambda _: message_answer(bytes(answer_bytes)))) as it:
        load = ("-n200", "-c4", "-m10", "-t1", "-d", str(message), *GRPC_FIELDS)
        printed = await said("h2load", *load, f"http://127.0.0.1:{it.port}{INFER}")
        assert "200 total, 200 started, 200 done, 200 succeeded, 0 failed, 0 errored, 0 timeout" in printed
        assert "status codes: 200 2xx, 0 3xx, 0 4xx, 0 5xx" in printed
        data_bytes = re.search(r"\((\d+)\) data", printed)
        assert data_bytes is not None
        assert int(data_bytes[1]) == 200 * len(frame_message(bytes(answer_bytes)))
        assert it.recorder.outcomes == [Outcome.ANSWERED] * 200


@pytest.mark.skipif(shutil.which("nghttp") is None, reason="nghttp is not installed (Debian's nghttp2-client)")
async def test_nghttp_reads_the_trailers(tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.write_bytes(frame_message(infer_message()))

    async with frontend() as it:
        printed = await said("nghttp", "-nv", "--no-dep", "-d", str(message), *GRPC_FIELDS, f"http://127.0.0.1:{it.port}{INFER}")
        assert re.search(r"recv .*grpc-status: 0", printed)
        assert "GOAWAY" not in printed.partition("grpc-status: 0")[0]


async def test_grpcs_keep_alive_between_calls_keeps_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_server, "_MAX_SWEEP_S", 1_000)  # which would forgive the pings that are counted here
    often = (
        ("grpc.keepalive_time_ms", 10),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
    )

    async with frontend(options=often) as it:
        assert await it.call(INFER, infer_message()) == infer_message()
        (connection,) = it.server._connections
        before = connection._state._state.nuisance.level
        await until(lambda: connection._state._state.nuisance.level >= before + 2)  # grpc sends one a second at most
        assert await it.call(INFER, infer_message()) == infer_message()
        assert set(it.server._connections) == {connection}
