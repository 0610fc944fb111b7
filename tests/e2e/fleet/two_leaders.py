"""One of two processes that share a Triton and a Redis: wants one model after the other, and loads them while it owns the fleet.

`python -m tests.e2e.fleet.two_leaders HOLDER REDIS_URL GRPC_SOCKET SECRET`; prints what it does, a line each.
"""

from __future__ import annotations

import asyncio
import random
import sys
from functools import partial
from itertools import cycle

from pydantic import SecretStr

from control_plane.core.endpoints import UnixAddress
from control_plane.core.errors import ControlPlaneError
from control_plane.core.model import ModelState
from control_plane.fleet.adapters.redis_lease import make_redis_lease
from control_plane.fleet.domain.fleet import ModelFacts, Server
from control_plane.fleet.domain.leadership.election import LeaseLimits
from control_plane.fleet.domain.placement.load_plan import states_of
from control_plane.fleet.leadership.election import LeaderElection
from control_plane.fleet.loading.load_plans import LoadPlans, PlanLimits
from control_plane.models.domain.description import ModelSpec
from control_plane.triton.adapters.control import ControlClient
from tests.fakes.triton.server_models import PlainModels

MIB = 2**20
BYTES = {"model_a": 40 * MIB, "model_b": 40 * MIB, "model_c": 50 * MIB, "model_d": 30 * MIB}
BUDGET = 100 * MIB
LIMITS = LeaseLimits(ttl_s=2.0, margin_s=0.4)


async def main(holder: str, url: str, path: str, secret: str) -> None:
    control = ControlClient(UnixAddress(path), control_secret=secret)
    election = LeaderElection(make_redis_lease(SecretStr(url)), holder=holder, limits=LIMITS)
    prepare = partial(asyncio.sleep, 0.3)  # as placing its files takes
    plans = LoadPlans(
        Server("triton", BUDGET),
        control,
        PlainModels(partial(control.load, timeout_s=20.0), partial(control.unload, timeout_s=10.0), prepare),
        require=election.require,
        bytes_of=BYTES.__getitem__,
        limits=PlanLimits(load_timeout_s=20.0, release_timeout_s=20.0, max_poll_s=0.1, call_visible_after_s=2 * LIMITS.margin_s),
    )

    async def work() -> None:
        choose = random.Random(holder)
        for name in cycle(choose.sample(list(BYTES), len(BYTES))):
            await election.wait_until_leader()
            try:
                ready = [each for each, state in states_of(await control.index()).items() if state is ModelState.READY and each != name]
                taken = sum(map(BYTES.__getitem__, ready)) + BYTES[name]
                victims = []
                while ready and taken > BUDGET:
                    victims.append(ready.pop(choose.randrange(len(ready))))
                    taken -= BYTES[victims[-1]]
                await plans.load(ModelFacts(ModelSpec(name), BYTES[name], load_s=0.3, service_s=0.0), victims)
                sys.stdout.write(f"loaded {name}\n")
            except ControlPlaneError as exc:
                sys.stdout.write(f"{type(exc).__name__}: {exc}\n")
                await asyncio.sleep(0.02)

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(election.run())
        tasks.create_task(work())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4]))
