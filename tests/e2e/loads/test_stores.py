"""Models that only a store has, beside the gateway and on a node: fetched and verified before they are loaded, weighed, and let go."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from control_plane.admin.client import AdminClient
from tests.e2e.fleets import answer_of, ask, loaded, shown, write_models
from tests.e2e.loads import bad_models
from tests.e2e.nodes import PLACES, fleet_on
from tests.e2e.raw_http import exchange, status
from tests.e2e.tidegate import COMPLETE, Tidegate, wait_for

MIB = 2**20
BUDGET = "300MiB"
WARM_BYTES = "3MiB"
_HEAVY = bad_models.code("import numpy\nself.weights = numpy.ones(150 * 2**20, dtype=numpy.uint8)")


@dataclass
class Site:
    fleet: Tidegate
    warm: Path
    store: Path


@pytest.fixture(scope="module", params=PLACES)
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("site")
    write_models(root / "models", ("m0",))
    store = root / "store"
    write_models(store, ("m1", "m2", "m3"), size="24MiB")
    write_models(store, ("m9",), size="301MiB")
    for model in ("m2", "m3"):  # of which the warm tier has room for one beside others
        (store / model / "1/weights").write_bytes(bytes(2 * MIB))
    bad_models.write(store, "heavy", files={"1/model.py": _HEAVY})
    bad_models.write(store, "rotten")
    digest = hashlib.sha256(b"what its owner has put there").hexdigest()
    (store / "rotten/SHA256SUMS").write_text(f"{digest}  1/model.py\n")
    sources = ("--model-store", str(store), "--warm-bytes", WARM_BYTES, COMPLETE)
    with fleet_on(request.param, root, "--memory-budget", BUDGET, repository=root / "models", sources=sources, count=1) as (fleet, nodes):
        yield Site(fleet, (nodes[0].tidegate if nodes else fleet).state_dir / "warm", store)


def known(site: Site, model: str) -> dict[str, Any]:
    return next(each for each in shown(site.fleet)["models"] if each["name"] == model)


def test_what_only_the_store_has_is_fetched_for_the_first_request(site: Site) -> None:
    assert (known(site, "m0")["tier"], known(site, "m1")["tier"]) == ("warm", "cold")
    assert known(site, "m1")["fetch_s"] > 0
    assert not (site.warm / "m1").exists()
    assert answer_of(ask(site.fleet, "m1")) == 2
    assert (site.warm / "m1/config.pbtxt").exists()
    assert known(site, "m1")["resident_bytes"] == 24 * MIB, "as its owner declares, which nobody knew before"
    assert (known(site, "m1")["tier"], known(site, "m1")["fetch_s"]) == ("hot", 0.0)


def test_one_that_turns_out_to_be_too_large_is_not_loaded(site: Site) -> None:
    refused = ask(site.fleet, "m9", tidegate_timeout_ms="20000")
    assert status(refused) == 503
    assert b"needs %d bytes" % (301 * MIB) in refused
    assert all(replica["model"] != "m9" for server in shown(site.fleet)["servers"] for replica in server["replicas"])


def test_one_that_is_not_what_its_owner_has_put_there_is_not_loaded_and_says_why(site: Site) -> None:
    refused = ask(site.fleet, "rotten")
    assert status(refused) == 503
    wait_for(lambda: b"has the SHA-256" in ask(site.fleet, "rotten", tidegate_timeout_ms="1000"), what="the reason")
    assert not (site.warm / "rotten").exists()


def test_what_is_not_loaded_makes_room_on_the_disk_for_others(site: Site) -> None:
    admin = AdminClient(site.fleet.endpoints["admin"])
    assert answer_of(ask(site.fleet, "m2")) == 3
    admin.unload("m2")
    assert answer_of(ask(site.fleet, "m3")) == 4
    assert (site.warm / "m3").exists()
    assert not (site.warm / "m2").exists()
    wait_for(lambda: known(site, "m2")["tier"] == "cold", what="a model that is only in the store again")


def test_a_model_whose_owner_declares_no_size_is_weighed_by_its_load(site: Site) -> None:
    assert status(ask(site.fleet, "heavy")) == 200
    wait_for(lambda: abs(known(site, "heavy")["resident_bytes"] - 170 * MIB) < 50 * MIB, what="its size")
    server = shown(site.fleet)["servers"][0]
    assert sum(replica["bytes"] for replica in server["replicas"]) <= server["budget_bytes"] == 300 * MIB


def test_a_model_that_comes_into_the_folder_is_served_within_seconds(site: Site) -> None:
    write_models(site.store.parent / "models", ("m4",))
    wait_for(lambda: status(ask(site.fleet, "m4")) == 200, timeout_s=60.0, what="a new model")
    assert "m4" in set().union(*loaded(site.fleet).values())


def test_a_load_that_brings_its_own_configuration_is_refused(site: Site) -> None:
    """After an eviction the model would come back without it."""
    path = "/v2/repository/models/m1/load"
    refused = exchange(site.fleet.port("http"), "POST", path, b'{"parameters":{"config":"{}"}}')
    assert status(refused) == 501, refused
    assert answer_of(ask(site.fleet, "m1")) == 2
