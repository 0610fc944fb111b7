"""What pods and their accounts may do at most (docs/how-to/kubernetes.md), for every overlay with every component."""

from __future__ import annotations

import re

import pytest

from tests.unit.deploy.rendered import (
    CASES,
    Case,
    containers,
    env,
    named,
    of_kind,
    pod_spec,
    render,
    workloads,
)

SECRETS = {
    "tidegate-state": {"state-url"},
    "tidegate-redis": {"users.acl"},
    "tidegate-metrics": {"key"},
    "tidegate-node": {"secret"},
    "tidegate-rabbitmq": {"definitions.json"},
    "tidegate-jobs": {"jobs-url"},
    "tidegate-events-redis": {"users.acl"},
    "tidegate-events": {"events-url"},
    "tidegate-regions": {"tls.crt", "tls.key"},
}
"""Secrets that an installation has beside the manifests, and the keys that pods of ours may read of them."""

FINDS_TRITONS = [{"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": ["list", "watch"]}]
RIGHTS = {
    "lease": [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {"apiGroups": ["coordination.k8s.io"], "resourceNames": ["tidegate"], "resources": ["leases"], "verbs": ["get", "update"]},
    ],
    "model-resources": [
        {"apiGroups": ["tidegate.io"], "resources": ["models"], "verbs": ["list", "watch"]},
        {"apiGroups": ["tidegate.io"], "resources": ["models/status"], "verbs": ["update"]},
    ],
}
"""What the gateway may do with the API server: always, and by a component. Tests drop each verb (`tests/wire/kubernetes`)."""

every_case = pytest.mark.parametrize("case", CASES, ids=str)


@every_case
def test_pods_are_restricted(case: Case) -> None:
    objects = render(case)
    for each in of_kind(objects, "Namespace"):
        assert each["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for workload in workloads(objects):
        spec = pod_spec(workload)
        pod = spec["securityContext"]
        assert (pod["runAsNonRoot"], pod["runAsUser"], pod["seccompProfile"]) == (True, 1000, {"type": "RuntimeDefault"})
        assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
        for container in containers(workload):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert not any("hostPort" in port for port in container.get("ports", []))
        allowed = {"emptyDir", "configMap", "secret", "projected", "persistentVolumeClaim", "image"}
        assert all(volume.keys() - {"name"} <= allowed for volume in spec.get("volumes", []))


@every_case
def test_only_who_asks_the_api_server_has_a_token(case: Case) -> None:
    objects = render(case)
    assert all(each["automountServiceAccountToken"] is False for each in of_kind(objects, "ServiceAccount"))
    bound = {(each["kind"], each["name"]) for binding in of_kind(objects, "RoleBinding") for each in binding["subjects"]}
    for workload in workloads(objects):
        spec = pod_spec(workload)
        assert named(objects, "ServiceAccount", spec["serviceAccountName"])
        assert spec["automountServiceAccountToken"] == (("ServiceAccount", spec["serviceAccountName"]) in bound)


@every_case
def test_rights_are_the_exact_verbs(case: Case) -> None:
    objects = render(case)
    assert of_kind(objects, "ClusterRole", "ClusterRoleBinding") == []
    roles = of_kind(objects, "Role")
    expected = [FINDS_TRITONS, *(RIGHTS[each] for each in case.components if each in RIGHTS)]
    assert sorted(str(role["rules"]) for role in roles) == sorted(map(str, expected))
    for binding in of_kind(objects, "RoleBinding"):
        assert named(objects, "Role", binding["roleRef"]["name"])["metadata"]["namespace"] == binding["metadata"]["namespace"]


@every_case
def test_images_are_named_by_digest(case: Case) -> None:
    objects = render(case)
    found = [container["image"] for workload in workloads(objects) for container in containers(workload)]
    volumes = [volume for workload in workloads(objects) for volume in pod_spec(workload).get("volumes", [])]
    found += [volume["image"]["reference"] for volume in volumes if "image" in volume]
    assert len(found) >= 2
    assert all(re.fullmatch(r"[a-z0-9.-]+(?:/[a-z0-9-]+)+@sha256:[0-9a-f]{64}", image) for image in found), found


@every_case
def test_secrets_are_files(case: Case) -> None:
    objects = render(case)
    assert of_kind(objects, "Secret") == [], "a manifest has no secret"
    for workload in workloads(objects):
        for container in containers(workload):
            assert not any("valueFrom" in each for each in container.get("env", []))
            assert "envFrom" not in container
        for volume in pod_spec(workload).get("volumes", []):
            if "secret" in volume:
                secret = volume["secret"]
                assert {item["key"] for item in secret["items"]} <= SECRETS[secret["secretName"]]
                assert secret["defaultMode"] == 0o440
                mounts = [mount for each in containers(workload) for mount in each["volumeMounts"] if mount["name"] == volume["name"]]
                assert mounts
                assert all(mount["readOnly"] for mount in mounts)


@every_case
def test_the_admin_port_is_on_loopback(case: Case) -> None:
    gateway = named(render(case), "Deployment", "gateway")
    (container,) = containers(gateway)
    assert env(container)["TIDEGATE_ADMIN_HOST"] == "127.0.0.1"
    assert env(container)["TIDEGATE_AUTHENTICATION"] == "true"
    assert 8080 not in {port["containerPort"] for port in container["ports"]}
