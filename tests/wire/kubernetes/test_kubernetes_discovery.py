"""Following a Service's EndpointSlices, at a scripted API server of the real wire form."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from control_plane.core.errors import StartupError
from control_plane.fleet.adapters.kubernetes.servers import KubernetesServers, make_kubernetes_servers
from control_plane.storage.kubernetes import Watching
from tests.kubernetes_api import ScriptedApi, client, endpoint, endpoint_slice, rules_of, scripted_api, write_account

SOON_S = 20.0
"""Far more than anything here takes; the machine may be busy."""


@dataclass
class Bench:
    api: ScriptedApi
    servers: KubernetesServers
    account: Path

    async def sees(self, *names: str) -> None:
        """Wait until the list has exactly these servers."""
        await self.until(lambda: {each.name for each in self.servers.read()} == set(names))

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON_S):
            while not is_so():
                await asyncio.sleep(0.01)


@asynccontextmanager
async def bench(folder: Path, *slices: object, services: str = "triton") -> AsyncIterator[Bench]:
    """Services with these slices, and a gateway's list that follows it."""
    account = write_account(folder / "account")
    async with scripted_api() as api:
        for each in slices:
            assert isinstance(each, dict)
            api.apply(each)
        servers = KubernetesServers(client(api, account), namespace="tidegate", services=services)
        assert servers.read() == []
        running = asyncio.get_running_loop().create_task(servers.run())
        try:
            yield Bench(api, servers, account)
        finally:
            running.cancel()
            await asyncio.wait([running])


A, B = endpoint("triton-a", "10.0.0.1"), endpoint("triton-b", "10.0.0.2")


async def test_pods_join_and_leave_as_slices_say(tmp_path: Path) -> None:
    async with bench(tmp_path, endpoint_slice("s1", A), endpoint_slice("other", B, service="redis")) as it:
        await it.sees("triton-a")
        assert it.servers.has_changed() is False
        it.api.apply(endpoint_slice("s2", B, pool="long"))
        await it.until(it.servers.has_changed)
        await it.sees("triton-a", "triton-b")
        it.api.apply(endpoint_slice("s1", endpoint("triton-a", "10.0.0.1", ready=False, terminating=True)))
        await it.sees("triton-b")
        it.api.delete("s1")
        it.api.apply(endpoint_slice("s1", endpoint("triton-c", "10.0.0.3")))
        await it.sees("triton-b", "triton-c")
        assert it.api.asked("list") == 1, "changes come by the watch"


async def test_a_watch_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    async with bench(tmp_path, endpoint_slice("s1", A)) as it:
        await it.sees("triton-a")
        it.api.bookmark()
        told = f"watch {it.api.version}"
        await it.until(lambda: told in it.api.log)  # the server ends a watch after a second
        it.api.apply(endpoint_slice("s2", B))
        await it.sees("triton-a", "triton-b")
        assert it.api.asked("list") == 1


@pytest.mark.parametrize("in_stream", [False, True])
async def test_what_the_server_has_forgotten_is_listed_again(tmp_path: Path, in_stream: bool) -> None:
    async with bench(tmp_path, endpoint_slice("s1", A)) as it:
        await it.sees("triton-a")
        it.api.objects["s1"] = endpoint_slice("s1", B)  # a change that no watch shows
        it.api.forget()
        if in_stream:
            it.api.fail(410, "Expired")
        await it.sees("triton-b")
        assert it.api.asked("list") >= 2


@pytest.mark.parametrize(("code", "reason"), [(500, "InternalError"), (409, "Conflict"), (429, "TooManyRequests"), (504, "Timeout")])
async def test_an_error_in_the_stream_ends_nothing(tmp_path: Path, code: int, reason: str) -> None:
    async with bench(tmp_path, endpoint_slice("s1", A)) as it:
        await it.sees("triton-a")
        it.api.fail(code, reason)
        await it.until(lambda: it.api.asked("list") >= 2)
        it.api.apply(endpoint_slice("s2", B))
        await it.sees("triton-a", "triton-b")


async def test_an_object_of_another_form_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with bench(tmp_path, endpoint_slice("s1", A)) as it:
        await it.sees("triton-a")
        it.api.say_nonsense()
        await it.until(lambda: "AttributeError" in caplog.text)
        it.api.apply(endpoint_slice("s2", B))
        await it.sees("triton-a", "triton-b")


async def test_while_the_server_is_away_nothing_changes_and_then_all_is_right(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with bench(tmp_path, endpoint_slice("s1", A)) as it:
        await it.sees("triton-a")
        await it.api.stop()
        await it.until(lambda: "stay as they are" in caplog.text)
        await asyncio.sleep(1.0)
        assert [each.name for each in it.servers.read()] == ["triton-a"]
        assert len([each for each in caplog.records if each.levelno >= logging.WARNING]) == 1, "said once, not with each try"
        it.api.objects["s1"] = endpoint_slice("s1", B)
        it.api.forget()
        await it.api.start()
        await it.sees("triton-b")


async def test_a_connection_that_says_nothing_is_given_up(tmp_path: Path) -> None:
    async with bench(tmp_path, endpoint_slice("s1", A)) as it:
        await it.sees("triton-a")
        await it.until(lambda: it.api.asked("watch") >= 1)
        it.api.is_silent = True
        it.api.apply(endpoint_slice("s2", B))
        await it.sees("triton-a", "triton-b")
        assert it.api.asked("list") == 2, "the connection is given up, and everything listed again"
        it.api.is_silent = False


def test_a_change_is_seen_within_thirty_seconds_whatever_happens_to_a_connection() -> None:
    limits = Watching()
    assert limits.ends_s + limits.silent_s + 0.5 < 30


async def test_a_server_that_ends_each_watch_at_once_is_asked_with_pauses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with bench(tmp_path, endpoint_slice("s1", A)) as it:
        await it.sees("triton-a")
        it.api.ends_at_once = True
        await it.until(lambda: "as soon as it began" in caplog.text)
        asked = len(it.api.log)
        it.api.apply(endpoint_slice("s2", B))
        await it.sees("triton-a", "triton-b")
        await asyncio.sleep(1.0)
        assert len(it.api.log) - asked < 20
        it.api.ends_at_once = False
        await it.until(lambda: "answers again" in caplog.text)


async def test_a_thousand_endpoints_come_in_pages(tmp_path: Path) -> None:
    slices = [
        endpoint_slice(f"s{part}", *(endpoint(f"triton-{part}-{number}", f"10.0.{part}.{number}") for number in range(100)))
        for part in range(10)
    ]
    async with bench(tmp_path) as it:
        it.api.page = 3
        for each in slices:
            it.api.apply(each)
        it.api.expires_continue = True
        it.api.forget()  # so that all are listed
        await it.until(lambda: len(it.servers.read()) == 1000)
        assert it.api.asked("list 3") >= 2, "a page that has expired begins the list anew"


async def test_a_token_that_was_replaced_is_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with bench(tmp_path, endpoint_slice("s1", A)) as it:
        await it.sees("triton-a")
        it.api.token = "another"
        await it.until(lambda: "401" in caplog.text)
        write_account(it.account, "damagéd")
        await it.until(lambda: "token has no token" in caplog.text)
        write_account(it.account, "another")
        it.api.apply(endpoint_slice("s2", B))
        await it.sees("triton-a", "triton-b")
        assert "a-token" not in caplog.text


VERBS = [verb for rule in rules_of("base/gateway/discovery.yaml") for verb in rule["verbs"]]


@pytest.mark.parametrize("dropped", ["", *VERBS])
async def test_each_verb_of_the_role_is_needed(tmp_path: Path, dropped: str, caplog: pytest.LogCaptureFixture) -> None:
    account = write_account(tmp_path / "account")
    async with scripted_api() as api:
        api.rules = rules_of("base/gateway/discovery.yaml", without=dropped)
        api.apply(endpoint_slice("s1", A))
        servers = KubernetesServers(client(api, account), namespace="tidegate", services="triton")
        running = asyncio.get_running_loop().create_task(servers.run())
        it = Bench(api, servers, account)
        if dropped:
            await it.until(lambda: f"cannot {dropped}" in caplog.text)
        else:
            await it.sees("triton-a")
            await it.until(lambda: api.asked("watch") >= 2)
            assert "cannot" not in caplog.text
        running.cancel()
        await asyncio.wait([running])


async def test_a_service_that_vanishes_does_not_empty_the_fleet(tmp_path: Path) -> None:
    async with bench(tmp_path, endpoint_slice("s1", A)) as it:
        await it.sees("triton-a")
        it.api.delete("s1")
        await it.until(it.servers.has_changed)
        with pytest.raises(StartupError, match="is the Service there, and does its selector match"):
            it.servers.read()
        it.api.apply(endpoint_slice("s1", A, B))
        await it.until(it.servers.has_changed)
        await it.sees("triton-a", "triton-b")


async def test_each_of_several_services_says_what_its_own_pods_have(tmp_path: Path) -> None:
    first = endpoint_slice("s1", A, memory_budget="72Gi")
    other = endpoint_slice("s2", B, service="triton-fallback", memory_budget="36Gi")
    async with bench(tmp_path, first, other, endpoint_slice("s3", A, service="redis"), services="triton,triton-fallback") as it:
        await it.sees("triton-a", "triton-b")
        budgets = {each.name: each.memory_budget for each in it.servers.read()}
        assert budgets == {"triton-a": 72 * 2**30, "triton-b": 36 * 2**30}


async def test_one_of_several_services_may_be_empty_but_not_vanish(tmp_path: Path) -> None:
    empty = endpoint_slice("s2", service="triton-fallback")
    async with bench(tmp_path, endpoint_slice("s1", A), empty, services="triton,triton-fallback") as it:
        await it.sees("triton-a")
        it.api.apply(endpoint_slice("s2", B, service="triton-fallback"))
        await it.sees("triton-a", "triton-b")
        it.api.delete("s1")
        await it.until(it.servers.has_changed)
        with pytest.raises(StartupError, match="tidegate/triton: it has no endpoints any more"):
            it.servers.read()
        it.api.apply(endpoint_slice("s1", A))
        await it.until(it.servers.has_changed)
        await it.sees("triton-a", "triton-b")
        it.api.apply(endpoint_slice("s2", endpoint("triton-b", "10.0.0.2", terminating=True), service="triton-fallback"))
        await it.sees("triton-a")
        it.api.delete("s2")
        it.api.apply(endpoint_slice("s1", A, endpoint("triton-c", "10.0.0.3")))
        await it.sees("triton-a", "triton-c")


async def test_the_last_pod_that_ends_leaves(tmp_path: Path) -> None:
    async with bench(tmp_path, endpoint_slice("s1", A)) as it:
        await it.sees("triton-a")
        it.api.apply(endpoint_slice("s1", endpoint("triton-a", "10.0.0.1", terminating=True)))
        await it.sees()
        it.api.apply(endpoint_slice("s1"))
        it.api.apply(endpoint_slice("s1", B))
        await it.sees("triton-b")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"ports": [{"name": "", "port": 8000}]}, "no port named http and none named grpc", id="ports"),
        pytest.param({"pool": "a b"}, "tidegate.io/pool is no name of a pool, got 'a b'", id="pool"),
        pytest.param({"memory_budget": "70 GB"}, "no number of bytes such as 70Gi, got '70 GB'", id="budget"),
    ],
)
async def test_a_service_that_cannot_be_used_is_told_of_and_changes_nothing(
    tmp_path: Path, change: dict[str, object], message: str
) -> None:
    async with bench(tmp_path, endpoint_slice("s1", A)) as it:
        await it.sees("triton-a")
        wrong = endpoint_slice("s1", A, B, **{key: str(value) for key, value in change.items() if key != "ports"})
        it.api.apply({**wrong, **{key: value for key, value in change.items() if key == "ports"}})
        await it.until(it.servers.has_changed)
        with pytest.raises(StartupError, match=message):
            it.servers.read()
        it.api.apply(endpoint_slice("s1", A, B))
        await it.until(it.servers.has_changed)
        await it.sees("triton-a", "triton-b")


def test_outside_a_pod_the_setting_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="not running in a pod"):
        make_kubernetes_servers("triton", "", tmp_path)
    with pytest.raises(StartupError, match="automountServiceAccountToken"):
        make_kubernetes_servers("models/triton", "[fd00::1]:443", tmp_path)
