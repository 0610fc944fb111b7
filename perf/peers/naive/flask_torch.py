"""Flask + PyTorch + JSON: the model in a global, one endpoint, Flask's own server with a thread per request."""

from __future__ import annotations

import argparse
import logging

from flask import Flask, Response, jsonify, request

from perf.peers.naive.embedder import Embedder

app = Flask(__name__)
embedder = Embedder()


@app.post("/embed")
def embed() -> Response:
    return jsonify(embeddings=embedder.embed(request.get_json()["texts"]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line per request would only slow it down
    app.run(port=parser.parse_args().port, threaded=True)
