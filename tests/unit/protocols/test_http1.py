from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.core.errors import InvalidRequest
from control_plane.frontends.common.status import STATUS
from control_plane.protocols.header_forwarding import HeaderForwarding
from control_plane.protocols.http1 import Headers, HttpRequest, make_answer, no_content, upstream_pieces, with_header, without_chunks

HOST = b"triton:8000"
_TOKENS = st.text("!#$%&'*+-.^_`|~0123456789ABCXYZabcxyz", min_size=1, max_size=12).map(str.encode)
_VALUES = st.binary(max_size=20).filter(lambda value: not re.search(rb"[\x00-\x08\x0a-\x1f\x7f]", value)).map(bytes.strip)


ALL = HeaderForwarding.of(".")


def upstream_bytes(request: HttpRequest, host: bytes) -> bytes:
    return b"".join(upstream_pieces(request, host, ALL))


def sent(headers: Headers, body: bytes = b"") -> list[bytes]:
    """The header lines that reach Triton, without Host and Content-Length."""
    head, _, rest = upstream_bytes(HttpRequest(b"POST", b"/v2", headers, body), HOST).partition(b"\r\n\r\n")
    assert rest == body
    lines = head.split(b"\r\n")
    assert lines[:2] == [b"POST /v2 HTTP/1.1", b"Host: " + HOST]
    assert lines[-1] == b"Content-Length: %d" % len(body)
    return lines[2:-1]


@pytest.mark.parametrize(
    "name",
    [
        b"Connection",
        b"Content-Length",
        b"Expect",
        b"Host",
        b"HTTP2-Settings",
        b"Keep-Alive",
        b"Proxy-Authenticate",
        b"Proxy-Authorization",
        b"Proxy-Connection",
        b"TE",
        b"Trailer",
        b"Transfer-Encoding",
        b"Upgrade",
    ],
)
@pytest.mark.parametrize("spell", [bytes, bytes.lower, bytes.upper], ids=["as written", "lower case", "upper case"])
def test_what_belongs_to_the_connection_stays_with_it(name: bytes, spell: object) -> None:
    assert sent([(spell(name), b"keep-alive")]) == []  # type: ignore[operator]


def test_all_else_goes_on_in_order_and_in_the_case_it_came_in() -> None:
    headers = [(b"X-Trace-ID", b"7"), (b"accept-ENCODING", b"gzip"), (b"X-Trace-ID", b"8"), (b"Inference-Header-Content-Length", b"3")]
    assert sent(headers) == [name + b": " + value for name, value in headers]


@pytest.mark.parametrize(
    ("connection", "kept"),
    [
        pytest.param([b"keep-alive"], True, id="keep-alive names nothing"),
        pytest.param([b"Close"], True, id="close names nothing"),
        pytest.param([b"X-Hop"], False, id="named"),
        pytest.param([b"x-hop"], False, id="named in another case"),
        pytest.param([b"close, X-Hop"], False, id="named in a list"),
        pytest.param([b"close ,\tX-Hop ,"], False, id="named among white space"),
        pytest.param([b"keep-alive", b"X-Hop"], False, id="named in a second field"),
        pytest.param([b"X-Hop2"], True, id="a longer name"),
        pytest.param([b""], True, id="an empty list"),
    ],
)
def test_fields_that_connection_names_are_not_forwarded(connection: list[bytes], kept: bool) -> None:
    headers: Headers = [(b"X-Hop", b"1"), *((b"Connection", value) for value in connection)]
    assert sent(headers) == ([b"X-Hop: 1"] if kept else [])


def test_a_field_that_another_one_names_is_forwarded() -> None:
    assert sent([(b"X-A", b"X-B"), (b"X-B", b"1"), (b"Connection", b"X-C"), (b"X-C", b"2")]) == [b"X-A: X-B", b"X-B: 1"]


def test_the_next_request_of_the_same_head_has_its_own_body() -> None:
    first = HttpRequest(b"POST", b"/v2", [(b"X-A", b"1"), (b"X-A", b"2")], b"one")
    upstream_bytes(first, HOST)
    second = first.with_body(b"second")
    for host in (HOST, b"another:1", HOST):
        fresh = HttpRequest(b"POST", b"/v2", [(b"X-A", b"1"), (b"X-A", b"2")], b"second")
        assert upstream_bytes(second, host) == upstream_bytes(fresh, host)
    assert second.header(b"x-a") == b"1"
    assert first.body == b"one"
    with pytest.raises(InvalidRequest):
        second.single_header(b"x-a")


def test_connection_cannot_strip_what_the_body_was_read_by() -> None:
    """Otherwise a body checked as raw binary (length 0) would reach Triton as unchecked JSON."""
    headers = [(b"Connection", b"Inference-Header-Content-Length"), (b"Inference-Header-Content-Length", b"0")]
    assert sent(headers, b'{"inputs":[]}') == [b"Inference-Header-Content-Length: 0"]


@given(headers=st.lists(st.tuples(_TOKENS, _VALUES), max_size=6), body=st.binary(max_size=30), connection=_TOKENS)
def test_triton_reads_one_request_of_exactly_this_body(headers: Headers, body: bytes, connection: bytes) -> None:
    raw = upstream_bytes(HttpRequest(b"POST", b"/v2", [*headers, (b"Connection", connection), (b"content-length", b"999")], body), HOST)
    head, _, rest = raw.partition(b"\r\n\r\n")
    names = [line.partition(b":")[0].lower() for line in head.split(b"\r\n")[1:]]
    assert names.count(b"content-length") == names.count(b"host") == 1
    assert not {b"transfer-encoding", b"connection", connection.lower()} & set(names) - {b"host", b"content-length"}
    assert re.search(rb"\r\nContent-Length: (\d+)$", head).group(1) == b"%d" % len(rest)  # type: ignore[union-attr]
    assert rest == body


def test_header_finds_the_first_in_any_case() -> None:
    request = HttpRequest(b"GET", b"/", [(b"X-A", b"1"), (b"x-a", b"2")])
    assert request.header(b"x-a") == b"1"
    assert request.header(b"x-b") is None


def test_single_header_refuses_a_second_one() -> None:
    request = HttpRequest(b"GET", b"/", [(b"X-A", b"1"), (b"x-a", b"1"), (b"X-B", b"")])
    assert request.single_header(b"x-b") == b""
    assert request.single_header(b"x-c") is None
    with pytest.raises(InvalidRequest, match="x-a occurs 2 times"):
        request.single_header(b"x-a")


def test_requests_do_not_share_their_headers() -> None:
    HttpRequest(b"GET", b"/").headers.append((b"X", b"1"))
    assert HttpRequest(b"GET", b"/").headers == []


def test_make_answer_frames_its_body() -> None:
    answer = make_answer(404, b"abc", content_type=b"text/plain", headers=[(b"Retry-After", b"1")])
    assert answer.head == b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 3\r\nRetry-After: 1\r\n\r\n"
    assert (answer.status, answer.body) == (404, b"abc")


@pytest.mark.parametrize("status", sorted({status.http for status in STATUS.values()}))
def test_every_status_of_ours_has_a_reason(status: int) -> None:
    assert re.match(rb"HTTP/1\.1 %d [A-Z]" % status, make_answer(status).head)


def test_with_header_adds_one_line_before_the_empty_one() -> None:
    answer = with_header(make_answer(200, b"abc"), b"Connection: close")
    assert answer.head.endswith(b"\r\nContent-Length: 3\r\nConnection: close\r\n\r\n")
    assert answer.body == b"abc"


@pytest.mark.parametrize(("size", "pieces"), [(0, 1), (65_536, 1), (65_537, 2)])
def test_a_large_body_goes_on_by_itself_and_is_not_copied(size: int, pieces: int) -> None:
    body = bytearray(size)
    found = upstream_pieces(HttpRequest(b"POST", b"/v2", [], body), HOST)
    assert len(found) == pieces
    assert b"".join(found).endswith(b"Content-Length: %d\r\n\r\n" % size + body)
    assert pieces == 1 or found[1] is body


def test_requests_that_share_a_head_have_lengths_and_hosts_of_their_own() -> None:
    first = HttpRequest(b"POST", b"/v2", [], b"a")
    for body, host in ((b"a", HOST), (b"bb", HOST), (b"bb", b"other"), (b"c", b"other"), (b"d", b"other")):
        expected = b"POST /v2 HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n\r\n%b" % (host, len(body), body)
        assert upstream_bytes(first.with_body(body), host) == expected


def test_a_request_that_tells_its_time_left_shares_its_head_with_others_that_do_not() -> None:
    first = HttpRequest(b"POST", b"/v2", [], b"a")
    for body, left_s, told in ((b"a", 1.5, b"1500"), (b"b", None, None), (b"cc", 0.0001, b"1"), (b"dd", None, None), (b"ee", -1.0, b"1")):
        field = b"" if told is None else b"tidegate-time-left-ms: %b\r\n" % told
        expected = b"POST /v2 HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n%b\r\n%b" % (HOST, len(body), field, body)
        assert b"".join(upstream_pieces(first.with_body(body), HOST, ALL, left_s)) == expected


def test_a_callers_own_time_left_does_not_go_on() -> None:
    assert sent([(b"Tidegate-Time-Left-Ms", b"1")]) == []


def test_the_next_request_of_a_connection_comes_from_where_the_first_came() -> None:
    first = HttpRequest(b"POST", b"/v2", [], b"a", peer_is_local=True, takes_chunks=False)
    second = first.with_body(b"b")
    assert (second.peer_is_local, second.takes_chunks, second.body) == (True, False, b"b")


@pytest.mark.parametrize("name", [b"Transfer-Encoding", b"transfer-encoding"])
def test_only_the_framing_goes_from_a_head_for_a_client_that_reads_to_the_end(name: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nA: b\r\n" + name + b": chunked\r\nC: d\r\n\r\n"
    assert without_chunks(head) == b"HTTP/1.1 200 OK\r\nA: b\r\nC: d\r\n\r\n"


def test_no_content_has_neither_a_body_nor_a_length() -> None:
    answer = no_content([(b"Allow", b"GET")])
    assert (answer.status, answer.head, answer.body) == (204, b"HTTP/1.1 204 No Content\r\nAllow: GET\r\n\r\n", b"")


@pytest.mark.parametrize(("headers", "length"), [([], 0), ([(b"Content-Length", b"7")], 7)])
def test_a_head_says_how_long_its_body_will_be(headers: Headers, length: int) -> None:
    assert HttpRequest(b"POST", b"/v2", headers).content_length == length
