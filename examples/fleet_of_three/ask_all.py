"""Ask each of the eight models once: what is not loaded is loaded for that."""

import json
import urllib.request

tensor = {"name": "AMOUNT", "shape": [1, 1], "datatype": "FP64", "data": [200]}
body = json.dumps({"inputs": [tensor]}).encode()

for number in range(1, 9):
    with urllib.request.urlopen(f"http://localhost:8000/v2/models/store_{number}/infer", body, timeout=60) as answer:
        (price,) = json.load(answer)["outputs"][0]["data"]
    print(f"store_{number}: {price:.2f}")
