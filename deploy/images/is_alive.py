"""Says by its exit status whether this container's node and its Triton are alive: the liveness probe of their container.

    python3 is_alive.py --heartbeat=/var/lib/tidegate/heartbeat --at-most-s=30 --url=http://127.0.0.1:8000/v2/health/live

Asking Triton alone would not notice a node that is frozen beside it: requests are answered, and nobody loads models,
replaces processes that die, or starts Triton anew.

It needs nothing but Python's standard library, since it runs in NVIDIA's image. What it prints is the event that the
kubelet writes.
"""

from __future__ import annotations

import argparse
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

_ASK_S = 3.0
"""Longest wait for Triton; the kubelet's for this program is longer."""


def main(words: list[str]) -> int:
    """Return 0 if both are alive; otherwise print which is not, and return 1."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--heartbeat", type=Path, required=True, help="file in the node's state folder")
    parser.add_argument("--at-most-s", type=float, default=30.0, help="age of a heartbeat of a node that is alive")
    parser.add_argument("--url", required=True, help="of Triton, which answers it with 200 if it is alive")
    asked = parser.parse_args(words)
    why = _why_node_is_dead(asked.heartbeat, asked.at_most_s) or _why_triton_is_dead(asked.url)
    if why:
        print(why)
    return 1 if why else 0


def _why_node_is_dead(heartbeat: Path, at_most_s: float) -> str:
    try:
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - float(heartbeat.read_text())
    except (OSError, ValueError) as exc:
        return f"the node's heartbeat cannot be read: {exc}"
    # Not a number is neither; and nothing is from the future but what another boot of the machine has left.
    return "" if -1.0 <= age_s <= at_most_s else f"the node's event loop ran last {age_s:.0f} s ago"


def _why_triton_is_dead(url: str) -> str:
    # Proxies of the environment are for the world outside.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=_ASK_S):
            return ""
    except (OSError, ValueError) as exc:
        return f"Triton is not live: {exc}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
