"""What a repeated head and the JSON before its binary data ask for is read once."""

from __future__ import annotations

import pytest

from control_plane.auth.access import Access
from control_plane.core.action import Action
from control_plane.core.algorithms.steps import finish
from control_plane.core.errors import InvalidRequest
from control_plane.core.infer_call import InferCall
from control_plane.core.principal import ANONYMOUS
from control_plane.frontends.kserve.http_infer import HttpInferContext, HttpInferRequest
from control_plane.protocols.header_forwarding import NO_FORWARDING
from control_plane.protocols.http1 import HttpRequest
from control_plane.protocols.kserve.requests.body_limits import BodyLimits
from control_plane.protocols.kserve.routes import V2Route
from tests.fakes.governance import known_state

_CONTEXT = HttpInferContext(None, BodyLimits(), NO_FORWARDING, Access(known_state(), None))  # type: ignore[arg-type]  # nothing is cached
_ONE, _TWO = (b'{"inputs":[{"name":"x","datatype":"INT8","shape":[1,%d],"parameters":{"binary_data_size":%d}}]}' % (n, n) for n in (4, 5))


def _head(json: bytes) -> HttpRequest:
    """A request whose head its connection recognises."""
    request = HttpRequest(b"POST", b"/v2/models/m/infer", [(b"Inference-Header-Content-Length", b"%d" % len(json))])
    request.derived.head = b"POST ..."
    return request


def _read(request: HttpRequest) -> InferCall | None:
    return HttpInferRequest(request, V2Route(Action.INFER, "m"), ANONYMOUS, _CONTEXT).read_at_once()


def test_equal_json_before_other_data_is_not_read_again() -> None:
    head = _head(_ONE)
    first = _read(head.with_body(_ONE + b"1234"))
    assert first is not None
    assert first.inputs[0].shape == (1, 4)
    assert head.derived.infer_call is first, "found without a look at the JSON"
    assert _read(head.with_body(_ONE + b"5678")) is first


@pytest.mark.parametrize("body", [pytest.param(_TWO + b"12345", id="size"), pytest.param(_TWO + b"1234", id="data-too-short")])
def test_other_json_is_read_anew(body: bytes) -> None:
    head = _head(_ONE)
    _read(head.with_body(_ONE + b"1234"))
    call = _read(head.with_body(body))
    assert call is None or call.inputs[0].shape == (1, 5)
    assert (call is None) == (len(body) != len(_TWO) + 5)


def test_equal_json_before_more_data_is_read_anew() -> None:
    head = _head(_ONE)
    _read(head.with_body(_ONE + b"1234"))
    assert _read(head.with_body(_ONE + b"12345")) is None, "the steps refuse it"


def test_what_is_refused_is_refused_again() -> None:
    head = _head(_ONE)
    for _ in range(2):
        with pytest.raises(InvalidRequest):
            _read(head.with_body(_ONE[:20]))


@pytest.mark.parametrize(
    ("path", "is_open_ended"), [(b"generate_stream", True), (b"generate_stream?a=/generate", True), (b"generate", False)]
)
def test_how_long_a_stream_takes_is_its_callers_choice(path: bytes, is_open_ended: bool) -> None:
    """Else a limiter would learn from those that were never begun alone: how long the others took it is not told."""
    request = HttpRequest(b"POST", b"/v2/models/m/" + path, [], b'{"text_input":"a"}')
    call = finish(HttpInferRequest(request, V2Route(Action.GENERATE, "m"), ANONYMOUS, _CONTEXT).read())
    assert call.is_open_ended is is_open_ended
