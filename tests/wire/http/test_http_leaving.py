"""Clients that leave, stall or do not read: their requests are cancelled, and the data that waits for them is
bounded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from control_plane.core.infer_call import Outcome
from control_plane.protocols.http1 import make_answer
from tests.aio import run
from tests.fakes import FakeHttp, FakeUpstream
from tests.wire.gateway import INFER, LIMITS, LIVE, Client, gateway, infer_request
from tests.wire.http.http_leaving_bench import MIB, freed_at_once, wait_until_still


class TestBeforeTheRequestIsWhole:
    @pytest.mark.parametrize(
        "part",
        [
            pytest.param(b"", id="before the first byte"),
            pytest.param(infer_request()[:30], id="within the head"),
            pytest.param(infer_request()[:-1], id="one byte before the end"),
            pytest.param(b"POST /v2/models/m/infer HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n42\r\n{", id="within a chunk"),
        ],
    )
    async def test_nothing_reaches_triton(self, part: bytes) -> None:
        async with gateway() as frontend:
            client = await frontend.connect()
            await client.send(part)
            await client.close()
            assert (await (await frontend.connect()).ask(LIVE)).status == 200
        assert frontend.upstream.http.requests == []
        assert frontend.recorder.records == []


class TestWhileTritonWorks:
    async def _leave(self, leave: Callable[[Client], object], request: bytes) -> None:
        async with gateway() as frontend:
            frontend.upstream.http.calls.hold()
            client = await frontend.connect()
            await client.send(request)
            await frontend.upstream.http.calls.arrivals.get()
            leave(client)
            await frontend.upstream.http.calls.cancelled.wait()
            assert frontend.upstream.http.calls.in_progress == frontend.inference.in_flight == 0
            assert frontend.recorder.outcomes == [Outcome.ABANDONED]
            assert len(frontend.upstream.http.requests) == 1, "requests behind the abandoned one were sent"

    @pytest.mark.parametrize("behind", [b"", infer_request()], ids=["alone", "one behind it"])
    @pytest.mark.parametrize("how", ["reset", "closed", "half closed"])
    def test_its_call_is_cancelled_and_recorded_once(self, how: str, behind: bytes) -> None:
        leave: dict[str, Callable[[Client], object]] = {
            "reset": lambda client: client.writer.transport.abort(),
            "closed": lambda client: client.writer.close(),
            "half closed": lambda client: client.writer.write_eof(),
        }
        run(self._leave(leave[how], infer_request() + behind))

    async def test_with_many_behind_it_leaving_is_seen_when_there_is_an_answer_to_give(self) -> None:
        """A stalled client's socket is not read, so that requests cannot pile up; its end then cannot be seen
        either."""
        async with gateway() as frontend:
            frontend.upstream.http.calls.hold()
            client = await frontend.connect()
            await client.send(infer_request() * 10)
            await frontend.upstream.http.calls.arrivals.get()
            await client.close()
            frontend.upstream.http.calls.may_answer.set()
            assert await wait_until_still(lambda: frontend.inference.in_flight) == 0
            assert len(frontend.upstream.http.requests) < 10
            assert len(frontend.recorder.records) == len(frontend.upstream.http.requests)

    async def test_others_are_not_disturbed(self) -> None:
        async with gateway() as frontend:
            frontend.upstream.http.calls.hold()
            staying, leaving = await frontend.connect(), await frontend.connect()
            for client in (staying, leaving):
                await client.send(infer_request())
                await frontend.upstream.http.calls.arrivals.get()
            await leaving.close()
            await frontend.upstream.http.calls.cancelled.wait()
            frontend.upstream.http.calls.may_answer.set()
            assert (await staying.answer()).body == INFER

    async def test_hundreds_at_once_leave_nothing(self) -> None:
        async with gateway() as frontend:
            frontend.upstream.http.calls.hold()
            for _ in range(LIMITS.max_connections):
                await (await frontend.connect()).send(infer_request())
            for _ in range(LIMITS.max_connections):
                await frontend.upstream.http.calls.arrivals.get()
            for client in frontend.clients:
                await client.close()
            assert await wait_until_still(lambda: frontend.inference.in_flight) == 0
        assert frontend.recorder.outcomes == [Outcome.ABANDONED] * LIMITS.max_connections


class TestMemory:
    """A large request or answer is freed with the connection of the client that left."""

    LARGE = bytes(8 * MIB)
    RAW = b"Inference-Header-Content-Length: 0\r\n"

    async def _leave(self, when: str) -> None:
        request = infer_request(self.LARGE, headers=self.RAW) if when != "answer" else infer_request()
        upstream = FakeUpstream(http=FakeHttp(answer=lambda _: make_answer(200, bytes(8 * MIB))))
        async with gateway(upstream, replace(LIMITS, max_body_bytes=16 * MIB)) as frontend:
            client = await frontend.connect(receive_buffer_bytes=64 << 10)
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            if when == "call":
                upstream.http.calls.hold()
            with freed_at_once():
                await client.send(request[:-1] if when == "upload" else request)
                if when != "upload":
                    await upstream.http.calls.arrivals.get()
                await wait_until_still(lambda: upstream.http.calls.answered)
                await client.close()
                upstream.http.requests.clear()
                assert await wait_until_still(lambda: len(frontend.server._connections)) == 0

    @pytest.mark.parametrize("when", ["upload", "call", "answer"])
    def test_is_free_at_once_when_a_client_leaves_during(self, when: str) -> None:
        run(self._leave(when))


class TestWithoutReading:
    async def test_answers_are_not_piled_up_for_one_that_does_not_read(self) -> None:
        upstream = FakeUpstream(http=FakeHttp(answer=lambda _: make_answer(200, bytes(MIB))))
        async with gateway(upstream) as frontend:
            client = await frontend.connect(receive_buffer_bytes=64 << 10)
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(infer_request() * 300)
            made = await wait_until_still(lambda: upstream.http.calls.answered)
            assert 0 < made < 30

    async def test_when_it_reads_again_all_is_there(self) -> None:
        upstream = FakeUpstream(http=FakeHttp(answer=lambda request: make_answer(200, request.body * 20_000)))
        async with gateway(upstream) as frontend:
            client = await frontend.connect(receive_buffer_bytes=64 << 10)
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(infer_request() * 30)
            await wait_until_still(lambda: upstream.http.calls.answered)
            client.reader._transport.resume_reading()  # type: ignore[attr-defined]
            for _ in range(30):
                assert (await client.answer()).body == INFER * 20_000

    async def test_requests_are_not_piled_up_behind_one_that_triton_works_on(self) -> None:
        async with gateway() as frontend:
            frontend.upstream.http.calls.hold()
            client = await frontend.connect()
            client.writer.write(infer_request(INFER + b" " * 100_000) * 500)  # 50 MB
            await frontend.upstream.http.calls.arrivals.get()
            unsent = await wait_until_still(client.writer.transport.get_write_buffer_size)  # type: ignore[attr-defined]
            assert unsent > 30 * MIB, "the gateway went on reading"
            frontend.upstream.http.calls.may_answer.set()
            for _ in range(500):
                await client.answer()

    async def test_leaving_without_having_read_leaves_nothing(self) -> None:
        upstream = FakeUpstream(http=FakeHttp(answer=lambda _: make_answer(200, bytes(MIB))))
        async with gateway(upstream) as frontend:
            client = await frontend.connect(receive_buffer_bytes=64 << 10)
            client.reader._transport.pause_reading()  # type: ignore[attr-defined]
            await client.send(infer_request() * 100)
            made = await wait_until_still(lambda: upstream.http.calls.answered)
            await client.close()
            assert await wait_until_still(lambda: upstream.http.calls.answered) == made
