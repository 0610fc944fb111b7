"""The guard rails of docs/how-to/kubernetes.md, asserted for every overlay with every component."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import pytest

from control_plane.settings import GatewaySettings, load_settings
from control_plane.triton.supervisor import STOP_GRACE_S
from tests.unit.deploy.rendered import (
    CASES,
    Case,
    Object,
    containers,
    env,
    named,
    of_kind,
    pod_spec,
    quantity,
    render,
    workloads,
)

END_S = 6.0
"""What follows a gateway's drain takes so long at most (`app/gateway/application`)."""
NODE_END_S = 0.5 + STOP_GRACE_S
"""What the end of a node takes at most (`app/node`), Triton's within it."""
MARGIN_S = 10.0

every_case = pytest.mark.parametrize("case", CASES, ids=str)


def labels_match(selector: Mapping[str, str], workload: Object) -> bool:
    return selector.items() <= workload["spec"]["template"]["metadata"]["labels"].items()


def is_serving(workload: Object) -> bool:
    return workload["metadata"]["name"] != "overflow"


@every_case
def test_resources_are_given_and_memory_is_not_overcommitted(case: Case) -> None:
    for workload in workloads(render(case)):
        for container in containers(workload):
            requests, limits = container["resources"]["requests"], container["resources"]["limits"]
            assert quantity(requests["cpu"]) > 0
            assert "cpu" not in limits, "a CPU limit stalls a process that has a core to spare"
            assert requests["memory"] == limits["memory"]
            gpus = {name: amount for name, amount in requests.items() if name.startswith("nvidia.com/")}
            assert gpus == {name: amount for name, amount in limits.items() if name.startswith("nvidia.com/")}
        for volume in pod_spec(workload).get("volumes", []):
            if "emptyDir" in volume:
                assert quantity(volume["emptyDir"]["sizeLimit"]) > 0
        in_memory = sum(
            quantity(volume["emptyDir"]["sizeLimit"])
            for volume in pod_spec(workload).get("volumes", [])
            if volume.get("emptyDir", {}).get("medium") == "Memory"
        )
        memory = sum(quantity(container["resources"]["limits"]["memory"]) for container in containers(workload))
        assert in_memory <= memory / 2


@every_case
def test_what_a_gateway_holds_fits_into_its_memory(case: Case) -> None:
    (gateway,) = containers(named(render(case), "Deployment", "gateway"))
    given = env(gateway)
    bounds = int(given.get("TIDEGATE_CACHE_BYTES", 256 * 2**20)) + int(given.get("TIDEGATE_MAX_BUFFERED_BYTES", 2**30))
    assert bounds + 512 * 2**20 <= quantity(gateway["resources"]["limits"]["memory"])


@every_case
def test_a_gpu_is_not_filled_to_the_brim(case: Case) -> None:
    objects = render(case)
    if case.overlay == "attached":
        return
    budget = quantity(named(objects, "Service", "triton")["metadata"]["labels"]["tidegate.io/memory-budget"])
    triton = named(objects, "Deployment", "triton")
    if (share := triton["metadata"].get("annotations", {}).get("tidegate.io/gpu-share")) is None:
        (container,) = containers(triton)
        shared_memory = quantity(
            next(each for each in pod_spec(triton)["volumes"] if each["name"] == "shared-memory")["emptyDir"]["sizeLimit"]
        )
        assert budget + shared_memory + 2**30 <= quantity(container["resources"]["limits"]["memory"])
    else:
        assert 0.75 * quantity(share) <= budget <= 0.9 * quantity(share)


@every_case
def test_a_pod_that_ends_has_the_time_that_it_takes(case: Case) -> None:
    objects = render(case)
    gateway = named(objects, "Deployment", "gateway")
    (container,) = containers(gateway)
    given = env(container)
    defaults = GatewaySettings()
    pause_s = float(given.get("TIDEGATE_DRAIN_PAUSE_S", defaults.drain_pause_s))
    longest_s = float(given.get("TIDEGATE_DRAIN_TIMEOUT_S", given.get("TIDEGATE_REQUEST_TIMEOUT_S", defaults.longest_drain_s)))
    # The pause does what a `sleep` in a preStop hook is used for.
    assert "lifecycle" not in container
    assert pause_s >= 5.0
    assert pod_spec(gateway)["terminationGracePeriodSeconds"] >= pause_s + longest_s + END_S + MARGIN_S
    for triton in (each for each in workloads(objects) if each["metadata"]["name"] == "triton"):
        (container,) = containers(triton)
        hook = container["lifecycle"]["preStop"]["exec"]["command"]
        (at_most_s,) = [float(word.partition("=")[2]) for word in hook if word.startswith("--at-most-s=")]
        assert at_most_s >= longest_s, "Triton has to answer what gateways wait for"
        assert pod_spec(triton)["terminationGracePeriodSeconds"] >= at_most_s + NODE_END_S + MARGIN_S


@every_case
def test_probes_look_at_the_server_and_not_at_its_models(case: Case) -> None:
    for workload in workloads(render(case)):
        if not is_serving(workload):
            continue
        for container in containers(workload):
            startup, liveness, readiness = (container[name] for name in ("startupProbe", "livenessProbe", "readinessProbe"))
            if "httpGet" in startup:
                assert startup["httpGet"] == {"path": "/v2/health/live", "port": "http"}
                assert "exec" in liveness or liveness["httpGet"] == startup["httpGet"]
                assert readiness["httpGet"] == {"path": "/v2/health/ready", "port": "http"}
            assert liveness["failureThreshold"] * liveness["periodSeconds"] >= 30
            assert startup["failureThreshold"] * startup["periodSeconds"] >= 600
            if workload["metadata"]["name"] == "triton":  # a restart by the node takes less than the kubelet's patience
                assert liveness["failureThreshold"] * liveness["periodSeconds"] >= 180
                assert startup["failureThreshold"] * startup["periodSeconds"] > float(env(container)["TIDEGATE_START_TIMEOUT_S"])


@every_case
def test_who_starts_a_triton_is_the_only_one_that_loads_there(case: Case) -> None:
    objects = render(case)
    tritons = [each for each in workloads(objects) if each["metadata"]["name"] == "triton"]
    gateway = next(containers(named(objects, "Deployment", "gateway")))
    assert ("TIDEGATE_NODE_SECRET_FILE" in env(gateway)) == bool(tritons)
    for triton in tritons:
        (container,) = containers(triton)
        assert container["args"] == ["node"]
        assert env(container)["TIDEGATE_NODE_SECRET_FILE"] == env(gateway)["TIDEGATE_NODE_SECRET_FILE"]
        assert "node" in {port["name"] for port in named(objects, "Service", "triton")["spec"]["ports"]}
        assert [each["secret"]["secretName"] for each in pod_spec(triton)["volumes"] if "secret" in each] == ["tidegate-node"]


@every_case
def test_each_serving_pod_may_be_evicted_one_at_a_time(case: Case) -> None:
    objects = render(case)
    budgets = of_kind(objects, "PodDisruptionBudget")
    for workload in filter(is_serving, workloads(objects)):
        (budget,) = [each["spec"] for each in budgets if labels_match(each["spec"]["selector"]["matchLabels"], workload)]
        assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


@every_case
def test_replicas_are_spread_and_kept_apart(case: Case) -> None:
    for workload in of_kind(render(case), "Deployment"):
        if not is_serving(workload):
            continue
        labels, spec = workload["spec"]["selector"]["matchLabels"], pod_spec(workload)
        spread = {each["topologyKey"]: each for each in spec["topologySpreadConstraints"]}
        assert spread.keys() == {"topology.kubernetes.io/zone", "kubernetes.io/hostname"}
        for each in spread.values():
            assert each["matchLabelKeys"] == ["pod-template-hash"], "pods of the old template would count"
            assert each["whenUnsatisfiable"] == "ScheduleAnyway", "a node without the label would take no pod"
            assert each["labelSelector"]["matchLabels"] == labels
        (apart,) = spec["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
        assert apart["podAffinityTerm"] == {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}


@every_case
def test_gpus_are_found_by_their_class(case: Case) -> None:
    for workload in workloads(render(case)):
        (container,) = containers(workload)
        if not any(name.startswith("nvidia.com/") for name in container["resources"]["requests"]):
            continue
        spec = pod_spec(workload)
        terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert all(rule["key"].startswith("nvidia.com/") for term in terms for rule in term["matchExpressions"])
        assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]


@every_case
def test_priorities_are_in_order(case: Case) -> None:
    objects = render(case)
    values = {each["metadata"]["name"]: each["value"] for each in of_kind(objects, "PriorityClass")}
    order = [values[f"tidegate-{name}"] for name in ("serving", "jobs", "overflow")]
    assert all(before > after for before, after in pairwise(order))
    assert order[-1] >= -10, "the cluster-autoscaler ignores pods below that"
    for workload in workloads(objects):
        assert pod_spec(workload)["priorityClassName"] == ("tidegate-serving" if is_serving(workload) else "tidegate-overflow")


@every_case
def test_an_update_fits_onto_the_gpus_that_there_are(case: Case) -> None:
    objects = render(case)
    for workload in of_kind(objects, "Deployment"):
        has_gpu = any(name.startswith("nvidia.com/") for each in containers(workload) for name in each["resources"]["requests"])
        if not is_serving(workload):
            continue
        expected = {"maxSurge": 0, "maxUnavailable": 1} if has_gpu else {"maxSurge": 1, "maxUnavailable": 0}
        assert workload["spec"]["strategy"] == {"type": "RollingUpdate", "rollingUpdate": expected}


@every_case
def test_variables_of_services_never_pass_for_settings(case: Case) -> None:
    assert all(pod_spec(workload)["enableServiceLinks"] is False for workload in workloads(render(case)))


@every_case
def test_jobs_are_taken_only_where_gateways_share_their_bodies(case: Case) -> None:
    objects = render(case)
    gateway = named(objects, "Deployment", "gateway")
    (container,) = containers(gateway)
    given = env(container)
    assert given["TIDEGATE_JOBS"] == str("jobs" in case.components).lower()
    if "jobs" not in case.components:
        return
    (mount,) = [each for each in container["volumeMounts"] if each["mountPath"] == given["TIDEGATE_JOBS_SPOOL"]]
    (volume,) = [each for each in pod_spec(gateway)["volumes"] if each["name"] == mount["name"]]
    claim = named(objects, "PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"])["spec"]
    assert claim["accessModes"] == ["ReadWriteMany"]
    assert quantity(claim["resources"]["requests"]["storage"]) >= 2 * quantity(given["TIDEGATE_JOBS_BYTES"].removesuffix("B"))
    # Redis has the records of all open jobs, with the most of header fields, and of those that two tenants have ended.
    records = int(given["TIDEGATE_JOBS_OPEN"]) * (4096 + 2048) + 2 * int(given["TIDEGATE_JOBS_KEPT_PER_TENANT"]) * 2048
    assert records < quantity("384Mi"), "maxmemory of the component redis"


@every_case
def test_names_point_at_something(case: Case) -> None:
    objects = render(case)
    keys = [(each["kind"], each["metadata"].get("namespace"), each["metadata"]["name"]) for each in objects]
    assert len(keys) == len(set(keys))
    for workload in workloads(objects):
        spec = pod_spec(workload)
        assert labels_match(workload["spec"]["selector"]["matchLabels"], workload)
        claims = [each["metadata"] for each in workload["spec"].get("volumeClaimTemplates", [])]
        volumes = {each["name"] for each in (*spec.get("volumes", []), *claims)}
        mounted = {mount["name"] for container in containers(workload) for mount in container.get("volumeMounts", [])}
        assert mounted == volumes
        for volume in spec.get("volumes", []):
            if "configMap" in volume:
                assert named(objects, "ConfigMap", volume["configMap"]["name"])
        for container in containers(workload):
            ports = {port["name"] for port in container.get("ports", [])}
            probed = {container[name]["httpGet"]["port"] for name in container if name.endswith("Probe") and "httpGet" in container[name]}
            assert probed <= ports
    for service in of_kind(objects, "Service"):
        (workload,) = [each for each in workloads(objects) if labels_match(service["spec"]["selector"], each)]
        ports = {port["name"] for container in containers(workload) for port in container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for route in of_kind(objects, "HTTPRoute", "GRPCRoute"):
        for backend in (each for rule in route["spec"]["rules"] for each in rule["backendRefs"]):
            assert backend["port"] in {port["port"] for port in named(objects, "Service", backend["name"])["spec"]["ports"]}


@pytest.mark.parametrize("overlay", ["gpu", "gpu-shared"])
def test_overflow_asks_for_what_a_triton_asks_for(overlay: str) -> None:
    objects = render(Case(overlay, ("model-images", "warm-overflow") if overlay == "gpu" else ("warm-overflow",)))
    triton, overflow = (named(objects, "Deployment", name) for name in ("triton", "overflow"))
    assert [each["resources"] for each in containers(overflow)] == [each["resources"] for each in containers(triton)]
    assert pod_spec(overflow)["affinity"]["nodeAffinity"] == pod_spec(triton)["affinity"]["nodeAffinity"]
    assert pod_spec(overflow)["tolerations"] == pod_spec(triton)["tolerations"]


@pytest.mark.parametrize("overlay", ["gpu", "gpu-shared"])
def test_a_capacity_buffer_is_of_the_tritons_that_there_are(overlay: str) -> None:
    objects = render(Case(overlay, ("capacity-buffer",)))
    (buffer,) = of_kind(objects, "CapacityBuffer")
    wanted = buffer["spec"]["scalableRef"]
    triton = named(objects, wanted["kind"], wanted["name"])
    assert triton["apiVersion"].partition("/")[0] == wanted["apiGroup"]
    assert triton["metadata"]["namespace"] == buffer["metadata"]["namespace"]
    assert not any(each["metadata"]["name"] == "overflow" for each in workloads(objects))


def test_every_variable_is_a_setting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("redis://a-secret-that-is-long-enough:6379\n")
    variables = {
        name: value
        for case in CASES
        for workload in workloads(render(case))
        for each in containers(workload)
        for name, value in env(each).items()
        if name.startswith("TIDEGATE_")
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / "secret") if name.endswith("_FILE") else value)
    load_settings()


def test_models_from_an_image_are_where_triton_looks() -> None:
    triton = named(render(Case("local", ("model-images",))), "Deployment", "triton")
    (container,) = containers(triton)
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "models"]
    assert mount == {"name": "models", "mountPath": "/models", "readOnly": True}
    assert env(container)["TIDEGATE_MODEL_REPOSITORY"] == "/models"


def test_redis_keeps_what_it_is_given_also_over_a_power_cut() -> None:
    configs = [config for case in CASES for each in of_kind(render(case), "ConfigMap") if (config := each["data"].get("redis.conf"))]
    assert configs
    for config in configs:
        assert {"appendonly yes", "appendfsync always", "maxmemory-policy noeviction"} <= set(config.splitlines())
