"""A node beside a Triton that others start and stop: what is loaded is known there as beside one of the node's own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from control_plane.core.endpoints import CONTROL_FIELD
from control_plane.settings import TritonSettings
from control_plane.triton.embedded.environment import triton_environment
from control_plane.triton.embedded.installation import TritonInstallation, ensure_installed
from control_plane.triton.embedded.shared_libraries import link_libpython
from tests.e2e import tidegate as servers
from tests.e2e.fleets import answer_of, ask, shown, write_models
from tests.e2e.node.test_nodes import hits, is_hit
from tests.e2e.nodes import free_ports, secret_file
from tests.e2e.raw_http import exchange, status
from tests.e2e.tidegate import LONG_S, Tidegate, command, command_line, descendants, living, proc_files, wait_for

SECRET = "the secret of Triton's calls for models"


@dataclass
class TheirTriton:
    """A Triton that the node does not start."""

    root: Path
    repository: Path
    http_port: int
    grpc_port: int
    metrics_port: int
    lock: bool = True
    mode: str = "explicit"
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http_port}?grpc_port={self.grpc_port}&metrics_port={self.metrics_port}"

    def start(self, *flags: str) -> None:
        """Start it as an operator would, who knows nothing of nodes but what their documents say."""
        found = installation()
        self.root.mkdir(parents=True, exist_ok=True)
        self.repository.mkdir(parents=True, exist_ok=True)
        link_libpython(self.root / "lib")
        locks = [f"--{flag}=model-repository:{CONTROL_FIELD}={SECRET}" for flag in ("http-restricted-api", "grpc-restricted-protocol")]
        with (self.root / "triton.log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    str(found.binary),
                    f"--model-repository={self.repository}",
                    f"--backend-directory={found.backends}",
                    f"--model-control-mode={self.mode}",
                    "--strict-readiness=false",
                    "--exit-timeout-secs=3",
                    *(f"--{each}-address=127.0.0.1" for each in ("http", "grpc", "metrics")),
                    f"--http-port={self.http_port}",
                    f"--grpc-port={self.grpc_port}",
                    f"--metrics-port={self.metrics_port}",
                    *(locks if self.lock else []),
                    *flags,
                ],
                env=triton_environment(os.environ, libraries=self.root / "lib"),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def answers(self) -> bool:
        try:
            return status(exchange(self.http_port, "GET", "/v2/health/live", timeout_s=2.0)) == 200
        except OSError:
            return False

    def kill(self) -> None:
        """End it with its stubs."""
        if self.process is None:
            return
        below = descendants(self.process.pid)
        self.process.kill()
        self.process.wait()
        for pid in living(below):
            os.kill(pid, signal.SIGKILL)
        self.process = None


def installation() -> TritonInstallation:
    return ensure_installed(TritonSettings().cache_dir)


def their_triton(root: Path, **how: object) -> TheirTriton:
    return TheirTriton(root / "theirs", root / "node/triton/repository", *free_ports(3), **how)  # type: ignore[arg-type]


@dataclass
class Site:
    root: Path
    triton: TheirTriton
    models: Path
    node: Tidegate
    gateways: list[Tidegate] = field(default_factory=list)

    @property
    def gateway(self) -> Tidegate:
        return self.gateways[0]

    def change(self, model: str, more: int) -> None:
        """Have it answer with so much more, once it is loaded anew."""
        code = self.models / model / "1/model.py"
        code.write_text(code.read_text().replace("int(self.name[1:])", f"{more} + int(self.name[1:])"))


def node_options(root: Path, triton: TheirTriton, models: Path, *, port: str = "0") -> tuple[str, ...]:
    (secret := root / "control-secret").write_text(SECRET + "\n")
    where = ("--attach", triton.url, "--attach-secret-file", str(secret), "--model-repository", str(models))
    return "node", "--node-port", port, "--node-secret-file", str(secret_file(root)), *where


def write_cached_models(root: Path) -> Path:
    write_models(root / "models", ("m0", "m1"))
    for model in ("m0", "m1"):
        with (root / "models" / model / "config.pbtxt").open("a") as config:
            config.write("response_cache { enable: true }\n")
    return root / "models"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    root = tmp_path_factory.mktemp("site")
    models, triton = write_cached_models(root), their_triton(root)
    with ExitStack() as ends:
        ends.callback(triton.kill)
        triton.start()
        site = Site(root, triton, models, servers.start_program(root / "node", node_options(root, triton, models)))
        ends.callback(lambda: site.node.kill())
        flags = ("--triton-url", f"{triton.url}&node={site.node.endpoints['node']}", "--memory-budget", "120MiB")
        site.gateways.append(servers.start(root / "gateway", *flags, "--node-secret-file", str(secret_file(root))))
        ends.callback(lambda: site.gateway.kill())
        yield site


def test_models_are_loaded_through_the_node_and_cached(site: Site) -> None:
    assert answer_of(ask(site.gateway, "m0")) == 1.0
    wait_for(lambda: hits(site.gateway, "m0"), what="hits")
    raw = exchange(site.triton.http_port, "POST", "/v2/repository/models/m0/unload", timeout_s=LONG_S)
    assert status(raw) == 403, "nobody else may unload"


def test_a_stub_that_dies_is_replaced(site: Site) -> None:
    assert answer_of(ask(site.gateway, "m1")) == 2.0
    assert site.triton.process is not None

    def stubs() -> set[int]:
        found = {pid: command_line(pid) for pid in living(descendants(site.triton.process.pid))}  # type: ignore[union-attr]
        return {pid for pid, line in found.items() if b"python_backend_stub" in line and b"/m1/" in line}

    (stub,) = stubs()
    os.kill(stub, signal.SIGKILL)
    wait_for(lambda: stubs() - {stub}, what="another process")
    wait_for(lambda: status(ask(site.gateway, "m1")) == 200, what="answers")


def test_one_that_comes_back_at_once_with_other_models_is_noticed(site: Site) -> None:
    """What it loaded by itself is unloaded, and no answer of before is given for what is loaded now."""
    assert answer_of(ask(site.gateway, "m0")) == 1.0
    wait_for(lambda: hits(site.gateway, "m0"), what="hits")
    node, known = site.node.process.pid, shown(site.gateway)["servers"][0]
    site.change("m0", 10)
    site.triton.kill()
    site.triton.start("--load-model=m0")
    wait_for(lambda: site.triton.answers(), what="another Triton")
    wait_for(lambda: answer_of_or_none(ask(site.gateway, "m0")) == 11.0, what="answers of what is loaded now")
    wait_for(lambda: hits(site.gateway, "m0"), what="hits")
    assert answer_of(ask(site.gateway, "m0")) == 11.0
    assert site.node.process.poll() is None
    assert site.node.process.pid == node
    assert known["name"] == shown(site.gateway)["servers"][0]["name"]
    assert "unloading m0, of which nobody knows what they are" in site.node.said()


def answer_of_or_none(raw: bytes) -> float | None:
    return answer_of(raw) if status(raw) == 200 else None


def test_a_frozen_one_keeps_its_models(site: Site) -> None:
    assert status(ask(site.gateway, "m0")) == 200
    wait_for(lambda: hits(site.gateway, "m0"), what="hits")
    assert site.triton.process is not None
    said = site.node.said().count("attached to again")
    site.triton.process.send_signal(signal.SIGSTOP)
    try:
        wait_for(lambda: "has said nothing for" in site.node.said(), what="the node's notice")
    finally:
        site.triton.process.send_signal(signal.SIGCONT)
    wait_for(lambda: "answers again" in site.node.said(), what="its return")
    wait_for(lambda: is_hit(ask(site.gateway, "m0")), what="hits")
    assert site.node.said().count("attached to again") == said


def test_a_node_that_ends_leaves_it_alone_and_the_next_one_takes_it(site: Site) -> None:
    assert status(ask(site.gateway, "m0")) == 200
    assert site.triton.process is not None
    place = site.node.endpoints["node"]
    assert site.node.stop() == 0, site.node.said()
    assert site.triton.process.poll() is None
    assert site.triton.answers()
    port = place.rpartition(":")[2]
    site.node = servers.start_program(site.root / "node", node_options(site.root, site.triton, site.models, port=port))
    wait_for(lambda: status(ask(site.gateway, "m0")) == 200, what="answers")
    wait_for(lambda: hits(site.gateway, "m0"), what="hits")


def test_one_that_comes_late_is_waited_for_and_one_without_a_lock_is_used_without_hits(tmp_path: Path) -> None:
    models, triton = write_cached_models(tmp_path), their_triton(tmp_path, lock=False)
    with ExitStack() as ends:
        ends.callback(triton.kill)
        options = node_options(tmp_path, triton, models)
        with (tmp_path / "node.txt").open("w") as said:
            arguments = (options[0], "--state-dir", str(tmp_path / "node"), *options[1:])
            node = subprocess.Popen(command(*arguments), stdout=said, stderr=said, env={**os.environ, "COLUMNS": "160"})
        ends.callback(node.wait)
        ends.callback(node.kill)
        wait_for(lambda: "waiting for Triton at" in (tmp_path / "node.txt").read_text(), what="its word")
        triton.start()
        endpoints = tmp_path / "node/endpoints.json"
        wait_for(endpoints.exists, what="the node")
        assert "its calls for models need no secret" in (tmp_path / "node.txt").read_text()
        flags = ("--triton-url", f"{triton.url}&node={json.loads(endpoints.read_text())['node']}", "--memory-budget", "120MiB")
        gateway = servers.start(tmp_path / "gateway", *flags, "--node-secret-file", str(secret_file(tmp_path)))
        ends.callback(gateway.kill)
        for _ in range(4):
            assert not is_hit(ask(gateway, "m0"))


@pytest.mark.parametrize("mode", ["none", "poll"])
def test_one_in_another_mode_is_refused_with_what_would_be_right(tmp_path: Path, mode: str) -> None:
    (tmp_path / "models").mkdir()
    triton = their_triton(tmp_path, mode=mode)
    with ExitStack() as ends:
        ends.callback(triton.kill)
        triton.start()
        options = node_options(tmp_path, triton, tmp_path / "models")
        done = subprocess.run(
            command(options[0], "--state-dir", str(tmp_path / "node"), *options[1:]),
            capture_output=True,
            text=True,
            timeout=LONG_S,
            check=False,
            env={**os.environ, "COLUMNS": "160"},
        )
    assert done.returncode != 0
    assert "start it with --model-control-mode=explicit" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_gateway_starts_an_own_tritonserver(tmp_path: Path) -> None:
    """Through a link, as a package manager would make it."""
    (link := tmp_path / "tritonserver").symlink_to(installation().binary)
    write_models(tmp_path / "models", ("m0",))
    gateway = servers.start(tmp_path / "state", "--tritonserver", str(link), "--model-repository", str(tmp_path / "models"), "--load", "m0")
    try:
        assert answer_of(ask(gateway, "m0")) == 1.0
        lines = [line.split("\0")[0] for line in proc_files(descendants(gateway.process.pid), "cmdline").values()]
        assert str(installation().binary.resolve()) in lines
    finally:
        gateway.kill()
    refused = servers.refused_start("--tritonserver", str(tmp_path / "none"))
    assert f"--tritonserver {tmp_path}/none: there is no such file" in refused.stdout + refused.stderr
