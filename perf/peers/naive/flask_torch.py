"""Flask + PyTorch + JSON: the model in a global, one endpoint, Flask's own server with a thread per request."""

from __future__ import annotations

import argparse
import logging

from flask import Flask, Response, jsonify, request

from perf.peers.naive.embedder import Embedder


def make_app(embedder: Embedder) -> Flask:
    app = Flask(__name__)

    @app.post("/embed")
    def embed() -> Response:
        return jsonify(embeddings=embedder.embed(request.get_json()["texts"]))

    return app


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line per request would only slow it down
    make_app(Embedder(device=options.device)).run(port=options.port, threaded=True)
