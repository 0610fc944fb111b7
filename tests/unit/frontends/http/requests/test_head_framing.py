"""What the fields of a head say of its body and of the host."""

from __future__ import annotations

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.frontends.http.requests.head_framing import Framing, framing_of


@pytest.mark.parametrize(
    ("field", "framing"),
    [
        pytest.param((b"Content-Length", b"17"), Framing(body_bytes=17), id="length"),
        pytest.param((b"TRANSFER-ENCODING", b"Chunked"), Framing(is_chunked=True), id="chunked"),
        pytest.param((b"Expect", b"100-Continue"), Framing(wants_continue=True), id="continue"),
        pytest.param((b"expect", b"something else"), Framing(), id="unknown expectation"),
        pytest.param((b"host", b"a:1"), Framing(host=b"a:1"), id="host"),
        pytest.param((b"Sec-Fetch-Site", b"cross-site"), Framing(fetch_site=b"cross-site"), id="site"),
        pytest.param((b"x-host", b"a"), Framing(), id="another field"),
    ],
)
def test_field(field: tuple[bytes, bytes], framing: Framing) -> None:
    assert framing_of([(b"accept", b"*/*"), field]) == framing


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        pytest.param([(b"Host", b"a"), (b"host", b"a")], "host occurs 2 times", id="two hosts"),
        pytest.param([(b"Transfer-Encoding", b"gzip, chunked")], "'gzip, chunked' is not supported", id="another coding"),
    ],
)
def test_refused(headers: list[tuple[bytes, bytes]], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        framing_of(headers)
