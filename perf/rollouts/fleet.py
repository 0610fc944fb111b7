"""The fleet that rollouts are carried out on, and what its admin API says of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from control_plane.admin.client import AdminClient
from control_plane.core.errors import ControlPlaneError
from perf.chaos.sites.gateways import Gateway
from perf.rollouts import models
from perf.rollouts.assigned import KNOWN_AFTER_S, Period
from perf.rollouts.callers import PLAIN, SEQUENCE, USER

SERVERS = 2
_UNDER_WAY = ("shadow", "canary", "baking", "promoting")
_WAIT_S = 90.0
_LOOK_S = 0.05


class Fleet:
    """Gateway with a fleet that was started, as an administrator has it."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.client = AdminClient(gateway.admin_url, timeout_s=60.0)

    def address(self, protocol: str) -> str:
        return self.gateway.address(protocol)

    def begin(self, route: str, model: str, **how: Any) -> dict[str, Any]:
        """Begin a rollout. Raises ControlPlaneError."""
        begun: dict[str, Any] = self.client.ask("POST", "rollouts", route, body={"model": model, **how})
        return begun

    def rollout(self, route: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.ask("GET", "rollouts", route)
        return found

    def abort(self, route: str) -> None:
        self.client.ask("POST", "rollouts", route, "abort")

    def ended(self, route: str, *, within_s: float = _WAIT_S) -> dict[str, Any]:
        """The rollout once it has ended. Raises TimeoutError."""
        return self.until(route, lambda found: found["phase"] not in _UNDER_WAY, within_s=within_s)

    def until(self, route: str, is_so: Callable[[dict[str, Any]], bool], *, within_s: float = _WAIT_S) -> dict[str, Any]:
        ends_s = time.monotonic() + within_s
        while not is_so(found := self.rollout(route)):
            if time.monotonic() > ends_s:
                raise TimeoutError(f"the rollout of {route} goes on: {found['phase']} {found['step']}, {found['gates']}")
            time.sleep(_LOOK_S)
        return found

    def copied(self) -> int:
        """Requests that were copied to next models so far."""
        with urlopen(self.gateway.metrics, timeout=30.0) as answer:
            lines = answer.read().decode().splitlines()
        sent = ("agrees", "differs", "answered", "failed", "uncounted")
        return sum(
            int(float(line.split()[-1]))
            for line in lines
            if line.startswith("tidegate_copied_requests_total{") and line.split('result="')[1].split('"')[0] in sent
        )

    def forget(self, model: str) -> None:
        """Unload a model everywhere, and let it be loaded again: the next rollout finds none of what it has done."""
        with contextlib.suppress(ControlPlaneError):  # it was never loaded
            self.client.unload(model)
        with contextlib.suppress(ControlPlaneError):
            self.client.release(model)

    def point(self, route: str, model: str) -> None:
        """Give the route this model alone, whatever a rollout has made of it."""
        self.client.ask("PATCH", "routes", route, body={"model": model})

    def whole_again(self, model: str) -> None:
        """Have the model on as many servers as there are: a fleet takes back copies that are little used."""
        self.gateway.load_everywhere(model)
        ends_s = time.monotonic() + _WAIT_S
        while time.monotonic() < ends_s:
            shown = self.gateway.fleet()
            ready = [
                replica
                for server in shown["servers"]
                for replica in server["replicas"]
                if replica["model"] == model and replica["state"] == "READY"
            ]
            if len(ready) >= SERVERS and not any(server["is_ejected"] for server in shown["servers"]):
                return
            time.sleep(_LOOK_S)
        raise TimeoutError(f"{model} is not ready on all servers")


@contextmanager
def fleet(folder: Path) -> Iterator[Fleet]:
    """Two Tritons and two workers, with the routes and the good versions of both."""
    repository = models.write(folder / "models")
    stay = [part for name in (models.ONE, models.SEQUENCE_ONE) for part in ("--load", name)]
    flags = ("--servers", str(SERVERS), "--workers", "2", "--memory-budget", "250MiB", "--model-repository", str(repository), *stay)
    gateway = Gateway(folder / "state", *flags)
    gateway.start()
    try:
        made = Fleet(gateway)
        for name in (models.ONE, models.SEQUENCE_ONE):
            gateway.load_everywhere(name)
        made.client.ask("PUT", "routes", PLAIN, body={"model": models.ONE, "is_repeatable": True, "sticky": f"header:{USER}"})
        made.client.ask("PUT", "routes", SEQUENCE, body={"model": models.SEQUENCE_ONE})
        time.sleep(KNOWN_AFTER_S)
        yield made
    finally:
        gateway.stop()


def periods_of(rollout: Mapping[str, Any], *, now: str, since_s: float, until_s: float) -> list[Period]:
    """What was in force from `since_s`, when the route's model was `now`, until then: of the rollout, if it began meanwhile."""
    own = [event for event in rollout["events"] if event["at_s"] >= since_s]
    if not own:
        return [Period(since_s, until_s, "", now, now, 0)]
    stable, candidate = rollout["stable"], rollout["model"]
    made = [Period(since_s, own[0]["at_s"], "", stable, stable, 0)]
    for event, following in zip(own, [*own[1:], None], strict=True):
        to_s = until_s if following is None else following["at_s"]
        made.append(Period(event["at_s"], to_s, rollout["id"], stable, candidate, event["weight"]))
    return made
