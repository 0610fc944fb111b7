"""FastAPI + PyTorch + JSON: the model in a global, one plain `def` endpoint, which FastAPI runs in its pool of threads.

With `--pad-to 512` every text is padded to so many tokens (`padding="max_length"`), as in many examples.
"""

from __future__ import annotations

import argparse

import uvicorn
from fastapi import FastAPI

from perf.peers.naive.bodies import Embeddings, Texts
from perf.peers.naive.embedder import Embedder


def make_app(embedder: Embedder) -> FastAPI:
    app = FastAPI()

    @app.post("/embed")
    def embed(body: Texts) -> Embeddings:
        return Embeddings(embeddings=embedder.embed(body.texts))

    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pad-to", type=int)
    options = parser.parse_args()
    embedder = Embedder(padding="max_length", max_length=options.pad_to) if options.pad_to else Embedder()
    uvicorn.run(make_app(embedder), port=options.port, log_level="warning")
