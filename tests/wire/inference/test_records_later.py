"""What is written first of a request's answer and its records, over both protocols."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h2.connection

from control_plane.core.infer_call import Outcome
from control_plane.inference.in_flight.running_requests import RunningRequests
from control_plane.protocols.grpc import frame_message
from tests.fakes import FakeRecorder
from tests.wire.gateway import gateway, infer_request
from tests.wire.grpc_frontend import frontend, infer_message
from tests.wire.h2_calls import HEAD


class Watching(FakeRecorder):
    """Recorder that looks at what the client has been sent by the time that its request is recorded."""

    client: socket.socket

    def record(self, **counted: Any) -> None:
        super().record(**counted)
        self.came = self.client.recv(1 << 16, socket.MSG_DONTWAIT)


def watched(running: RunningRequests) -> Watching:
    """Have a registry record later, as in a gateway, to a recorder that watches."""
    running.records_later, recorder = True, Watching()
    running._records._recorder = recorder
    return recorder


async def test_an_answer_over_http_is_on_its_way_before_it_is_recorded() -> None:
    async with gateway() as own:
        recorder = watched(own.inference.running)
        with socket.create_connection(("127.0.0.1", own.port)) as recorder.client:
            recorder.client.sendall(infer_request())
            while not recorder.records:
                await asyncio.sleep(0)
        assert recorder.outcomes == [Outcome.ANSWERED]
        assert recorder.came.startswith(b"HTTP/1.1 200 OK\r\n")


async def test_an_answer_over_grpc_is_on_its_way_before_it_is_recorded() -> None:
    async with frontend() as own:
        recorder = watched(own.inference.running)
        caller = h2.connection.H2Connection()
        caller.initiate_connection()
        caller.send_headers(1, HEAD)
        caller.send_data(1, frame_message(infer_message()), end_stream=True)
        with socket.create_connection(("127.0.0.1", own.port)) as recorder.client:
            recorder.client.sendall(caller.data_to_send())
            while not recorder.records:
                await asyncio.sleep(0)
        assert recorder.outcomes == [Outcome.ANSWERED]
        assert b"grpc-status" in recorder.came
