"""A FastAPI gateway that hands each request to a model server over httpx: two services, as soon as there is more than one model."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import httpx
import uvicorn
from fastapi import FastAPI

from perf.peers import arguments
from perf.peers.naive.bodies import Embeddings, Texts


def make_app(upstream: str) -> FastAPI:
    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with httpx.AsyncClient(base_url=f"http://{upstream}", timeout=120.0, trust_env=False) as client:
            app.state.client = client
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/embed")
    async def embed(body: Texts) -> Embeddings:
        answer = await app.state.client.post("/embed", json=body.model_dump())
        answer.raise_for_status()
        return Embeddings(**answer.json())

    return app


if __name__ == "__main__":
    options = arguments()
    uvicorn.run(make_app(options.upstream), port=options.port, log_level="warning")
