"""Asks the route for greetings, one after the other, until all of the last answers are of one model."""

import http.client
import json
import time

LAST = 300
PATIENCE_S = 60.0


def main() -> None:
    connection = http.client.HTTPConnection("localhost:8000")
    models, failed, asked, ends_s = [], 0, 0, time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_s and (asked < 3 * LAST or len(set(models[-LAST:])) > 1):
        asked += 1
        text = {"inputs": [{"name": "NAME", "shape": [1, 1], "datatype": "BYTES", "data": [f"caller {asked}"]}]}
        connection.request("POST", "/v2/models/greeter/infer", json.dumps(text))
        answer = connection.getresponse()
        failed += answer.status != 200
        models.append(json.load(answer).get("model_name"))
        time.sleep(0.004)
    if failed:
        print(f"{failed} of {asked} failed")
    else:
        print(f"no request failed, and the last {LAST} were answered by {models[-1]}")


main()
