"""A process that takes a fleet's Lease and calls Triton, in name only, while it may.

`python -m tests.contract.kubernetes.lease_holder HOLDER URL ACCOUNT`; prints a line with the time for each change: `called TOKEN`
for the first of calls that it might make, `refused` for the first that it might not.
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from control_plane.core.errors import UpstreamUnavailable
from control_plane.fleet.adapters.kubernetes.lease import KubernetesLease
from control_plane.fleet.leadership.election import LeaderElection
from control_plane.storage.kubernetes import KubernetesApi


async def main(holder: str, url: str, account: str) -> None:
    api = KubernetesApi(url, Path(account), keep_s=5.0)
    election = LeaderElection(KubernetesLease(api, namespace="tidegate", name="tidegate"), holder=holder)

    async def call() -> None:
        told = ""
        while True:
            try:
                now = f"called {election.require()}"
            except UpstreamUnavailable:
                now = "refused"
            if now != told:
                sys.stdout.write(f"{time.monotonic()} {now}\n")
                told = now
            await asyncio.sleep(0.01)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(election.run())
        tasks.create_task(call())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
