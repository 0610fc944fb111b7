"""The paths of OpenAI's files and batches on the HTTP data port: `/v1/files`, `/v1/batches` and what is below them.

Source: https://platform.openai.com/docs/api-reference/files and /batch. Called by `frontends/openai`, which has
authorised the caller.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs

import orjson

from control_plane.batches.batches import Batches
from control_plane.batches.domain.batch import EMBEDDINGS, StoredFile
from control_plane.batches.files import Files
from control_plane.concurrency.run_steps import run_in_steps
from control_plane.core.action import Action
from control_plane.core.errors import InvalidRequest
from control_plane.core.principal import Principal
from control_plane.frontends.batches.upload import Upload
from control_plane.frontends.batches.views import batch_view, file_view, page
from control_plane.frontends.common.lists import list_steps
from control_plane.frontends.jobs.webhook_field import Webhooks, webhook_of
from control_plane.jobs.ports import BlobReader
from control_plane.protocols.http1 import NOT_KEPT, HttpAnswer, HttpRequest, make_answer
from control_plane.protocols.kserve.routes import V2Route
from control_plane.triton.ports import HttpStream

_BELOW = re.compile(rb"/v1/(?:files|batches)/([^/?]+)(/content|/cancel)?")
_FILES_LISTED, _BATCHES_LISTED = 10_000, 100
_WEBHOOK = b"tidegate-batch-webhook"
_MAX_METADATA, _MAX_KEY_CHARS, _MAX_VALUE_CHARS = 16, 64, 512


class BatchesHttp:
    """The application behind the paths of files and batches: `frontends/openai.BatchesApplication`."""

    def __init__(self, files: Files, batches: Batches, *, webhooks: Webhooks | None = None) -> None:
        """Without `webhooks` no batch may have one."""
        self._files, self._batches, self._webhooks = files, batches, webhooks

    async def answer(self, request: HttpRequest, route: V2Route, principal: Principal) -> HttpAnswer | HttpStream:
        """Answer one request. Raises ControlPlaneError."""
        found = _BELOW.search(request.target)
        own_id, below = (found.group(1).decode("latin-1"), found.group(2)) if found is not None else ("", None)
        if route.action is Action.FILES:
            return await self._answer_file(request, principal, own_id, is_content=below is not None)
        if request.method == b"POST":
            if own_id:
                batch = await self._batches.cancel(principal, own_id)
            else:
                webhook = webhook_of(request, _WEBHOOK, principal, self._webhooks)
                wanted = _wanted_batch(request)
                batch = await self._batches.create(principal, *wanted, webhook="" if webhook is None else webhook.url)
            return _json(batch_view(batch, await self._batches.progress(batch)))
        if own_id:
            batch = await self._batches.get(principal, own_id)
            return _json(batch_view(batch, await self._batches.progress(batch)))
        return await self._list_batches(request, principal)

    async def _answer_file(self, request: HttpRequest, principal: Principal, file_id: str, *, is_content: bool) -> HttpAnswer | HttpStream:
        match request.method:
            case b"POST":
                return _json(file_view(await self._upload(request, principal)))
            case b"DELETE":
                await self._files.delete(principal, file_id)
                return _json({"id": file_id, "object": "file", "deleted": True})
            case _ if is_content:
                return _Content(await self._files.content(principal, file_id))
            case _ if file_id:
                return _json(file_view(await self._files.get(principal, file_id)))
            case _:
                return await self._list_files(request, principal)

    async def _upload(self, request: HttpRequest, principal: Principal) -> StoredFile:
        upload = Upload(request)
        return await self._files.add(principal, filename=await upload.filename(), content=upload.content())

    async def _list_files(self, request: HttpRequest, principal: Principal) -> HttpAnswer:
        query = _query(request, ("after", "limit", "order", "purpose"))
        limit, after = _limit(query, most=_FILES_LISTED, default=_FILES_LISTED), query.get("after", "")
        found = [file for file in await self._files.files_of(principal) if query.get("purpose", file.purpose) == file.purpose]
        if query.get("order", "desc") not in ("asc", "desc"):
            raise InvalidRequest("order must be 'asc' or 'desc'", field="order")
        if query.get("order") == "asc":
            found.reverse()
        if after:
            place = next((at for at, file in enumerate(found, 1) if file.id == after), None)
            if place is None:
                raise InvalidRequest("after must be the id of a file, the last one of the page before", field="after")
            found = found[place:]
        shown = found[:limit]
        views = await run_in_steps(list_steps(shown, file_view))
        return _json(page(views, [file.id for file in shown], has_more=len(found) > limit))

    async def _list_batches(self, request: HttpRequest, principal: Principal) -> HttpAnswer:
        query = _query(request, ("after", "limit"))
        limit = _limit(query, most=_BATCHES_LISTED, default=20)
        found = await self._batches.batches_of(principal, after=query.get("after", ""), limit=limit + 1)
        shown = found[:limit]
        views = [batch_view(batch, await self._batches.progress(batch)) for batch in shown]
        return _json(page(views, [batch.id for batch in shown], has_more=len(found) > limit))


class _Content:
    """A file's content as a streamed answer: `triton/ports.HttpStream`."""

    status = 200
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nTransfer-Encoding: chunked\r\n%b: %b\r\n\r\n" % NOT_KEPT

    def __init__(self, reader: BlobReader) -> None:
        self._reader = reader

    async def receive(self) -> bytes | None:
        return await self._reader.receive()

    def close(self) -> None:
        self._reader.close()


def _wanted_batch(request: HttpRequest) -> tuple[str, dict[str, str] | None]:
    """Return the input file and the metadata that a caller gives for a new batch. Raises InvalidRequest."""
    for name in {name.lower() for name, _ in request.headers} - {_WEBHOOK}:
        if name.startswith((b"tidegate-job-", b"tidegate-batch-")):
            raise InvalidRequest(f"there is no header field {name.decode('latin-1')[:100]!r} for batches; there is {_WEBHOOK.decode()}")
    try:
        fields: Any = orjson.loads(request.body)
    except orjson.JSONDecodeError as exc:
        raise InvalidRequest(f"the body is not valid JSON: {exc}") from exc
    if type(fields) is not dict:
        raise InvalidRequest("the body must be a JSON object")
    if fields.get("endpoint") != EMBEDDINGS:
        raise InvalidRequest(f"endpoint must be {EMBEDDINGS!r}, which is what batches are for here", field="endpoint")
    if fields.get("completion_window") != "24h":
        raise InvalidRequest("completion_window must be '24h', the only one there is", field="completion_window")
    file_id, metadata = fields.get("input_file_id"), fields.get("metadata")
    if type(file_id) is not str:
        raise InvalidRequest("input_file_id must be the id of an uploaded file", field="input_file_id")
    if metadata is not None and not _is_metadata(metadata):
        most = f"{_MAX_METADATA} pairs of strings, keys of up to {_MAX_KEY_CHARS} and values of up to {_MAX_VALUE_CHARS} characters"
        raise InvalidRequest(f"metadata must be an object of at most {most}", field="metadata")
    return file_id, metadata


def _is_metadata(value: Any) -> bool:
    if type(value) is not dict or len(value) > _MAX_METADATA:
        return False
    return all(len(key) <= _MAX_KEY_CHARS and type(text) is str and len(text) <= _MAX_VALUE_CHARS for key, text in value.items())


def _query(request: HttpRequest, known: tuple[str, ...]) -> dict[str, str]:
    query = parse_qs(request.target.partition(b"?")[2].decode("latin-1"), keep_blank_values=True)
    if unknown := query.keys() - set(known):
        raise InvalidRequest(f"unknown parameter {min(unknown)[:50]!r}; there are {', '.join(known)}")
    return {name: values[-1] for name, values in query.items()}


def _limit(query: dict[str, str], *, most: int, default: int) -> int:
    limit = query.get("limit", str(default))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 5 and 1 <= int(limit) <= most):
        raise InvalidRequest(f"limit must be a number from 1 to {most}", field="limit")
    return int(limit)


def _json(fields: dict[str, Any]) -> HttpAnswer:
    return make_answer(200, orjson.dumps(fields), headers=[NOT_KEPT])
