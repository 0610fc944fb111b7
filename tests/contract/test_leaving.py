"""Time that is over and callers that leave: Triton sees of both what it would see without the gateway between."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress

import grpc
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.contract.conftest import BothWays
from tests.contract.grpc.grpc_streams import repeat
from tests.contract.grpc.grpc_wire import SERVICE, Call, call, channel, infer
from tests.contract.http.http_wire import Talk, hold, request, summary
from tests.contract.ledger import compare
from tests.e2e.tidegate import wait_for

STAYS_S = (0.3, 2.0, 10.0)
"""How long a caller stays, who must have reached the model before he goes: longer where he had not, as on a busy machine."""


def patient(seconds: float, key: str = "", **parameters: int) -> pb.ModelInferRequest:
    return infer("patient", ("SECONDS", "FP32", [1, 1], struct.pack("<f", seconds)), key=key, **parameters)


def cancelled(over: grpc.Channel) -> list[str]:
    """Ids of the requests that the model has seen cancelled."""
    (answer,) = call(over, Call("", "ModelInfer", patient(0.0))).messages
    return pb.ModelInferResponse.FromString(answer).raw_output_contents[0][4:].decode().split()


@pytest.mark.parametrize("through", ["straight", "gateway"])
@pytest.mark.parametrize("how", ["cancelled", "deadline", "disconnected"])
def test_the_model_sees_that_a_grpc_caller_has_gone(frontends: BothWays, through: str, how: str) -> None:
    with channel(frontends.straight_grpc) as straight:
        for stays_s in STAYS_S:
            key = f"{how}-{through}-{stays_s}"
            over = channel(frontends.straight_grpc if through == "straight" else frontends.gateway_grpc)
            method = over.unary_unary(SERVICE + "ModelInfer")
            method(patient(0.0).SerializeToString(), timeout=60.0)  # by then Triton has ended what others have left
            running = method.future(patient(30.0, key).SerializeToString(), timeout=stays_s if how == "deadline" else 60.0)
            if how == "deadline":
                running.exception()
            else:
                time.sleep(stays_s)
                running.cancel() if how == "cancelled" else over.close()
            with suppress(AssertionError):
                wait_for(lambda key=key: key in cancelled(straight), timeout_s=10 * stays_s, what="the model's being told")
                break
            over.close()
        else:
            pytest.fail("the model was told of none of them")
        over.close()


@pytest.mark.parametrize("through", ["straight", "gateway"])
def test_a_stream_that_is_cancelled_frees_the_model(frontends: BothWays, through: str) -> None:
    """A minute of responses are left when the caller goes; the model's only instance is free at once all the same."""
    address = frontends.straight_grpc if through == "straight" else frontends.gateway_grpc
    with channel(address) as over:
        stream = over.stream_stream(SERVICE + "ModelStreamInfer")(iter([repeat(*range(600), key="a", delay_s=0.1).SerializeToString()]))
        next(stream)
        stream.cancel()
        again = over.stream_stream(SERVICE + "ModelStreamInfer")(iter([repeat(1, key="b").SerializeToString()]), timeout=30.0)
        assert len(list(again)) == 1


def test_a_queue_that_is_full_and_a_timeout_in_it_end_the_same(frontends: BothWays) -> None:
    def body(seconds: float, **parameters: int) -> bytes:
        tensor = {"name": "SECONDS", "shape": [1, 1], "datatype": "FP32", "data": [seconds]}
        return request("POST", "/v2/models/patient/infer", {"inputs": [tensor], "parameters": parameters})

    for name, ports in (("full", range(6)), ("late", range(1))):
        seen = []
        for port in (frontends.straight_http, frontends.gateway_http):
            with busy(port, body(1.3)), ThreadPoolExecutor(6) as pool:
                talk = Talk(name, (body(0.0) if name == "full" else body(0.0, timeout=1000),))
                seen.append(tuple(sorted(summary(each) for each in pool.map(lambda _, port=port, talk=talk: hold(port, talk), ports))))
        assert any("503" in each for each in seen[0]), seen[0]
        compare(f"queue: {name}", *({*each} for each in seen), lambda each: ", ".join(sorted(each)))


@contextmanager
def busy(port: int, request_bytes: bytes) -> Iterator[None]:
    """While the model's only instance works on this one request."""
    worker = threading.Thread(target=hold, args=(port, Talk("busy", (request_bytes,))))
    worker.start()
    time.sleep(0.5)  # it has reached the model by then
    yield
    worker.join()


def test_an_http_caller_that_leaves_a_stream_of_events_frees_the_model(frontends: BothWays) -> None:
    """Better than Triton, which goes on: HTTP tells it nothing."""
    message = json.dumps({"IN": list(range(600)), "DELAY_S": 0.1}).encode()
    with socket.create_connection(("127.0.0.1", frontends.gateway_http), timeout=60.0) as connection:
        connection.sendall(
            b"POST /v2/models/repeat/generate_stream HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(message) + message
        )
        received = b""
        while b"data:" not in received:
            received += connection.recv(1 << 16) or pytest.fail(f"ended before an event came: {received!r}")
    with channel(frontends.gateway_grpc) as over:
        again = over.stream_stream(SERVICE + "ModelStreamInfer")(iter([repeat(1, key="b").SerializeToString()]), timeout=30.0)
        assert len(list(again)) == 1
