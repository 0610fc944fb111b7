"""The components `regions` and `events`: what an overlay of the user's own makes of one, and who may do what in the other's Redis."""

from __future__ import annotations

import re

import pytest

from control_plane.app.data_plane.regions import make_regions
from control_plane.core.errors import StartupError
from control_plane.events.domain.stream import Stream
from control_plane.settings import load_settings
from deploy.manifests import secrets_of
from deploy.secrets import make_secrets
from tests.unit.deploy.kubernetes.network import table
from tests.unit.deploy.rendered import KUBERNETES, Case, containers, env, named, pod_spec, render, render_folder
from tests.unit.deploy.schemas import VERSIONS, faults

HOW_TO = (KUBERNETES.parents[1] / "docs" / "how-to" / "regions.md").read_text()
(OVERLAY,) = [block for block in re.findall(r"```yaml\n(.*?)```", HOW_TO, re.DOTALL) if "kind: Kustomization" in block]


def test_the_overlay_of_the_documents_names_the_region_and_opens_the_way_to_the_other_one_only() -> None:
    objects = render_folder(OVERLAY, {"regions.yaml": "- {name: us-east, url: 'https://us.example:8000'}\n", "regions-ca.pem": "CA\n"})
    assert [fault for each in objects for fault in faults(VERSIONS[-1], each)] == []
    gateway = named(objects, "Deployment", "gateway")
    (container,) = containers(gateway)
    assert env(container)["TIDEGATE_REGION"] == "eu-west"
    (volume,) = [each for each in pod_spec(gateway)["volumes"] if each["name"] == "regions"]
    assert named(objects, "ConfigMap", volume["configMap"]["name"])["data"].keys() == {"regions.yaml", "regions-ca.pem"}
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "regions"]
    assert env(container)["TIDEGATE_REGIONS_FILE"] == f"{mount['mountPath']}/regions.yaml"
    policy = named(objects, "NetworkPolicy", "gateway-to-regions")["spec"]
    assert policy["egress"] == [
        {"to": [{"ipBlock": {"cidr": "198.51.100.7/32"}}], "ports": [{"protocol": "TCP", "port": port} for port in (8000, 8001)]}
    ]
    assert "gateway -> another region:" not in table(objects), "the address that stands for theirs"


def test_the_component_alone_starts_no_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = render(Case("gpu", ("regions",)))
    (container,) = containers(named(objects, "Deployment", "gateway"))
    for name in ("TIDEGATE_REGION", "TIDEGATE_REGIONS_FILE"):
        monkeypatch.setenv(name, env(container)[name])
    with pytest.raises(StartupError, match="--regions-file needs --region"):
        make_regions(load_settings())


def test_without_a_certificate_of_its_own_a_gateway_starts_as_well() -> None:
    assert "tidegate-regions" not in secrets_of(render(Case("gpu", ("regions",))))


def test_subscribers_may_read_every_stream_and_no_pod_of_ours_has_their_password() -> None:
    made = make_secrets()
    (subscriber,) = [line.split() for line in made["tidegate-events-redis"]["users.acl"].splitlines() if line.startswith("user subscriber")]
    assert {word for word in subscriber if word.startswith("~")} == {f"~tidegate:events:{each}" for each in Stream}
    assert not any(word.startswith(("+@", "allcommands", "allkeys", "nopass")) for word in subscriber)
    objects = render(Case("gpu", ("events",)))
    assert secrets_of(objects)["tidegate-events"] == {"events-url"}
    assert secrets_of(objects)["tidegate-events-redis"] == {"users.acl"}
    passwords = [made[name][key].rpartition("@")[0].rpartition(":")[2] for name, key in (*URLS, ("tidegate-state", "state-url"))]
    assert len(set(passwords)) == 3
    assert not any(
        each in text for each in passwords for name in ("tidegate-events-redis", "tidegate-redis") for text in made[name].values()
    )


URLS = (("tidegate-events", "events-url"), ("tidegate-events", "subscriber-url"))
