"""The console's files over HTTP, with headers under which the page runs no code and asks no server but its own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException

_FOLDER = Path(__file__).parent / "static"
_PAGE = "index.html"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Cache-Control": "no-cache",  # kept, and asked for anew by its ETag: after an upgrade no page is of two versions
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    etag: str
    media_type: str


def add_console(app: FastAPI) -> None:
    """Add `/console` and the files below it. They hold no data, so they are served without a key."""

    async def page(request: Request) -> Response:
        return _answer(request, _PAGE)

    async def moved(request: Request) -> Response:
        # The page names its files relative to /console, so that a proxy may put all of it below a path of its own.
        return Response(status_code=308, headers={"Location": "../console", **_HEADERS})

    async def part(request: Request) -> Response:
        return _answer(request, request.path_params["name"])

    for path, handler in (("/console", page), ("/console/", moved), ("/console/{name}", part)):
        app.add_route(path, handler, methods=["GET"], include_in_schema=False)  # Starlette adds HEAD


def _answer(request: Request, name: str) -> Response:
    found = _files().get(name)
    if found is None:
        raise HTTPException(404)
    headers = {"ETag": found.etag, **_HEADERS}
    known = {each.strip().removeprefix("W/") for each in ",".join(request.headers.getlist("if-none-match")).split(",")}
    if found.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(found.content, media_type=found.media_type, headers=headers)


@cache
def _files() -> dict[str, _File]:
    """Read them at the first request: a gateway whose console nobody opens has nothing of them."""
    contents = {path.name: path.read_bytes() for path in _FOLDER.iterdir() if path.suffix in _TYPES}
    return {name: _File(content, f'"{sha256(content).hexdigest()[:32]}"', _TYPES[Path(name).suffix]) for name, content in contents.items()}
