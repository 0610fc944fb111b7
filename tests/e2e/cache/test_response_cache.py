"""The response cache with the real Triton: an answer from it is the one that the model would give now."""

from __future__ import annotations

import http.client
import math
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import tritonclient.grpc

from tests.e2e import tidegate as servers
from tests.e2e.cache.cached_probe import SIX, Client, write_models
from tests.e2e.conftest import Start
from tests.e2e.tidegate import COMPLETE, LONG_S, Tidegate, run_cli
from tests.redis_server import RedisServer, redis_server


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory, models: Path) -> Iterator[Tidegate]:
    running = servers.start(
        tmp_path_factory.mktemp("state"), "--model-repository", str(models), COMPLETE, "--load", "probe", "--load", "whole"
    )
    yield running
    running.kill()


@pytest.fixture
def client(gateway: Tidegate, models: Path) -> Client:
    """With models that are as written at first, and nothing kept of them that an earlier test asked for."""
    write_models(models)
    client = Client(gateway)
    client.load()
    connection = http.client.HTTPConnection(gateway.address("admin"), timeout=LONG_S)
    connection.request("DELETE", "/cache")
    assert connection.getresponse().status in (200, 204)
    connection.close()
    return client


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path, "--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lfu") as running:
        yield running


# What frontends do is told apart in tests/wire/cache/test_response_cache.py; here Triton is the real one, and each question takes one.


def test_another_shape_is_another_request(client: Client) -> None:
    doubled = [2 * value for value in SIX]
    for expected in ("miss", "hit"):
        answers = {shape: client.ask(shape, over="binary") for shape in ((1, 6), (2, 3), (3, 2))}
        assert {shape: answer.outputs["Y"] for shape, answer in answers.items()} == {shape: (list(shape), doubled) for shape in answers}
        assert [answer.outputs["ROWS"][1] for answer in answers.values()] == [[1], [2], [3]]
        assert [answer.cache for answer in answers.values()] == [expected] * 3


def test_other_outputs_are_another_request(client: Client) -> None:
    for expected in ("miss", "hit"):
        answers = [client.ask(over="grpc", **wanted) for wanted in ({"outputs": ["ROWS"]}, {}, {"outputs": ["Y"]})]
        assert [sorted(answer.outputs) for answer in answers] == [["ROWS"], ["ROWS", "Y"], ["Y"]]
        assert [answer.cache for answer in answers] == [expected] * 3


def test_other_parameters_are_another_request(client: Client) -> None:
    for expected in ("miss", "hit"):
        answers = [client.ask(parameters={"plus": plus}) for plus in ("0", "1", "2")]
        assert [answer.outputs["Y"][1][0] for answer in answers] == [0.0, 1.0, 2.0]
        assert [answer.cache for answer in answers] == [expected] * 3


def test_a_reload_under_the_same_version_is_seen(client: Client, models: Path) -> None:
    client.model = "whole"
    assert [client.ask(over="grpc").cache for _ in range(2)] == ["miss", "hit"]
    write_models(models, factor=3)
    client.load()
    answers = [client.ask(over="grpc") for _ in range(2)]
    assert [(answer.outputs["Y"][1], answer.cache) for answer in answers] == [
        ([3 * value for value in SIX], each) for each in ("miss", "hit")
    ]
    write_models(models)
    client.load()
    back = client.ask(over="grpc")
    assert (back.outputs["Y"][1], back.cache) == ([2 * value for value in SIX], "hit"), "what it was, with the answers that it gave"


def test_a_reload_of_what_a_model_calls_while_it_answers_is_seen(client: Client, models: Path) -> None:
    client.load("caller")
    caller = Client(client.gateway, "caller")
    for factor in (2, 3):
        write_models(models, factor=factor)
        client.load()
        answers = [caller.ask() for _ in range(2)]
        assert [answer.outputs["Y"][1] for answer in answers] == [[factor * value for value in SIX]] * 2
        assert [answer.cache for answer in answers] == ["miss", "hit"]
    client.unload("caller")


def test_unloaded_it_answers_no_more(client: Client) -> None:
    for over in ("json", "grpc"):
        client.ask(over=over)
    client.unload()
    with pytest.raises(tritonclient.grpc.grpc.RpcError, match="no available versions"):
        client.ask(over="grpc")
    assert client.ask().status == 404
    client.load()
    assert [client.ask(over=over).cache for over in ("json", "grpc")] == ["hit", "hit"]


def test_a_purge_holds_when_it_has_returned(client: Client) -> None:
    assert [client.ask().cache for _ in range(2)] == ["miss", "hit"]
    assert run_cli("cache", "purge", "probe", "--admin-url", client.gateway.endpoints["admin"]).returncode == 0
    assert [client.ask().cache for _ in range(2)] == ["miss", "hit"]


def test_a_thousand_at_once_are_one_inference(client: Client) -> None:
    before = client.computed()
    barrier = threading.Barrier(50)

    def ask(number: int) -> set[str]:
        barrier.wait(timeout=LONG_S)
        answers = [client.ask(over="grpc", parameters={"takes_s": "0.5"}) for _ in range(20)]
        assert all(answer.outputs["Y"][1] == [2 * value for value in SIX] for answer in answers)
        return {answer.cache for answer in answers}

    with ThreadPoolExecutor(50) as pool:
        statuses = set().union(*pool.map(ask, range(50)))
    assert statuses == {"miss", "joined", "hit"}
    assert client.computed() == before + 1


def test_with_the_cache_as_without_whatever_is_loaded_meanwhile(client: Client, models: Path) -> None:
    """Random requests and changes; a request that asks for it to be computed says what is right."""
    chance = random.Random(20261121)
    hits = 0
    for _ in range(60):
        match chance.choices(("ask", "reload", "unload", "rewrite"), weights=(12, 1, 1, 2))[0]:
            case "rewrite":
                write_models(models, factor=chance.choice((2, 3)))
            case "reload":
                client.load(chance.choice(("probe", "whole")))
            case "unload":
                client.unload()
                client.load()
            case "ask":
                client.model = chance.choice(("probe", "whole"))
                more = {"shape": chance.choice(((1, 6), (2, 3))), "over": chance.choice(("json", "binary", "grpc"))}
                more |= {"parameters": {"plus": chance.choice(("0", "1"))}} if chance.random() < 0.5 else {}
                answer = client.ask(**more)
                right = client.ask(**more, headers={"Cache-Control": "no-cache"})
                assert answer.outputs == right.outputs, more
                hits += answer.cache == "hit"
    assert hits > 10, "it was tried"


@dataclass(frozen=True)
class Spell:
    """From when until when it took, by one clock, and of which factor the model was."""

    begin: float
    end: float
    factor: float


def ask_timed(client: Client, over: str, plus: int) -> tuple[Spell, str]:
    begin = time.monotonic()
    answer = client.ask(over=over, parameters={"plus": str(plus)})
    end = time.monotonic()
    assert answer.status == 200
    y = answer.outputs["Y"][1]
    return Spell(begin, end, y[2] - y[1]), answer.cache


def possible(answer: Spell, loads: list[Spell]) -> set[float]:
    """Factors that were in force at some time of the answer's: from when their load began until the next one had returned."""
    ends = [load.end for load in loads[1:]] + [math.inf]
    return {load.factor for load, end in zip(loads, ends, strict=True) if load.begin <= answer.end and answer.begin <= end}


def test_every_answer_is_of_what_was_loaded_while_it_was_asked_for(client: Client, models: Path) -> None:
    asking = [(Client(client.gateway, model), over) for model in ("probe", "whole") for over in ("json", "binary", "grpc")]
    ended = threading.Event()

    def ask_on(client: Client, over: str) -> list[tuple[Spell, str]]:
        answers = []
        while not ended.wait(0.02):
            answers.append(ask_timed(client, over, len(answers) % 3))
        return answers

    loads, answers = [Spell(-math.inf, -math.inf, 2)], []
    with ThreadPoolExecutor(len(asking)) as pool:
        threads = [pool.submit(ask_on, *each) for each in asking]
        try:
            for factor in (3, 4, 3, 5, 4):  # what was kept of one wrongly is found when it is back
                write_models(models, factor=factor)
                begin = time.monotonic()
                client.load()
                loads.append(Spell(begin, time.monotonic(), factor))
                answers += [ask_timed(*each, plus=3) for _ in range(2) for each in asking]
        finally:
            ended.set()
        overlapping = [answer for thread in threads for answer in thread.result()]
    assert {cache for _, cache in answers} >= {"hit", "miss"}
    assert any(len(possible(answer, loads)) > 1 for answer, _ in overlapping)
    assert all(len(possible(answer, loads)) == 1 for answer, _ in answers)
    wrong = [answer for answer, _ in answers + overlapping if answer.factor not in possible(answer, loads)]
    assert wrong == []


def test_two_workers_see_a_reload_at_once(start: Start, tmp_path: Path) -> None:
    write_models(tmp_path / "models")
    flags = ["--model-repository", str(tmp_path / "models"), COMPLETE, "--load", "probe", "--load", "whole", "--workers", "2"]
    client = Client(start(tmp_path / "state", *flags), "whole")
    for factor in (2, 3):
        write_models(tmp_path / "models", factor=factor)
        client.load()
        answers = [client.ask() for _ in range(20)]  # each on a connection of its own, and so now here and now there
        assert [answer.outputs["Y"][1] for answer in answers] == [[factor * value for value in SIX]] * 20
        assert [answer.cache for answer in answers].count("miss") <= 2


def test_two_gateways_over_one_redis_compute_once(start: Start, tmp_path: Path, redis: RedisServer) -> None:
    write_models(tmp_path / "models")
    flags = ["--model-repository", str(tmp_path / "models"), COMPLETE, "--load", "probe", "--cache-url", redis.url]
    clients = [Client(start(tmp_path / name, *flags)) for name in ("one", "other")]
    rights = {str(plus): [2 * value + plus for value in SIX] for plus in range(10)}
    stored, shared = ({plus: client.ask(parameters={"plus": plus}) for plus in rights} for client in clients)
    assert {plus: answer.outputs["Y"][1] for plus, answer in stored.items()} == rights
    assert {plus: answer.outputs["Y"][1] for plus, answer in shared.items()} == rights
    hits = [answer.cache for answer in shared.values()].count("hit")  # on a busy machine Redis may answer too late, not ten times
    assert hits >= 1
    assert [client.computed() for client in clients] == [10, 10 - hits]
    with ThreadPoolExecutor(20) as pool:
        asked = [pool.submit(client.ask, parameters={"takes_s": "0.3"}) for client in clients for _ in range(10)]
        assert all(each.result().outputs["Y"][1] == [2 * value for value in SIX] for each in asked)
    computed = [client.computed() - before for client, before in zip(clients, (10, 10 - hits), strict=True)]
    assert max(computed) == 1
    write_models(tmp_path / "models", factor=3)
    clients[1].load()
    assert clients[1].ask().outputs["Y"][1] == [3 * value for value in SIX]
    assert clients[0].ask().outputs["Y"][1] == [2 * value for value in SIX], "it has not loaded it yet"
