from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.action import Action
from control_plane.core.errors import InvalidRequest, MethodNotAllowed, ModelNotFound, RouteNotFound
from control_plane.protocols.kserve.routes import ADMINISTRATORS_ONLY, V2Route, authority_in, is_openai, origin_form, read_route, target_for


@pytest.mark.parametrize(
    ("method", "target", "route"),
    [
        pytest.param("POST", "/v2/models/m/infer", V2Route(Action.INFER, "m"), id="infer"),
        pytest.param("POST", "/v2/models/m/versions/3/infer", V2Route(Action.INFER, "m", "3"), id="infer a version"),
        pytest.param("POST", "/v2/models/m/infer?x=1", V2Route(Action.INFER, "m"), id="a query is not the path's"),
        pytest.param("POST", "/v2/models/infer/infer", V2Route(Action.INFER, "infer"), id="a model called infer"),
        pytest.param("POST", "/v2/models/stats/infer", V2Route(Action.INFER, "stats"), id="a model called stats"),
        pytest.param("GET", "/v2/health/live", V2Route(Action.LIVE), id="live"),
        pytest.param("GET", "/v2/health/ready", V2Route(Action.READY), id="ready"),
        pytest.param("GET", "/v2", V2Route(Action.READ), id="server metadata"),
        pytest.param("GET", "/v2/models/stats", V2Route(Action.STATISTICS), id="all statistics, not a model called stats"),
        pytest.param("GET", "/v2/models/m", V2Route(Action.READ, "m"), id="model metadata"),
        pytest.param("GET", "/v2/models/m/versions/3", V2Route(Action.READ, "m", "3"), id="a version's metadata"),
        pytest.param("GET", "/v2/models/m/ready", V2Route(Action.MODEL_READY, "m"), id="model ready"),
        pytest.param("GET", "/v2/models/m/versions/3/ready", V2Route(Action.MODEL_READY, "m", "3"), id="a version ready"),
        pytest.param("GET", "/v2/models/m/config", V2Route(Action.READ, "m"), id="config"),
        pytest.param("GET", "/v2/models/m/versions/3/stats", V2Route(Action.STATISTICS, "m", "3"), id="a version's statistics"),
        pytest.param("POST", "/v2/repository/index", V2Route(Action.INDEX), id="repository index"),
        pytest.param("POST", "/v2/repository/r/index", V2Route(Action.INDEX), id="the index of one repository"),
        pytest.param("POST", "/v2/models/m/generate", V2Route(Action.GENERATE, "m"), id="generate"),
        pytest.param("POST", "/v2/models/m/versions/2/generate_stream", V2Route(Action.GENERATE, "m", "2"), id="generate_stream"),
        pytest.param("POST", "/v2/repository/models/m/load", V2Route(Action.LOAD, "m"), id="load"),
        pytest.param("POST", "/v2/repository/models/m/unload", V2Route(Action.UNLOAD, "m"), id="unload"),
        pytest.param("POST", "/v2/repository/r/models/m/load", V2Route(Action.ADMIN, "m"), id="load from one repository"),
        pytest.param("GET", "/v2/trace/setting", V2Route(Action.ADMIN), id="tracing"),
        pytest.param("POST", "/v2/trace/setting", V2Route(Action.ADMIN), id="set tracing"),
        pytest.param("POST", "/v2/models/m/trace/setting", V2Route(Action.ADMIN, "m"), id="a model's tracing"),
        pytest.param("GET", "/v2/logging", V2Route(Action.ADMIN), id="logging"),
        pytest.param("POST", "/v2/logging", V2Route(Action.ADMIN), id="set logging"),
        pytest.param("GET", "/v2/systemsharedmemory/status", V2Route(Action.SHARED_MEMORY), id="system memory"),
        pytest.param("GET", "/v2/cudasharedmemory/region/r/status", V2Route(Action.SHARED_MEMORY), id="a region of CUDA memory"),
        pytest.param("POST", "/v2/systemsharedmemory/region/r/register", V2Route(Action.SHARED_MEMORY), id="register"),
        pytest.param("POST", "/v2/cudasharedmemory/unregister", V2Route(Action.SHARED_MEMORY), id="unregister all"),
        pytest.param("POST", "/v1/embeddings", V2Route(Action.EMBED), id="OpenAI's embeddings"),
        pytest.param("POST", "/v1/completions", V2Route(Action.COMPLETE), id="OpenAI's completions"),
        pytest.param("POST", "/v1/chat/completions", V2Route(Action.CHAT), id="OpenAI's chats"),
        pytest.param("GET", "/v1/models", V2Route(Action.LIST_MODELS), id="OpenAI's models"),
        pytest.param("GET", "/v1/models/m?x", V2Route(Action.LIST_MODELS, "m"), id="one of OpenAI's models"),
        pytest.param("HEAD", "/v2/models/m", V2Route(Action.READ, "m"), id="HEAD goes where GET goes"),
        pytest.param("OPTIONS", "/v2/logging", V2Route(Action.OPTIONS, allowed=("GET", "HEAD", "OPTIONS", "POST")), id="OPTIONS"),
        pytest.param("OPTIONS", "*", V2Route(Action.OPTIONS, allowed=("GET", "HEAD", "OPTIONS", "POST")), id="OPTIONS of the server"),
    ],
)
def test_known(method: str, target: str, route: V2Route) -> None:
    assert read_route(method.encode(), target.encode()) == route


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("", id="nothing"),
        pytest.param("/", id="the root"),
        pytest.param("/v3/models", id="another protocol version"),
        pytest.param("/v1/models/", id="no name of OpenAI's"),
        pytest.param("/v1/responses", id="another call of OpenAI's"),
        pytest.param("/V2/health/live", id="upper case"),
        pytest.param("//v2/health/live", id="a doubled slash"),
        pytest.param("/v2/health/live/", id="a slash at the end"),
        pytest.param("/v2/health/live\n", id="a newline at the end"),
        pytest.param("/x/v2/health/live", id="a prefix"),
        pytest.param("http://host/v2/health/live", id="absolute form, of which the path was to be taken"),
        pytest.param("*", id="asterisk form, which is OPTIONS' alone"),
        pytest.param("/v2/models//infer", id="no name"),
        pytest.param("/v2/models/a/b/infer", id="a name with a slash"),
        pytest.param("/v2/models/m/versions/x/infer", id="a version that is no number"),
        pytest.param("/v2/models/m/versions/-1/infer", id="a negative version"),
        pytest.param("/v2/models/m/versions/\u0661/infer", id="a version in Arabic digits"),
        pytest.param("/v2/models/m/generate/stream", id="generate and something"),
        pytest.param("/v2/models/m/versions/1/trace/setting", id="the tracing of a version"),
        pytest.param("/v2/systemsharedmemory", id="shared memory, and nothing to do with it"),
        pytest.param("/v2/xpusharedmemory/status", id="shared memory of another kind"),
        pytest.param("/v2/systemsharedmemory/region//status", id="a region without a name"),
        pytest.param("/v2/repository/models/m/reload", id="reload"),
        pytest.param("/v2/repository/models/load", id="load nothing"),
    ],
)
@pytest.mark.parametrize("method", [b"GET", b"POST"])
def test_unknown(method: bytes, target: str) -> None:
    with pytest.raises(RouteNotFound):
        read_route(method, target.encode())


@pytest.mark.parametrize("verb", ["predict", "explain"])
def test_kserves_first_protocol_is_told_the_second(verb: str) -> None:
    with pytest.raises(RouteNotFound, match="KServe's v1 protocol is not served; send POST /v2/models/NAME/infer"):
        read_route(b"POST", f"/v1/models/m:{verb}".encode())


def test_another_call_of_openais_api_is_told_which_there_are() -> None:
    with pytest.raises(RouteNotFound, match="of OpenAI's API there are /v1/embeddings, /v1/completions, "):
        read_route(b"POST", b"/v1/responses")


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v2/models/m/infer"),
        ("PUT", "/v2/models/m/infer"),
        ("post", "/v2/models/m/infer"),
        ("POST", "/v2/health/live"),
        ("POST", "/v2/systemsharedmemory/status"),
        ("GET", "/v2/repository/models/m/load"),
        ("HEAD", "/v2/models/m/generate"),
        ("PUT", "/v2/logging"),
        ("POST", "/v2/models/m"),
        ("DELETE", "/v2/models/m"),
        ("GET", "/v2/repository/index"),
        ("HEAD", "/v2/repository/index"),
    ],
)
def test_other_methods(method: str, target: str) -> None:
    with pytest.raises(MethodNotAllowed):
        read_route(method.encode(), target.encode())


@pytest.mark.parametrize(
    "target",
    [
        pytest.param("/v2/models/a%2Fb/infer", id="nothing is decoded"),
        pytest.param("/v2/models/../infer", id="no segment is resolved"),
        pytest.param("/v2/models/a;b/infer", id="what a shell reads"),
        pytest.param(f"/v2/models/m/versions/{'1' * 19}/infer", id="beyond 64 bits"),
    ],
)
def test_what_no_model_can_be_called(target: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be a model's"):
        read_route(b"POST", target.encode())


def test_to_openais_clients_such_a_model_does_not_exist() -> None:
    with pytest.raises(ModelNotFound):
        read_route(b"GET", b"/v1/models/org%2Fname")


@given(
    method=st.sampled_from([b"GET", b"POST", b"HEAD"]),
    target=st.one_of(st.binary(max_size=30), st.binary(max_size=9).map(b"/v2/models/".__add__)),
)
def test_any_target_is_a_route_or_refused(method: bytes, target: bytes) -> None:
    with suppress(RouteNotFound, MethodNotAllowed, InvalidRequest):
        assert isinstance(read_route(method, target), V2Route)


def test_a_wrong_method_is_told_the_right_ones() -> None:
    with pytest.raises(MethodNotAllowed) as refused:
        read_route(b"DELETE", b"/v2/logging")
    assert refused.value.allowed == ("GET", "HEAD", "OPTIONS", "POST")


@pytest.mark.parametrize("action", [Action.INDEX, Action.LOAD, Action.UNLOAD, Action.ADMIN, Action.SHARED_MEMORY])
def test_what_changes_the_server_is_the_administrators(action: Action) -> None:
    assert action in ADMINISTRATORS_ONLY


@pytest.mark.parametrize(
    "action", [Action.INFER, Action.GENERATE, Action.LIVE, Action.READY, Action.READ, Action.MODEL_READY, Action.STATISTICS, Action.OPTIONS]
)
def test_what_only_reads_or_infers_is_everyones(action: Action) -> None:
    assert action not in ADMINISTRATORS_ONLY


@pytest.mark.parametrize(
    ("target", "version", "aimed"),
    [
        pytest.param(b"/v2/models/m/infer", "", b"/v2/models/real/infer", id="no-version"),
        pytest.param(b"/v2/models/m/infer", "3", b"/v2/models/real/versions/3/infer", id="the-routes-version"),
        pytest.param(
            b"/v2/models/m/versions/9/config?a=/v2/models/x", "3", b"/v2/models/real/versions/3/config?a=/v2/models/x", id="query"
        ),
        pytest.param(b"/v2/models/m.1-a/generate_stream", "", b"/v2/models/real/generate_stream", id="generate"),
    ],
)
def test_a_call_is_aimed_at_another_model(target: bytes, version: str, aimed: bytes) -> None:
    assert target_for(target, "real", version) == aimed


def test_what_callers_long_targets_became_is_not_remembered() -> None:
    at_first = target_for(b"/v2/models/m/infer?kept", "real", "")
    assert target_for(b"/v2/models/m/infer?kept", "real", "") is at_first
    long = b"/v2/models/m/infer?" + b"x" * 600
    assert target_for(long, "real", "") is not target_for(long, "real", "")
    assert target_for(long, "real", "") == long.replace(b"/m/", b"/real/")


@pytest.mark.parametrize(
    ("target", "host"),
    [(b"/v2", None), (b"http://a:1/v2", b"a:1"), (b"HTTPS://b", b"b"), (b"*", None), (b"//c/v2", None), (b"/http://d/", None)],
)
def test_the_host_in_a_target_of_absolute_form(target: bytes, host: bytes | None) -> None:
    assert authority_in(target) == host


@pytest.mark.parametrize(
    ("target", "path"),
    [
        pytest.param(b"/v2?http://a/v1", b"/v2?http://a/v1", id="a path"),
        pytest.param(b"http://host:8000/v2/models/m?x", b"/v2/models/m?x", id="absolute form"),
        pytest.param(b"HTTPS://a_b:x/v2", b"/v2", id="a host that Triton cannot read"),
        pytest.param(b"http://a/http://b/v2", b"/http://b/v2", id="twice"),
        pytest.param(b"http://a", b"/", id="no path"),
        pytest.param(b"http://a?x/v2", b"/?x/v2", id="a query only"),
        pytest.param(b"http:///v2", b"http:///v2", id="no host"),
        pytest.param(b"ftp://host/v2", b"ftp://host/v2", id="something else"),
        pytest.param(b"*", b"*", id="the server"),
    ],
)
def test_of_absolute_form_the_path_is_taken(target: bytes, path: bytes) -> None:
    assert origin_form(target) == path


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/v1/embeddings", True),
        ("/v1/anything?x", True),
        ("/v1", False),
        ("/v10/models", False),
        ("/v2/models/v1/infer", False),
        ("", False),
        ("*", False),
    ],
)
def test_which_paths_are_openais(target: str, expected: bool) -> None:
    assert is_openai(target.encode()) is expected
