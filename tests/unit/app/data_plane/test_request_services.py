from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from control_plane.app.data_plane.request_services import RequestServices, open_request_services
from control_plane.core.errors import LimitExceeded, StartupError, StoreUnavailable
from control_plane.core.infer_call import Outcome
from control_plane.metering.domain.usage import UsageBatch
from control_plane.objects.domain.stored import Kind
from control_plane.objects.domain.stored_objects import to_body
from control_plane.objects.domain.tenant import Tenant
from control_plane.settings import load_settings
from control_plane.triton.servers import Servers
from tests.aio import run, settle
from tests.fakes import FakeUpstream
from tests.fakes.stores.state_store import FakeStateStore
from tests.fakes.stores.usage_store import FakeUsageStore
from tests.redis_server import free_port


def opened(tmp_path: Path, *, admits_requests: bool = True, **given: object) -> bool:
    """Open the governance of these settings, run its tasks, and return whether it has a shared cache."""

    async def main() -> bool:
        settings = load_settings({"state_dir": tmp_path, **given})
        async with open_request_services(settings, Servers(), admits_requests=admits_requests) as services, asyncio.TaskGroup() as tasks:
            running = tasks.create_task(services.run())
            await asyncio.sleep(0.1)
            assert not running.done()
            running.cancel()
            return services.shared_cache is not None

    return run(main())


def test_a_cache_that_is_away_holds_nothing_up(tmp_path: Path) -> None:
    assert opened(tmp_path, cache_url=f"redis://127.0.0.1:{free_port()}")


def test_where_there_is_none(tmp_path: Path) -> None:
    url = f"redis://127.0.0.1:{free_port()}"
    assert not opened(tmp_path)
    assert not opened(tmp_path, cache_url=url, admits_requests=False)


def test_without_room_for_answers_a_shared_cache_is_not_used_and_the_log_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not opened(tmp_path, cache_url=f"redis://127.0.0.1:{free_port()}", cache_bytes=0)
    assert "--cache-url is not used" in caplog.text


def test_a_url_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="--cache-url is not a Redis"):
        opened(tmp_path, cache_url="http://h")


class _FullStore(FakeUsageStore):
    """Usage store on a full disk: it can be read, and takes nothing more."""

    async def add(self, batch: UsageBatch) -> None:
        raise StoreUnavailable("database or disk is full", is_full=True)


@pytest.mark.virtual_time
async def test_a_daily_quota_holds_while_usage_cannot_be_stored(tmp_path: Path) -> None:
    state = FakeStateStore()
    await state.put(Kind.TENANT, "t", to_body(Tenant("t", daily_compute_units=100.0)))
    services = RequestServices(load_settings({"state_dir": tmp_path}), Servers(), state, _FullStore(), None, None, None)
    await services.start()
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(services.run())
        for _ in range(2):
            permit = services.admission.admit("t")
            assert permit is not None
            await permit.acquire_slot("m", cost_units=60.0, deadline_s=services.admission.now_s() + 60.0)
            permit.release()
            services.metering.add("t", "m", Outcome.ANSWERED, 1, 1, 60.0, False)
            await asyncio.sleep(12.0)  # the stored sums are looked at twice
        with pytest.raises(LimitExceeded, match="has used its 100 compute units of today"):
            services.admission.admit("t")
        running.cancel()


@pytest.mark.parametrize(
    ("authentication", "of_all", "of_sequences"), [pytest.param(False, 4, 2, id="anonymous"), pytest.param(True, 3, 3, id="tenants")]
)
def test_a_model_with_sequences_leaves_connections_for_others(tmp_path: Path, authentication: bool, of_all: int, of_sequences: int) -> None:
    given = {"state_dir": tmp_path, "max_upstream_connections": 8, "max_in_flight_per_model": 3, "authentication": authentication}

    async def main() -> tuple[int, int]:
        async with open_request_services(load_settings(given), Servers()) as services:
            starts, later = services.admission.slots.of("m"), services.admission.slots.of("m", continues_sequence=True)
            return sum(starts.try_acquire("t") for _ in range(9)), sum(later.try_acquire("t") for _ in range(9))

    assert run(main()) == (of_all, of_sequences)


def test_work_in_the_background_begins_on_each_server_that_answers_also_one_that_joined(tmp_path: Path) -> None:
    """Settings name none of the servers of a list that is followed, or of a Service of Kubernetes."""

    async def main() -> list[int]:
        servers, begun = Servers(names=()), list[int]()
        given = {"state_dir": tmp_path, "servers_file": tmp_path / "servers.yaml"}
        async with open_request_services(load_settings(given), servers) as services, asyncio.TaskGroup() as tasks:
            gate = services.admission.slots.background
            gate.request_began()
            for name in "abcd":
                waiting = tasks.create_task(gate.begin())
                await settle()
                begun.append(int(waiting.done()))
                waiting.cancel()
                servers.add(name).up(FakeUpstream())
            servers.members["a"].down("it ended")
            waiting = tasks.create_task(gate.begin())
            await settle()
            begun.append(int(waiting.done()))
            waiting.cancel()
        return begun

    assert run(main()) == [0, 0, 1, 1, 0]


def test_who_is_refused_a_job_is_promised_the_places_of_this_process_of_several(tmp_path: Path) -> None:
    async def main() -> tuple[int, int]:
        async with open_request_services(load_settings({"state_dir": tmp_path}), Servers()) as services:
            assert services.jobs is not None
            alone = services.jobs.jobs.room.processes()
            services.admission.set_shares({}, other=0.5, processes=2)
            return alone, services.jobs.jobs.room.processes()

    assert run(main()) == (1, 2)
