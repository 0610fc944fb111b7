"""Two gateways, one with workers, before three Tritons with nodes: cached answers are right whatever is loaded, frozen or killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import tritonclient.http

from control_plane.admin.client import AdminClient
from deploy.images.is_alive import main as is_alive
from tests.e2e import tidegate as servers
from tests.e2e.fleet.test_servers_file import write
from tests.e2e.fleets import answer_of, ask, loaded, shown, write_models
from tests.e2e.nodes import RunningNode, secret_file, start_node
from tests.e2e.raw_http import status
from tests.e2e.tidegate import COMPLETE, LONG_S, Tidegate, descendants, living, wait_for
from tests.redis_server import redis_server

MODELS = ("m0", "m1", "m2")


@dataclass
class Site:
    nodes: list[RunningNode]
    models: Path
    listed: Path

    def list_nodes(self, *numbers: int) -> None:
        """Have these nodes be the fleet's servers."""
        write(self.listed, *({"url": self.nodes[number].url, "name": f"triton-{number}"} for number in numbers))

    gateways: list[Tidegate] = field(default_factory=list)

    @property
    def one(self) -> Tidegate:
        return self.gateways[0]

    def change(self, model: str, more: int) -> None:
        """Have it answer with so much more, once it is loaded anew."""
        code = self.models / model / "1/model.py"
        old = code.read_text().splitlines()
        code.write_text("\n".join(f"        self.more = {more}" if "self.more =" in line else line for line in old) + "\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("site")
    models = root / "models"
    write_models(models, MODELS)
    for model in MODELS:
        with (models / model / "config.pbtxt").open("a") as config:
            config.write("response_cache { enable: true }\n")
        code = models / model / "1/model.py"
        text = code.read_text().replace("        self.name =", "        self.more = 0\n        self.name =")
        code.write_text(text.replace("int(self.name[1:])", "int(self.name[1:]) + self.more"))
    with ExitStack() as ends, redis_server(root) as redis, ThreadPoolExecutor(2) as threads:
        flags = ("--model-repository", str(models), COMPLETE)
        starts = [threads.submit(start_node, root / f"node-{number}/state", *flags) for number in range(3)]
        nodes = [each.result() for each in starts]
        for node in nodes:
            ends.callback(lambda node=node: node.tidegate.kill())
        site = Site(nodes, models, root / "servers.yaml")
        site.list_nodes(0, 1, 2)
        where = ("--servers-file", str(site.listed), "--node-secret-file", str(secret_file(root)))
        flags = (*where, "--state-url", redis.url, "--memory-budget", "120MiB")
        started = [
            threads.submit(servers.start, root / "one", *flags),
            threads.submit(servers.start, root / "other", *flags, "--workers", "2"),
        ]
        site.gateways += [each.result() for each in started]
        for gateway in site.gateways:
            ends.callback(gateway.kill)
        yield site


def is_hit(raw: bytes) -> bool:
    assert status(raw) == 200, raw
    return b"tidegate-cache: hit" in raw.lower()


def hits(gateway: Tidegate, model: str) -> bool:
    """Whether each process of the gateway has answered from the cache: connections go to any of them."""
    return all(is_hit(ask(gateway, model)) for _ in range(8))


def has_no_hits(gateway: Tidegate, model: str) -> bool:
    """Whether no process of the gateway has answered from the cache, as far as eight connections tell."""
    return not any(is_hit(ask(gateway, model)) for _ in range(8))


def test_no_answer_is_older_than_the_last_load_whoever_loads(site: Site) -> None:
    for gateway in site.gateways:
        assert answer_of(ask(gateway, "m0")) == 1
        wait_for(lambda gateway=gateway: hits(gateway, "m0"), what="hits")
    now, done, failures = [0, 0], threading.Event(), list[BaseException]()
    """What the last load that has ended and the newest that has begun have made of it."""

    def keep_asking(gateway: Tidegate) -> None:
        try:
            while not done.wait(0.02):
                least = now[0]
                found = answer_of(ask(gateway, "m0"))
                assert 1 + least <= found <= 1 + now[1], "an answer of a model that was replaced before it was asked"
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=keep_asking, args=(gateway,)) for gateway in site.gateways]
    for thread in threads:
        thread.start()
    try:
        for number in range(1, 5):
            now[1] = number
            site.change("m0", number)
            AdminClient(site.gateways[number % 2].endpoints["admin"], timeout_s=LONG_S).load("m0")
            now[0] = number
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failures, failures
    for gateway in site.gateways:
        wait_for(lambda gateway=gateway: hits(gateway, "m0"), what="hits again")


def test_the_index_is_told_by_every_process(site: Site) -> None:
    for gateway in site.gateways:
        client = tritonclient.http.InferenceServerClient(gateway.address("http"), network_timeout=LONG_S)
        assert {line["name"] for line in client.get_model_repository_index()} == set(MODELS)


def test_a_frozen_node_costs_only_its_hits_and_they_come_back(site: Site) -> None:
    for gateway in site.gateways:
        wait_for(lambda gateway=gateway: hits(gateway, "m0"), what="hits")
    holder = next(int(name[-1]) for name, models in loaded(site.one).items() if "m0" in models)
    tidegate = site.nodes[holder].tidegate
    agent, heartbeat = tidegate.process, f"--heartbeat={tidegate.state_dir}/heartbeat"
    live = [heartbeat, f"--url={tidegate.endpoints['triton']}/v2/health/live"]
    assert is_alive(live) == 0
    agent.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: is_alive([*live, "--at-most-s=3"]) == 1, what="its probe to notice it, beside a Triton that is well")
        for gateway in site.gateways:
            # Of each of its processes, which notice it one by one; from then on nobody knows what the node has loaded meanwhile.
            wait_for(lambda gateway=gateway: has_no_hits(gateway, "m0"), what="answers of Triton", timeout_s=20.0)
        for gateway in site.gateways:
            assert has_no_hits(gateway, "m0")
    finally:
        agent.send_signal(signal.SIGCONT)
    for gateway in site.gateways:
        wait_for(lambda gateway=gateway: hits(gateway, "m0"), what="hits again")
    wait_for(lambda: is_alive(live) == 0, what="a probe that is content")


def test_a_killed_node_leaves_no_process_and_is_used_again_once_it_is_back(site: Site) -> None:
    AdminClient(site.one.endpoints["admin"], timeout_s=LONG_S).load("m1")
    killed = next(int(name[-1]) for name, models in loaded(site.one).items() if "m1" in models)
    node = site.nodes[killed].tidegate.process
    below = descendants(node.pid)
    assert len(below) >= 2, "Triton's guardian and Triton"
    os.kill(node.pid, signal.SIGKILL)
    node.wait()
    wait_for(lambda: not living(below), what="the end of its Triton")
    for gateway in site.gateways:
        wait_for(lambda gateway=gateway: status(ask(gateway, "m1")) == 200, what="the other server's answers")
    site.nodes[killed].restart()
    name = f"triton-{killed}"
    for gateway in site.gateways:
        wait_for(lambda gateway=gateway: is_up(gateway, name), what="the server")
    for model in MODELS:
        assert status(ask(site.one, model)) == 200


def is_up(gateway: Tidegate, name: str) -> bool:
    return next(bool(server["is_up"]) for server in shown(gateway)["servers"] if server["name"] == name)
