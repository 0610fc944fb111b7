"""Asks the route for greetings, one after the other, until all of the last answers are of one model."""

import http.client
import json
import time

LAST = 300
PATIENCE_S = 60.0


def main() -> None:
    connection = http.client.HTTPConnection("localhost:8000")
    models, errors, asked, ends_s = [], [], 0, time.monotonic() + PATIENCE_S
    while time.monotonic() < ends_s and (asked < 3 * LAST or len(set(models[-LAST:])) > 1):
        asked += 1
        text = {"inputs": [{"name": "NAME", "shape": [1, 1], "datatype": "BYTES", "data": [f"caller {asked}"]}]}
        connection.request("POST", "/v2/models/greeter/infer", json.dumps(text))
        answer = connection.getresponse()
        told = json.load(answer)
        if answer.status != 200:
            errors.append(told.get("error"))
        models.append(told.get("model_name"))
        time.sleep(0.004)
    if errors:
        print(f"{len(errors)} of {asked} failed, the last with: {errors[-1]}")
    else:
        print(f"no request failed, and the last {LAST} were answered by {models[-1]}")


main()
