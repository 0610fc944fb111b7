"""Checks of the settings of `tidegate jobs run`, before it connects to anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from control_plane.app.job_worker import JobWorker, tell_who_is_away
from control_plane.cli import main
from control_plane.core.errors import StartupError
from control_plane.jobs.adapters.gateway_compute import GatewayCompute
from control_plane.settings import load_settings
from tests.unit.jobs.adapters.fake_gateway import FakeGateway

REDIS = "redis://localhost:6379"


def worker(folder: Path, **given: object) -> JobWorker:
    return JobWorker(load_settings({"state_url": REDIS, "jobs_spool": str(folder), "jobs_gateways": "http://localhost:8000"} | given))


@pytest.mark.parametrize("gateway", ["http://gateway:8000", "https://one,http://10.0.0.7:8000"])
def test_an_administrators_key_is_not_sent_beyond_this_machine_without_tls(tmp_path: Path, gateway: str) -> None:
    with pytest.raises(StartupError, match="https:// address"):
        worker(tmp_path, jobs_gateways=gateway, api_key="tg_secret")


@pytest.mark.parametrize(
    "given",
    [
        pytest.param({"jobs_gateways": "https://gateway:8000", "api_key": "tg_secret"}, id="tls"),
        pytest.param({"jobs_gateways": "http://localhost:8000,http://[::1]:8000", "api_key": "tg_secret"}, id="this machine"),
        pytest.param({"jobs_gateways": "http://gateway:8000"}, id="no key"),
        pytest.param({"jobs_gateways": "http://gateway:8000", "api_key": "tg_secret", "jobs_plaintext": True}, id="a trusted network"),
    ],
)
def test_other_ways_to_gateways_are_taken(tmp_path: Path, given: dict[str, object]) -> None:
    worker(tmp_path, **given)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"jobs_gateways": ""}, "name the gateways"),
        ({"jobs": False}, "TIDEGATE_JOBS is off"),
        ({"state_url": None}, "--state-url"),
        ({"jobs_spool": None}, "TIDEGATE_JOBS_SPOOL"),
        ({"jobs_gateways": "gateway"}, "--gateway"),
    ],
)
def test_a_worker_that_could_run_no_jobs_says_why(tmp_path: Path, given: dict[str, object], reason: str) -> None:
    with pytest.raises(StartupError, match=reason):
        worker(tmp_path, **given)


@pytest.mark.parametrize(("words", "named"), [(("--at-once", "0"), "--at-once"), (("--log-format", "xml"), "--log-format")])
def test_a_value_that_does_not_fit_is_said_of_the_option_that_the_user_wrote(
    words: tuple[str, ...], named: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tidegate", "jobs", "run", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code
    assert f"{named}: " in capsys.readouterr().err


async def test_a_gateway_that_is_not_there_is_said_and_no_reason_to_end(caplog: pytest.LogCaptureFixture) -> None:
    there, away = FakeGateway(), FakeGateway(is_frozen=True)
    await tell_who_is_away(GatewayCompute([there, away]), ["https://there:8000", "https://away:8000"])
    assert [record.getMessage().partition(":8000")[0] for record in caplog.records] == ["no answer from the gateway https://away"]
