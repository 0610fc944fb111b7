"""One request through the gateway that was just deployed, as a client makes it: with a key, over its Service.

The key is made in the gateway's pod, is good for ten minutes, and is never an argument of a command.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

from deploy.errors import DeployError
from deploy.kubectl import Kubectl

_TIMEOUT_S = 60.0
"""For one request; the first one for a model waits until it is loaded."""

MAKE_KEY = (
    *("tidegate", "keys", "create", "--tenant", "smoke", "--scope", "infer:*", "--scope", "repository"),
    *("--expires", "600s", "--description", "make deploy", "--offline"),
)
"""Command that makes the key, in the gateway's container."""

_ZEROS: dict[str, Any] = {"BOOL": False, "BYTES": ""}


@dataclass(frozen=True, slots=True)
class Smoke:
    """Smoke test's request, and its answer."""

    text: str


def send_one(kubectl: Kubectl, namespace: str, model: str = "") -> Smoke:
    """Send one request for `model`, or for the first model that is ready; without any, one for the list of models.

    Raises DeployError: the gateway did not answer it as it should.
    """
    key = kubectl.ask("exec", f"--namespace={namespace}", "deployment/gateway", "--container=gateway", "--", *MAKE_KEY).strip()
    with kubectl.forwarding(namespace, "service/gateway", 8000) as port:
        return _send(lambda method, path, body=None: _ask(port, key, method, path, body), model)


def _send(ask: Callable[..., Any], model: str) -> Smoke:
    ask("GET", "/v2/health/ready")
    listed = ask("POST", "/v2/repository/index", {})
    ready = [each["name"] for each in listed if each.get("state") == "READY"]
    name = model or next(iter(ready), "")
    if not name:
        return Smoke(f"the gateway lists {len(listed)} models of its Tritons, none of which is loaded; say MODEL= to ask one")
    metadata = ask("GET", f"/v2/models/{name}")
    answer = ask("POST", f"/v2/models/{name}/infer", {"inputs": [_zeros(each) for each in metadata["inputs"]]})
    return Smoke(f"{name} answered with {', '.join(each['name'] for each in answer['outputs'])}")


def _zeros(tensor: dict[str, Any]) -> dict[str, Any]:
    """An input of zeros; a dimension that may be of any size has one element."""
    shape = [max(1, int(size)) for size in tensor["shape"]]
    zero = _ZEROS.get(tensor["datatype"], 0)
    return {"name": tensor["name"], "datatype": tensor["datatype"], "shape": shape, "data": [zero] * prod(shape)}


def _ask(port: int, key: str, method: str, path: str, body: object) -> Any:
    """Ask the gateway through the forwarded port, and return the JSON of its answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    try:
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        said = answer.read()
    except (OSError, http.client.HTTPException) as exc:
        raise DeployError(f"{method} {path}: {type(exc).__name__}: {exc}", next_step="`kubectl logs deployment/gateway`") from None
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise DeployError(
            f"{method} {path} was answered with {answer.status}: {said[:500].decode(errors='replace')}",
            next_step="`kubectl logs deployment/gateway`, and `tidegate fleet` in its container",
        )
    return json.loads(said) if said else None
