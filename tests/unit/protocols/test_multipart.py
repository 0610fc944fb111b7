"""Forms of `multipart/form-data`: what clients send in whatever pieces, and what is none."""

from __future__ import annotations

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.protocols.multipart import FormParser, PartBegan

FIRST = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FORM = (
    FIRST + b'--b\r\nContent-Disposition: form-data; name="file"; filename="a \\"b\\".jsonl"\r\nContent-Type: text/plain\r\n\r\n'
    b"\r\n--not\r\n\x00\xff\r\n--b--\r\nafter"
)
FIELDS = {"purpose": (None, b"batch"), "file": ('a "b".jsonl', b"\r\n--not\r\n\x00\xff")}


def read(content_type: str, *pieces: bytes) -> dict[str, tuple[str | None, bytes]]:
    parser, fields, name = FormParser(content_type), dict[str, tuple[str | None, bytes]](), ""
    for piece in pieces:
        for event in parser.feed(piece):
            if isinstance(event, PartBegan):
                name = event.name
                fields[name] = event.filename, b""
            else:
                filename, content = fields[name]
                fields[name] = filename, content + event.data
    parser.finish()
    return fields


@pytest.mark.parametrize("boundary", [pytest.param("b", id="plain"), pytest.param('"b"', id="quoted")])
def test_fields_and_files(boundary: str) -> None:
    assert read(f"multipart/form-data; boundary={boundary}", FORM) == FIELDS


def test_pieces_change_nothing_wherever_they_end() -> None:
    for at in range(len(FORM)):
        assert read("multipart/form-data; boundary=b", FORM[:at], FORM[at:]) == FIELDS
    assert read("multipart/form-data; boundary=b", *(FORM[at : at + 1] for at in range(len(FORM)))) == FIELDS


@pytest.mark.parametrize("line_ends", [b"\r\n\r\n", b"\r\n\r\n\r\n"])
def test_a_field_may_be_empty(line_ends: bytes) -> None:
    empty = b'--b\r\nContent-Disposition: form-data; name="a"' + line_ends + b"--b--"
    assert read("multipart/form-data; boundary=b", empty) == {"a": (None, b"")}


def test_no_more_is_kept_than_may_begin_a_boundary() -> None:
    parser = FormParser("multipart/form-data; boundary=b")
    list(parser.feed(FORM[: FORM.index(b"\r\n--not")]))
    for _ in range(10):
        assert sum(len(event.data) for event in parser.feed(b"x" * 1000) if not isinstance(event, PartBegan)) > 980


@pytest.mark.parametrize(
    ("content_type", "body", "said"),
    [
        pytest.param("application/json", FORM, "must be multipart/form-data", id="type"),
        pytest.param("multipart/form-data", FORM, "with a boundary", id="no-boundary"),
        pytest.param("multipart/form-data; boundary=c", FORM, "does not begin", id="another-boundary"),
        pytest.param("multipart/form-data; boundary=b", b"", "does not begin", id="nothing"),
        pytest.param("multipart/form-data; boundary=b", FORM[: FORM.index(b"--b--")], "ends within a field", id="cut"),
        pytest.param("multipart/form-data; boundary=b", FIRST, "ends within a field", id="cut-in-the-first"),
        pytest.param("multipart/form-data; boundary=b", b"--b\r\n\r\nx\r\n--b--", "Content-Disposition", id="no-head"),
        pytest.param("multipart/form-data; boundary=b", b"--b\r\nA: b\r\n\r\nx\r\n--b--", "Content-Disposition", id="no-name"),
        pytest.param("multipart/form-data; boundary=b", b"--b\r\n" + b"A: b\r\n" * 1000, "within 4096 bytes", id="long-head"),
        pytest.param("multipart/form-data; boundary=b", FIRST + FORM, "twice", id="twice"),
        pytest.param(
            "multipart/form-data; boundary=b",
            b"".join(b'--b\r\nContent-Disposition: form-data; name="%d"\r\n\r\n\r\n' % number for number in range(21)) + b"--b--",
            "more than 20",
            id="many",
        ),
    ],
)
def test_what_is_no_form_is_refused(content_type: str, body: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        read(content_type, body)
