"""Names and versions that no model can have, in every call that carries one: nothing of them reaches Triton,
or anybody else.

Triton 24.10 cuts a gRPC name off at a NUL and takes any version that begins like a number, so what the
gateway read there was something else than what Triton did: with the scope `infer:*_public`,
`probe<NUL>_public` ran `probe`. Calls are listed by Triton's own service descriptor, by the table of paths
and by the admin API's document: one that is added with a name in it is attacked here at once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import grpc
import grpc.aio
import pytest
from tritonclient.grpc import service_pb2

from control_plane.core.model import UNKNOWN_MODEL
from control_plane.frontends.kserve.grpc import SERVICE
from control_plane.inference.governance import Governance
from control_plane.objects.domain.tenant import Tenant
from control_plane.protocols.http1 import make_answer
from control_plane.protocols.kserve.routes import read_route
from tests.fakes.governance import api_key, governance, key_text, known_state
from tests.unit.admin.admin_bench import Bench as AdminBench
from tests.wire.auth.calls import GRPC_CALLS, HTTP_CALLS
from tests.wire.gateway import INFER, gateway, infer_request
from tests.wire.grpc_frontend import STREAM, Bench, frontend, infer_message

BAD_NAMES = {
    "nul": "probe\0_public",
    "nul-last": "probe_public\0",
    "blank": "probe _public",
    "slash": "../probe_public",
    "dots": "..",
    "hidden": ".probe_public",
    "percent": "probe%00_public",
    "line": "probe_public\n",
    "not-ascii": "pröbe_public",
    "long": f"{'x' * 249}_public",
}
BAD_VERSIONS = {"letters": "1abc", "blank": " 1", "sign": "+1", "minus": "-1", "nul": "1\0", "digits": "1" * 19, "arabic": "\u0661"}

KEY = (("x-api-key", key_text(1)),)


def governed() -> Governance:
    """One key that may administer, and whose name pattern matches every bad name."""
    known = known_state(keys=(api_key(1, "infer:*", "infer:*_public", "repository"),), tenants=(Tenant("team"),))
    return governance(known, authentication=True)


def named_fields(method: Any) -> dict[str, Any]:
    """The request's fields that name a model or a version, each with every value that no model can have."""
    bad = {"name": BAD_NAMES, "model_name": BAD_NAMES, "version": BAD_VERSIONS, "model_version": BAD_VERSIONS}
    is_of_regions = "SharedMemory" in method.name
    return {} if is_of_regions else {field.name: bad[field.name] for field in method.input_type.fields if field.name in bad}


NAMING = [method for method in service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods if named_fields(method)]


def messages(method: Any) -> Iterator[tuple[str, bytes]]:
    for field, values in named_fields(method).items():
        for what, value in values.items():
            message = getattr(service_pb2, method.input_type.name)()
            if method.input_type.name == "ModelInferRequest":
                message.MergeFromString(infer_message())
            setattr(message, "model_name" if "model_name" in method.input_type.fields_by_name else "name", "probe")
            setattr(message, field, value)
            yield f"{field}: {what}", message.SerializeToString()


@pytest.mark.parametrize("is_on", [pytest.param(True, id="keys"), pytest.param(False, id="open")])
@pytest.mark.parametrize("method", [pytest.param(method, id=method.name) for method in NAMING])
async def test_no_grpc_call_carries_it_further(method: Any, is_on: bool) -> None:
    async with frontend(governed=governed() if is_on else governance()) as it:
        it.upstream.control.decoupled["probe"] = False
        for what, message in messages(method):
            said = await (refused_on_a_stream if method.name == "ModelStreamInfer" else refused)(it, SERVICE + method.name, message)
            assert "cannot be a model's" in said, (what, said)
        assert it.upstream.grpc.requests == it.models.asked == it.upstream.control.kinds_asked == []


async def refused(it: Bench, method: str, message: bytes) -> str:
    failure = await it.failure(method, message, metadata=KEY)
    assert failure.code() is grpc.StatusCode.INVALID_ARGUMENT
    return failure.details() or ""


async def refused_on_a_stream(it: Bench, method: str, message: bytes) -> str:
    call = it.stream(metadata=KEY)
    await call.write(message)
    answer = service_pb2.ModelStreamInferResponse.FromString(await call.read())
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
    said: str = answer.error_message
    return said


def test_every_call_of_tritons_service_is_known() -> None:
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    assert {method.name for method in service.methods} == {name for name in GRPC_CALLS if not name.startswith("/")}
    assert STREAM == SERVICE + "ModelStreamInfer"


NAMED_PATHS = [(method, path) for method, path in HTTP_CALLS if "/models/" in path and not path.endswith("/models/stats")]


@pytest.mark.parametrize(("method", "path"), NAMED_PATHS)
def test_every_path_with_a_models_name_is_read_for_it(method: str, path: str) -> None:
    assert read_route(method.encode(), path.encode()).model_name == "m"


@pytest.mark.parametrize(("method", "path"), NAMED_PATHS)
async def test_no_path_carries_it_further(method: str, path: str) -> None:
    async with gateway(governed=governed()) as it:
        for name in BAD_NAMES.values():
            attacked = re.sub("/models/m(?=/|$)", f"/models/{quote(name, safe='')}", path)
            answer = await (await it.connect()).ask(request(method, attacked))
            assert answer.status == (404 if path.startswith("/v1/") else 400), (name, answer)
            assert b"cannot be a model's name" in answer.body
        assert it.upstream.http.requests == it.models.asked == []


async def test_a_nul_as_it_is_ends_the_connection() -> None:
    async with gateway(governed=governed()) as it:
        client = await it.connect()
        assert (await client.ask(request("GET", "/v2/models/probe\0_public"))).status == 400
        assert it.upstream.http.requests == []


async def test_no_path_carries_a_version_further_that_is_none() -> None:
    async with gateway(governed=governed()) as it:
        for version in ("1" * 19, "1abc", "+1", "-1", "%201", "1%00"):
            for method, call in (("POST", "/infer"), ("GET", "/stats"), ("GET", "")):
                answer = await (await it.connect()).ask(request(method, f"/v2/models/m/versions/{version}{call}"))
                assert answer.status == (400 if version.isdigit() else 404)
        assert it.upstream.http.requests == []


def request(method: str, path: str, body: bytes = INFER) -> bytes:
    body = body if method == "POST" else b""
    return f"{method} {path} HTTP/1.1\r\nHost: h\r\nx-api-key: {key_text(1)}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def test_no_embedding_is_made_of_it() -> None:
    async with gateway(governed=governed()) as it:
        for name in BAD_NAMES.values():
            body = json.dumps({"model": name, "input": "a"}).encode()
            assert (await (await it.connect()).ask(request("POST", "/v1/embeddings", body))).status == 404
        assert it.upstream.http.requests == []


async def test_names_that_no_model_has_share_the_slots_of_one_model() -> None:
    """Otherwise one caller could have any number of requests at Triton, with a made-up name for each."""
    rights = governance()
    async with gateway(governed=rights) as it:
        it.inference.models.answered("real")
        it.upstream.http.answer = lambda _: make_answer(404)
        client = await it.connect()
        for name in (b"real", b"made-up-1", b"made-up-2"):
            await client.ask(infer_request(model=name))
            await client.ask(infer_request(model=name).replace(b"/infer", b"/generate"))
    assert set(rights.admission.slots.models) == {"real", UNKNOWN_MODEL}


ADMIN_CALLS = [
    (method.upper(), path) for path, methods in AdminBench().app.openapi()["paths"].items() for method in methods if "{name}" in path
]


@pytest.mark.parametrize(("method", "path"), ADMIN_CALLS)
def test_no_call_of_the_admin_api_carries_it_further(method: str, path: str) -> None:
    bench = AdminBench()
    for name in BAD_NAMES.values():
        if "/" in name or name == "..":  # another path
            continue
        status, said = bench.ask(method, path.replace("{name}", quote(name, safe="")), body={"model": "a"} if method == "PUT" else None)
        assert status == 400, (name, said)
    assert bench.upstream.control.loads == bench.upstream.control.unloads == []
    assert bench.store.state.objects == {}
