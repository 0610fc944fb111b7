"""Incremental parser of the form of `POST /v1/files`: its fields, and the file's content piece by piece.

Source: https://platform.openai.com/docs/api-reference/files/create. Called by `frontends/batches/http`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from control_plane.core.errors import InvalidRequest
from control_plane.protocols.http1 import HttpRequest
from control_plane.protocols.multipart import FormEvent, FormParser, PartBegan, PartContent

_MAX_PURPOSE_BYTES = 100


class Upload:
    """One form: `filename` reads up to the file, `content` the file and what follows it."""

    def __init__(self, request: HttpRequest) -> None:
        self._events = _events(request)
        self._field = ""
        self._purpose: bytes | None = None

    async def filename(self) -> str:
        """Return the file's name, before its content is read. Raises InvalidRequest: the form has no file, or is for
        another purpose.
        """
        async for event in self._events:
            if isinstance(event, PartBegan) and event.name == "file" and event.filename is not None:
                if self._purpose is not None:
                    self._require_purpose()
                return event.filename
            self._note(event)
        raise InvalidRequest("the form must have a file in its field 'file'", field="file")

    async def content(self) -> AsyncIterator[bytes]:
        """Yield the file's content. Raises InvalidRequest, at the latest at the end of the form: it is none, or does not
        say what the file is for.
        """
        is_of_file = True
        async for event in self._events:
            if is_of_file and isinstance(event, PartContent):
                yield event.data
            else:
                is_of_file = False
                self._note(event)
        self._require_purpose()

    def _note(self, event: FormEvent) -> None:
        """Note the fields besides the file; of those that are not known nothing is kept."""
        if isinstance(event, PartBegan):
            self._field = event.name
            if event.name == "purpose":
                self._purpose = b""
        elif self._field == "purpose" and self._purpose is not None:
            self._purpose = (self._purpose + event.data)[:_MAX_PURPOSE_BYTES]

    def _require_purpose(self) -> None:
        if self._purpose is None:
            raise InvalidRequest("the form must have a field 'purpose', which is 'batch'", field="purpose")
        if self._purpose != b"batch":
            said = self._purpose.decode("utf-8", "replace")[:50]
            raise InvalidRequest(f"purpose must be 'batch', which is what files are for here; got {said!r}", field="purpose")


async def _events(request: HttpRequest) -> AsyncIterator[FormEvent]:
    form = FormParser(request.text_header(b"content-type") or "")
    for event in form.feed(request.body):
        yield event
    while request.stream is not None and (piece := await request.stream.receive()) is not None:
        for event in form.feed(piece):
            yield event
    form.finish()
