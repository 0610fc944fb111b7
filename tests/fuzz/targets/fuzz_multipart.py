"""Forms of multipart/form-data: slices change nothing, and no more is given out than came in."""

from __future__ import annotations

from collections.abc import Iterable

from tests.fuzz.harness import fuzz, instrumented, slices

with instrumented():
    from control_plane.core.errors import InvalidRequest
    from control_plane.protocols.multipart import FormParser, PartBegan

Fields = list[tuple[str, str | None, bytes]]


def check(data: bytes) -> None:
    whole, sliced = read([data]), read(slices(data))
    assert whole == sliced
    assert whole is None or sum(len(content) for _, _, content in whole) <= len(data)


def read(pieces: Iterable[bytes]) -> Fields | None:
    """The fields of a form whose boundary is `b`; None: it is refused."""
    parser, fields = FormParser("multipart/form-data; boundary=b"), Fields()
    try:
        for piece in pieces:
            for event in parser.feed(piece):
                if isinstance(event, PartBegan):
                    fields.append((event.name, event.filename, b""))
                else:
                    name, filename, content = fields[-1]
                    fields[-1] = name, filename, content + event.data
        parser.finish()
    except InvalidRequest:
        return None
    return fields


if __name__ == "__main__":
    fuzz(check)
