"""A fleet of two Tritons that the gateway did not start: the second joins and the first leaves under load, and no request fails."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.e2e import tidegate as servers
from tests.e2e.fleets import answer_of, ask, loaded, write_models
from tests.e2e.nodes import ATTACHED, Host, host_on
from tests.e2e.raw_http import exchange, status
from tests.e2e.tidegate import Tidegate, run_cli, wait_for

MODELS = ("m0", "m1", "m2")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    write_models(root, MODELS)
    return root


@pytest.fixture(scope="module")
def hosts(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Host]]:
    with ExitStack() as ends:
        yield [ends.enter_context(host_on(ATTACHED, tmp_path_factory.mktemp(name), repository)) for name in ("first", "second")]


def write(path: Path, *entries: dict[str, object]) -> None:
    """In one step."""
    new = path.with_name("new.yaml")
    new.write_text(json.dumps(entries))
    new.replace(path)


@contextmanager
def asking(gateway: Tidegate, models: Sequence[str]) -> Iterator[dict[str, int]]:
    """Each of them all the time, with the count of answers; each must be right, and the gateway ready."""
    done, failures, answers = threading.Event(), list[BaseException](), dict.fromkeys(models, 0)

    def keep_asking(model: str) -> None:
        try:
            while not done.wait(0.05):
                assert answer_of(ask(gateway, model)) == 1 + int(model[1:])
                answers[model] += 1
                assert status(exchange(gateway.port("http"), "GET", "/v2/health/ready")) == 200
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=keep_asking, args=(model,)) for model in models]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failures, failures


def require_that_it_says_what_it_lacks(gateway: Tidegate, server: str) -> None:
    """Before a Triton without a node."""
    lacks = f"{server}: no node, so no cached responses, tiers, latency tables or measured sizes"
    assert lacks in " ".join(run_cli("fleet", "--state-dir", str(gateway.state_dir)).stdout.split())
    assert lacks in run_cli("doctor", "--state-dir", str(gateway.state_dir), "-o", "json").stdout
    assert "has no node: no cached responses" in gateway.said()


def test_one_joins_and_one_leaves_under_load(hosts: list[Host], tmp_path: Path) -> None:
    listed = tmp_path / "servers.yaml"
    first = {"url": hosts[0].url, "name": "first"}
    second = {"url": hosts[1].url, "name": "second", "memory_budget": "100MiB", "labels": {"zone": "b"}}
    write(listed, first)
    gateway = servers.start(tmp_path / "gateway", "--servers-file", str(listed), "--memory-budget", "50MiB", *hosts[0].flags)
    try:
        with asking(gateway, ("m0", "m1")) as answers:
            wait_for(lambda: all(answers.values()), what="answers of both")
            assert loaded(gateway) == {"first": {"m0", "m1"}}

            write(listed, first, second)
            wait_for(lambda: "second" in loaded(gateway), what="the second server")
            assert answer_of(ask(gateway, "m2")) == 3
            assert "m2" in loaded(gateway)["second"]

            write(listed, second)
            wait_for(lambda: "first" not in loaded(gateway), what="the first server's end")
            assert hosts[0].loaded() == set()
            before = dict(answers)
            wait_for(lambda: all(answers[model] > before[model] + 3 for model in answers), what="answers of the second server")
            assert loaded(gateway) == {"second": set(MODELS)}

            listed.write_text("- url: nowhere\n")
            wait_for(lambda: "the servers stay as they are" in gateway.said(), what="a word in the log")
            assert "expected http[s]://HOST:HTTP_PORT" in gateway.said().replace("\n", "")
            assert loaded(gateway).keys() == {"second"}
            require_that_it_says_what_it_lacks(gateway, "second")
    finally:
        assert gateway.stop() == 0, gateway.said()
    assert hosts[1].loaded() == set(MODELS), "who stops leaves what others run as it is"
