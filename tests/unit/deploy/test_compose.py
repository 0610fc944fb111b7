"""compose.yaml and what may be added to it, each combination as Docker Compose merges its files."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml

from control_plane.app.data_plane.regions import make_regions
from control_plane.settings import load_settings
from deploy.secrets import main as make_files
from deploy.secrets import make_secrets

DEPLOY = Path(__file__).parents[3] / "deploy"
BASE, EVENTS, REGIONS = "compose.yaml", "compose.events.yaml", "compose.regions.yaml"
COMBINED = ((BASE,), (BASE, EVENTS), (BASE, REGIONS), (BASE, EVENTS, REGIONS))
REDISES = {"redis", "events"}


def merged(*names: str) -> dict[str, Any]:
    """What files come to: mappings are merged and lists appended, which is all that these need of Compose's rules."""
    return reduce(_merge, [yaml.safe_load((DEPLOY / name).read_text()) for name in names])


def _merge(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return {**one, **{key: _merge(one[key], value) if key in one else value for key, value in other.items()}}
    return [*one, *other] if isinstance(one, list) else other


every_combination = pytest.mark.parametrize("names", COMBINED, ids="+".join)
every_service = pytest.mark.parametrize(
    ("names", "service"),
    [pytest.param(names, each, id=f"{'+'.join(names)}: {each}") for names in COMBINED for each in merged(*names)["services"]],
)


def test_every_file_is_in_some_combination() -> None:
    assert {path.name for path in DEPLOY.glob("compose*.yaml")} == {name for names in COMBINED for name in names}


@every_service
def test_services_are_hardened_and_named_by_digest(names: tuple[str, ...], service: str) -> None:
    found: dict[str, Any] = merged(*names)["services"][service]
    assert re.match(r"\$\{[A-Z]+_IMAGE:\?.*by digest\}$", found["image"])
    # A new volume belongs to 999 where the image has /data, and Docker has no fsGroup.
    user = "999:1000" if service in REDISES else "1000:1000"
    assert (found["user"], found["read_only"], found["cap_drop"]) == (user, True, ["ALL"])
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert found["restart"] == "unless-stopped"
    assert "healthcheck" in found
    assert float(found["stop_grace_period"].removesuffix("s")) >= 40


@every_combination
def test_only_the_gateway_is_reached_from_outside(names: tuple[str, ...]) -> None:
    made = merged(*names)
    services = made["services"]
    assert [name for name in services if "ports" in services[name]] == ["gateway"]
    assert not any("8080" in port for port in services["gateway"]["ports"])
    assert [name for name in services if "outside" in services[name]["networks"]] == ["gateway"]
    assert all(network["internal"] for name, network in made["networks"].items() if name != "outside")


@every_combination
def test_the_files_that_are_named_are_there_or_are_made(names: tuple[str, ...], tmp_path: Path) -> None:
    made = merged(*names)
    assert make_files([str(tmp_path)]) == 0
    assert make_files([str(tmp_path), "events"]) == 0
    for secret in made["secrets"].values():
        file = tmp_path / Path(secret["file"]).name
        assert file.stat().st_mode & 0o777 == (0o640 if file.name.endswith("users.acl") else 0o600)
    for service in made["services"].values():
        for volume in service.get("volumes", ()):
            if volume.startswith("./"):
                assert (DEPLOY / volume.split(":")[0]).exists()
        used = [each if isinstance(each, str) else each["source"] for each in service.get("secrets", ())]
        assert set(used) <= made["secrets"].keys()
        volumes = {each.split(":")[0] for each in service.get("volumes", ()) if re.match(r"[a-z]", each)}
        assert volumes <= made["volumes"].keys()
        assert set(service["networks"]) <= made["networks"].keys()


def test_both_sides_get_the_same_passwords_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert make_files([str(tmp_path)]) == 0
    url, users = ((tmp_path / name).read_text() for name in ("state-url", "users.acl"))
    assert url.startswith("redis://tidegate:")
    assert users.splitlines()[1].startswith("user tidegate on #")
    assert make_files([str(tmp_path)]) == 1
    assert "both sides need the same password" in capsys.readouterr().err
    assert make_secrets() != make_secrets()


@pytest.mark.parametrize("words", [[], ["folder", "nonesuch"], ["folder", "events", "more"]])
def test_other_words_are_an_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert make_files(words) == 1
    assert "usage: python -m deploy.secrets FOLDER [events]" in capsys.readouterr().err


def test_events_have_users_of_their_own_and_no_container_of_ours_has_the_subscribers_password(tmp_path: Path) -> None:
    assert make_files([str(tmp_path), "events"]) == 0
    assert {path.name for path in tmp_path.iterdir()} == {"events-url", "events-users.acl", "subscriber-url"}
    made = merged(BASE, EVENTS)
    assert not any("subscriber" in str(secret["file"]) for secret in made["secrets"].values())
    subscriber, published = ((tmp_path / name).read_text() for name in ("subscriber-url", "events-url"))
    networks = made["services"]["events"]["networks"]
    assert f"@{networks['subscribers']['aliases'][0]}:6379" in subscriber
    assert "@events:6379" in published, "the service's name, which the gateway finds on the network inside"
    assert "inside" in made["services"]["gateway"]["networks"]
    assert made["networks"]["subscribers"]["name"] == "tidegate-subscribers"
    config = (DEPLOY / "kubernetes/components/events/events.conf").read_text()
    (secret,) = made["services"]["events"]["secrets"]
    assert f"aclfile {secret['target']}" in config


def test_the_gateway_starts_with_a_dead_redis_of_events() -> None:
    assert "events" not in merged(BASE, EVENTS)["services"]["gateway"]["depends_on"]


@every_combination
def test_the_gateways_variables_are_settings(names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    service = merged(*names)["services"]["gateway"]
    (tmp_path / "regions.yaml").write_text("- {name: us-east, url: 'https://us.example:8000', ca: /etc/ssl/certs/ca-certificates.crt}\n")
    said = {"REGION": "eu-west", "MEMORY_BUDGET": "72GiB"}
    for name, value in service["environment"].items():
        if not name.startswith("TIDEGATE_"):
            continue
        if name.endswith("_FILE") and value.startswith("/run/secrets/"):
            assert Path(value).name in service["secrets"]
            (tmp_path / name).write_text("redis://redis:6379/0\n" if "URL" in name else "a secret that is long enough\n")
            value = str(tmp_path / name)
        elif name == "TIDEGATE_REGIONS_FILE":
            (mounted,) = [each for each in service["volumes"] if each.startswith("${REGIONS:?")]
            assert mounted.endswith(f"}}:{Path(value).parent}:ro")
            value = str(tmp_path / Path(value).name)
        monkeypatch.setenv(name, re.sub(r"\$\{([A-Z_]+):[?-][^}]*\}", lambda found: said[found[1]], value))
    settings = load_settings()
    assert (settings.events.events_url is not None) is (EVENTS in names)
    regions = make_regions(settings)
    assert ([] if regions is None else [each.region.name for each in regions.standings]) == (["us-east"] if REGIONS in names else [])


@pytest.mark.parametrize("name", ["gateway", "triton"])
def test_the_health_checks_tell_an_answer_from_none(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    for name_of_exceptions in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name_of_exceptions, raising=False)
    word, program, option, code = merged(BASE)["services"][name]["healthcheck"]["test"]
    assert (word, option) == ("CMD", "-c")
    assert program in ("python", "python3")
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        mine = code.replace(":8000/", f":{listening.getsockname()[1]}/")
        assert mine != code

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        refused = subprocess.run([sys.executable, option, mine], capture_output=True, timeout=60, check=False)
        listening.listen()
        thread = threading.Thread(target=answer)
        thread.start()
        answered = subprocess.run([sys.executable, option, mine], capture_output=True, timeout=60, check=False)
        thread.join(60.0)
    assert (refused.returncode, answered.returncode) == (1, 0)
