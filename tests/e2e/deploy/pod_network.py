"""The network of pods that are processes of this machine: a bridge, and a network namespace for each pod. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path


class Network:
    """The pods' network: a bridge, and a namespace for each pod."""

    def __init__(self, number: int) -> None:
        self.prefix, self.bridge = f"10.{100 + number // 250 % 100}.{number % 250}", f"tgb{number}"
        self.gateway, self._count, self.names = f"{self.prefix}.1", 20, list[str]()
        ip("link", "add", self.bridge, "type", "bridge")
        ip("address", "add", f"{self.gateway}/24", "dev", self.bridge)
        ip("link", "set", self.bridge, "up")

    def add(self, hosts: Mapping[str, str], address: str = "") -> tuple[str, str]:
        """Make a namespace with these hosts, and return its name and its address."""
        self._count += 1
        name, end = f"{self.bridge}p{self._count}", f"{self.bridge[3:]}v{self._count}"
        address = address or f"{self.prefix}.{self._count}"
        ip("netns", "add", name)
        self.names.append(name)
        ip("link", "add", f"a{end}", "type", "veth", "peer", "name", f"b{end}")
        ip("link", "set", f"a{end}", "master", self.bridge, "up")
        ip("link", "set", f"b{end}", "netns", name)
        for words in (("link", "set", "lo", "up"), ("address", "add", f"{address}/24", "dev", f"b{end}"), ("link", "set", f"b{end}", "up")):
            ip("-n", name, *words)
        folder = Path("/etc/netns", name)
        folder.mkdir(parents=True)
        (folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(f"{where} {host}\n" for host, where in hosts.items()))
        return name, address

    def remove(self, name: str) -> None:
        ip("netns", "delete", name)
        shutil.rmtree(f"/etc/netns/{name}")
        self.names.remove(name)

    def close(self) -> None:
        for name in list(self.names):
            self.remove(name)
        ip("link", "delete", self.bridge)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=60)


def may_have_namespaces() -> bool:
    return os.geteuid() == 0 and shutil.which("ip") is not None
