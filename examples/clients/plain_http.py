"""One inference over HTTP with Python's standard library: KServe's JSON."""

import json
import urllib.request

tensor = {"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["the tide waits for no one"]}
body = json.dumps({"inputs": [tensor], "outputs": [{"name": "EMBEDDING"}]}).encode()

with urllib.request.urlopen("http://localhost:8000/v2/models/text_embedding/infer", body, timeout=10) as answer:
    (output,) = json.load(answer)["outputs"]

print(output["shape"][1], "dimensions:", *(f"{value:.2f}" for value in output["data"][:3]))
