"""A proxy on FastAPI and httpx, under uvicorn with uvloop and httptools."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import httpx
import uvicorn
from fastapi import FastAPI, Request, Response

from perf.peers import arguments
from perf.peers.starlette_aiohttp import HOP_BY_HOP


def make_app(upstream: str) -> FastAPI:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        limits = httpx.Limits(max_connections=256, max_keepalive_connections=256, keepalive_expiry=75)
        # By itself httpx asks for gzip, and hands on what it has decompressed under a header that says otherwise.
        plain = {"Accept-Encoding": "identity"}
        async with httpx.AsyncClient(base_url=f"http://{upstream}", limits=limits, timeout=30.0, trust_env=False, headers=plain) as client:
            app.state.client = client
            yield

    app = FastAPI(lifespan=lifespan)

    @app.api_route("/{path:path}", methods=["GET", "POST"])
    async def proxy(request: Request) -> Response:
        headers = {name: value for name, value in request.headers.items() if name not in HOP_BY_HOP}
        answer = await app.state.client.request(request.method, request.url.path, content=await request.body(), headers=headers)
        kept = {name: value for name, value in answer.headers.items() if name not in HOP_BY_HOP}
        return Response(answer.content, answer.status_code, kept)

    return app


if __name__ == "__main__":
    options = arguments()
    uvicorn.run(make_app(options.upstream), port=options.port, loop="uvloop", http="httptools", access_log=False, log_level="warning")
