"""Waits until nobody outside is connected to this pod's Triton and node any more: the preStop hook of its container.

    python3 wait_until_drained.py --notice-s=35 --at-most-s=195 --ports=8500 --ports-of-triton=8000,8001

A pod that ends is marked `terminating` in its Service's EndpointSlices. Gateways see that, send it nothing more, load
its models elsewhere, and close their connections when the last request there has been answered; then SIGTERM may come.
Triton itself would not wait: at SIGTERM it resets new connections, and one idle keep-alive connection uses up all of
its exit time.

It needs nothing but Python's standard library and /proc, since it runs in NVIDIA's image. It always ends with 0:
Kubernetes goes on in any case, and an error would only be an event that says so.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path

_ESTABLISHED = "01"
_LOOK_S = 0.5
_QUIET_LOOKS = 4
"""Looks in a row without a connection: a probe's lasts for a moment, and so does the gap between two requests of a
client that reconnects."""

TABLES = ("/proc/net/tcp", "/proc/net/tcp6")


def connected(tables: Iterable[str], ports: Collection[int], ports_of_triton: Collection[int] = ()) -> int:
    """Return the number of established connections to these local ports (proc(5), /proc/net/tcp).

    To Triton's ports the pod's own node is connected as long as both live: from the address that it connects to, which
    no other pod has.
    """
    found = 0
    for table in tables:
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except FileNotFoundError:  # a kernel without IPv6
            continue
        for line in lines:
            _, local, remote, state, *_ = line.split()
            address, _, port = local.rpartition(":")
            is_counted = int(port, 16) in ports or (int(port, 16) in ports_of_triton and remote.rpartition(":")[0] != address)
            found += state == _ESTABLISHED and is_counted
    return found


def main(words: list[str], tables: Iterable[str] = TABLES) -> int:
    """Wait: `--notice-s` at least, in which gateways see that the pod ends, and `--at-most-s` at most."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--notice-s", type=float, default=35.0)
    parser.add_argument("--at-most-s", type=float, default=195.0)
    parser.add_argument("--ports", type=_ports, default=frozenset(), help="to which only others connect")
    parser.add_argument("--ports-of-triton", type=_ports, default=frozenset((8000, 8001)), help="to which the pod's own node connects, too")
    asked = parser.parse_args(words)
    begun_s = time.monotonic()
    quiet = 0
    while (passed_s := time.monotonic() - begun_s) < asked.at_most_s:
        quiet = 0 if connected(tables, asked.ports, asked.ports_of_triton) else quiet + 1
        if passed_s >= asked.notice_s and quiet >= _QUIET_LOOKS:
            break
        time.sleep(_LOOK_S)
    left = connected(tables, asked.ports, asked.ports_of_triton)
    print(f"waited {passed_s:.1f} s, {left} connections are left", flush=True)
    return 0


def _ports(text: str) -> frozenset[int]:
    return frozenset(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
