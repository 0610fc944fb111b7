"""A proxy as most people write one: a Starlette endpoint and aiohttp's client, under uvicorn with uvloop and httptools."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import aiohttp
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perf.peers import arguments

HOP_BY_HOP = frozenset(("connection", "content-length", "host", "keep-alive", "transfer-encoding"))
_METHODS = ["GET", "POST"]


def make_app(upstream: str) -> Starlette:
    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        connector = aiohttp.TCPConnector(limit=256, keepalive_timeout=75)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False, skip_auto_headers=("Accept-Encoding",)) as session:
            app.state.session = session
            yield

    async def proxy(request: Request) -> Response:
        headers = {name: value for name, value in request.headers.items() if name not in HOP_BY_HOP}
        url, body = f"http://{upstream}{request.url.path}", await request.body()
        async with request.app.state.session.request(request.method, url, data=body, headers=headers) as answer:
            kept = {name: value for name, value in answer.headers.items() if name.lower() not in HOP_BY_HOP}
            return Response(await answer.read(), answer.status, kept)

    return Starlette(routes=[Route("/{path:path}", proxy, methods=_METHODS)], lifespan=lifespan)


if __name__ == "__main__":
    options = arguments()
    uvicorn.run(make_app(options.upstream), port=options.port, loop="uvloop", http="httptools", access_log=False, log_level="warning")
