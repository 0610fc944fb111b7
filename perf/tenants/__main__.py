"""What one tenant's flood costs another at a model that both keep busy, through the gateway and the real Triton.

    python -m perf.tenants [--rounds 5] [--seconds 2] [--settle-s 6] [--callers 8] [--flood 50] [--models one-by-one batches texts]
                           [--limits 8 16 64]

`quiet` has so many callers throughout, who ask again when they were answered; `loud` as many, and then 50 times as many. So the model is
saturated either way, and each has half of it. `--limits` are values of TIDEGATE_MAX_IN_FLIGHT_PER_SHARED_MODEL (the shipped one, if none
is given), each a gateway of its own before one Triton, which may find that the model needs fewer: for `--settle-s` both ask, and nothing is
measured. What a small one costs is the throughput of both together. Gateways that are attached to a Triton keep no answers: the text is the
same each time. Callers, gateways and Triton share this machine's cores. Writes perf/results/tenants.json and .md.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.request
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing import get_context

import numpy as np

from control_plane.objects.domain.tenant import Tenant
from perf.load.inference_requests import triton_binary
from perf.load.keys import make_keys
from perf.measurement import harness
from perf.measurement.interleaved import interleave
from perf.measurement.report import Result
from perf.servers import serving
from perf.servers.processes import PROJECT
from perf.servers.serving import triton_addresses
from perf.tenants.callers import ask
from perf.tenants.report import FLOOD, MODELS, SHARE, SHIPPED_LIMIT, Case, Report, Run
from perf.waiting.clients import http_inference

QUIET, LOUD = "quiet", "loud"
_WORK_S = 0.005
_TEXT = "How do I reset the password of my bank?"
_KEYS_ARE_KNOWN_S = 1.0
_LEAD_S = 1.0
"""Time for callers to connect, and to fill the queue."""


def main() -> None:
    parser = harness.parser(__doc__, rounds=5, seconds=2.0)
    parser.add_argument("--settle-s", type=float, default=6.0, help="before it: a minute without load, and a gateway begins anew")
    parser.add_argument("--callers", type=int, default=8, help="of a tenant that keeps to its share")
    parser.add_argument("--flood", type=int, default=50, help="times as many callers")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--limits", nargs="+", type=int, default=[SHIPPED_LIMIT])
    harness.carry_out(Report, parser.parse_args(), _measure)


def _measure(arguments: argparse.Namespace) -> Result:
    repositories = [PROJECT / name for name in ("perf/models", "model_repository", "ensembles")]
    with serving.serving_models(repositories, [MODELS[name].model for name in arguments.models]) as started, ExitStack() as held:
        addresses = triton_addresses(started)
        gateways = {limit: _Gateway(limit, addresses, held) for limit in arguments.limits}
        time.sleep(_KEYS_ARE_KNOWN_S)
        callers = held.enter_context(ProcessPoolExecutor(2, mp_context=get_context("spawn")))
        ways = {
            Case(name, limit, load): partial(_run, callers, gateways[limit], name, _loud_callers(load, arguments), arguments)
            for name in arguments.models
            for limit in arguments.limits
            for load in (SHARE, FLOOD)
        }
        return Result(interleave(ways, arguments.rounds))


class _Gateway:
    """Gateway with a limit of its own on requests at a model, and a key for each tenant."""

    def __init__(self, limit: int, addresses: dict[str, str], held: ExitStack) -> None:
        triton = f"http://{addresses['http']}?grpc_port={_port(addresses['grpc'])}&metrics_port={_port(addresses['metrics'])}"
        variables = {"TIDEGATE_MAX_IN_FLIGHT_PER_SHARED_MODEL": str(limit)}
        started = held.enter_context(serving.tidegate(["--authentication", "--triton-url", triton], variables=variables))
        self.limit = limit
        self.address = started.addresses["http"]
        self._triton = addresses["http"]
        self.keys = make_keys(started.state, Tenant(QUIET), Tenant(LOUD))

    def answered(self, name: str) -> int:
        """How many requests Triton has, ever."""
        with urllib.request.urlopen(f"http://{self._triton}/v2/models/{MODELS[name].model}/stats", timeout=10) as answer:
            return sum(each["inference_stats"]["success"]["count"] for each in json.load(answer)["model_stats"])


def _port(address: str) -> str:
    return address.rpartition(":")[2]


def _loud_callers(load: str, arguments: argparse.Namespace) -> int:
    callers: int = arguments.callers * (arguments.flood if load == FLOOD else 1)
    return callers


def _run(callers: ProcessPoolExecutor, gateway: _Gateway, name: str, loud_callers: int, arguments: argparse.Namespace) -> Run:
    """Both tenants, each out of a process of its own; the loud one is under way when the quiet one is measured, and still when it ends."""
    harness.say(f"{name}, {loud_callers} callers of the loud tenant")
    requests = {tenant: _request(name, key) for tenant, key in gateway.keys.items()}
    loud_s = arguments.settle_s + arguments.seconds + 2 * _LEAD_S
    asking = callers.submit(ask, gateway.address, requests[LOUD], loud_callers, loud_s)
    time.sleep(_LEAD_S)
    callers.submit(ask, gateway.address, requests[QUIET], arguments.callers, arguments.settle_s).result()
    answered, began_s = gateway.answered(name), time.monotonic()
    quiet = callers.submit(ask, gateway.address, requests[QUIET], arguments.callers, arguments.seconds).result()
    both_per_s = (gateway.answered(name) - answered) / (time.monotonic() - began_s)
    return Run(
        quiet_p50_ms=quiet.percentile_ms(50),
        quiet_p99_ms=quiet.percentile_ms(99),
        quiet_per_s=quiet.requests / quiet.seconds,
        both_per_s=both_per_s,
        errors=quiet.errors + asking.result().errors,
    )


def _request(name: str, key: str) -> bytes:
    model = MODELS[name].model
    if name == "texts":
        request = triton_binary(model).encode(_TEXT)
    else:
        shape = (1, 1) if MODELS[name].has_batches else (1,)
        request = http_inference(model, "SECONDS", np.full(shape, _WORK_S, dtype=np.float32))
    return request.replace(b"Host: localhost\r\n", b"Host: localhost\r\nx-api-key: %b\r\n" % key.encode(), 1)


if __name__ == "__main__":
    main()
