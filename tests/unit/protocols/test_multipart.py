"""Forms of `multipart/form-data`: what clients send, and what is none."""

from __future__ import annotations

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.protocols.multipart import FormPart, read_form

FIRST = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
FORM = (
    FIRST + b'--b\r\nContent-Disposition: form-data; name="file"; filename="a \\"b\\".jsonl"\r\nContent-Type: text/plain\r\n\r\n'
    b"\r\n--not\r\n\x00\xff\r\n--b--\r\n"
)


@pytest.mark.parametrize("boundary", [pytest.param("b", id="plain"), pytest.param('"b"', id="quoted")])
def test_fields_and_files(boundary: str) -> None:
    assert read_form(f"multipart/form-data; boundary={boundary}", FORM) == {
        "purpose": FormPart(None, b"batch"),
        "file": FormPart('a "b".jsonl', b"\r\n--not\r\n\x00\xff"),
    }


@pytest.mark.parametrize(
    ("content_type", "body", "said"),
    [
        pytest.param("application/json", FORM, "must be multipart/form-data", id="type"),
        pytest.param("multipart/form-data", FORM, "with a boundary", id="no-boundary"),
        pytest.param("multipart/form-data; boundary=c", FORM, "does not begin", id="another-boundary"),
        pytest.param("multipart/form-data; boundary=b", FORM[:-6], "ends within a field", id="cut"),
        pytest.param("multipart/form-data; boundary=b", b"--b\r\n\r\nx\r\n--b--", "Content-Disposition", id="no-head"),
        pytest.param("multipart/form-data; boundary=b", b"--b\r\nA: b\r\n\r\nx\r\n--b--", "Content-Disposition", id="no-name"),
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
        read_form(content_type, body)
