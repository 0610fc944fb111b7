from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.codec.v2_route import Action, V2Route, read_route
from control_plane.domain.errors import MethodNotAllowed, RouteNotFound


@pytest.mark.parametrize(
    ("method", "target", "route"),
    [
        pytest.param("POST", "/v2/models/m/infer", V2Route(Action.INFER, "m"), id="infer"),
        pytest.param("POST", "/v2/models/m/versions/3/infer", V2Route(Action.INFER, "m", "3"), id="infer a version"),
        pytest.param("POST", "/v2/models/m/infer?x=1", V2Route(Action.INFER, "m"), id="a query is not the path's"),
        pytest.param("POST", "/v2/models/a%2Fb/infer", V2Route(Action.INFER, "a%2Fb"), id="nothing is decoded"),
        pytest.param("POST", "/v2/models/../infer", V2Route(Action.INFER, ".."), id="no segment is resolved"),
        pytest.param("POST", "/v2/models/infer/infer", V2Route(Action.INFER, "infer"), id="a model called infer"),
        pytest.param("POST", "/v2/models/stats/infer", V2Route(Action.INFER, "stats"), id="a model called stats"),
        pytest.param("GET", "/v2/health/live", V2Route(Action.LIVE), id="live"),
        pytest.param("GET", "/v2/health/ready", V2Route(Action.READY), id="ready"),
        pytest.param("GET", "/v2", V2Route(Action.READ), id="server metadata"),
        pytest.param("GET", "/v2/models/stats", V2Route(Action.READ), id="all statistics, not a model called stats"),
        pytest.param("GET", "/v2/models/m", V2Route(Action.READ, "m"), id="model metadata"),
        pytest.param("GET", "/v2/models/m/versions/3", V2Route(Action.READ, "m", "3"), id="a version's metadata"),
        pytest.param("GET", "/v2/models/m/ready", V2Route(Action.READ, "m"), id="model ready"),
        pytest.param("GET", "/v2/models/m/versions/3/ready", V2Route(Action.READ, "m", "3"), id="a version ready"),
        pytest.param("GET", "/v2/models/m/config", V2Route(Action.READ, "m"), id="config"),
        pytest.param("GET", "/v2/models/m/versions/3/stats", V2Route(Action.READ, "m", "3"), id="a version's statistics"),
        pytest.param("POST", "/v2/repository/index", V2Route(Action.READ), id="repository index"),
    ],
)
def test_known(method: str, target: str, route: V2Route) -> None:
    assert read_route(method.encode(), target.encode()) == route


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("", id="nothing"),
        pytest.param("/", id="the root"),
        pytest.param("/v1/models", id="another protocol version"),
        pytest.param("/V2/health/live", id="upper case"),
        pytest.param("//v2/health/live", id="a doubled slash"),
        pytest.param("/v2/health/live/", id="a slash at the end"),
        pytest.param("/v2/health/live\n", id="a newline at the end"),
        pytest.param("/x/v2/health/live", id="a prefix"),
        pytest.param("http://host/v2/health/live", id="absolute form"),
        pytest.param("*", id="asterisk form"),
        pytest.param("/v2/models//infer", id="no name"),
        pytest.param("/v2/models/a/b/infer", id="a name with a slash"),
        pytest.param("/v2/models/m/versions/x/infer", id="a version that is no number"),
        pytest.param("/v2/models/m/versions/-1/infer", id="a negative version"),
        pytest.param("/v2/models/m/versions/\u0661/infer", id="a version in Arabic digits"),
        pytest.param("/v2/models/m/generate", id="generate"),
        pytest.param("/v2/models/m/generate_stream", id="generate_stream"),
        pytest.param("/v2/models/m/trace/setting", id="a model's tracing"),
        pytest.param("/v2/trace/setting", id="tracing"),
        pytest.param("/v2/logging", id="logging"),
        pytest.param("/v2/systemsharedmemory/status", id="system shared memory"),
        pytest.param("/v2/systemsharedmemory/region/r/register", id="registering shared memory"),
        pytest.param("/v2/cudasharedmemory/region/r/register", id="registering CUDA shared memory"),
        pytest.param("/v2/repository/models/m/load", id="load: the admin API's"),
        pytest.param("/v2/repository/models/m/unload", id="unload: the admin API's"),
        pytest.param("/v2/repository/r/models/m/load", id="load from a named repository"),
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_unknown(method: bytes, target: str) -> None:
    with pytest.raises(RouteNotFound):
        read_route(method, target.encode())


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v2/models/m/infer"),
        ("PUT", "/v2/models/m/infer"),
        ("post", "/v2/models/m/infer"),
        ("POST", "/v2/health/live"),
        ("HEAD", "/v2/health/live"),
        ("OPTIONS", "/v2"),
        ("POST", "/v2/models/m"),
        ("DELETE", "/v2/models/m"),
        ("GET", "/v2/repository/index"),
        ("HEAD", "/v2/repository/index"),
    ],
)
def test_other_methods(method: str, target: str) -> None:
    with pytest.raises(MethodNotAllowed):
        read_route(method.encode(), target.encode())


@given(
    method=st.sampled_from([b"GET", b"POST", b"HEAD"]),
    target=st.one_of(st.binary(max_size=30), st.binary(max_size=9).map(b"/v2/models/".__add__)),
)
def test_any_target_is_a_route_or_refused(method: bytes, target: bytes) -> None:
    with suppress(RouteNotFound, MethodNotAllowed):
        assert isinstance(read_route(method, target), V2Route)
