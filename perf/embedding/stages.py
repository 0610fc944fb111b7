"""Where the time of a request goes, from its client through gateway and Triton to the encoder and back; means, so that parts add up."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from statistics import fmean

import numpy as np

from control_plane.profiling.stages import Counted
from perf.embedding.peers import MODEL, Peer
from perf.embedding.report import STAGES_MIX, Stages
from perf.load import closed_loop
from perf.load.closed_loop import Ask
from perf.measurement import harness
from perf.measurement.interleaved import interleave, median_of
from perf.servers.triton_statistics import METRICS_PERIOD_S, metrics, statistics

_MODELS = (MODEL, "text_encoder")


def measure(peers: list[Peer], asks: Callable[[Peer, str], Iterator[Ask]], arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the stages by the number of callers, over binary HTTP; empty unless both Tidegate and Triton straight are among the peers."""
    by_name = {peer.name: peer for peer in peers}
    if not {"tidegate-http", "triton-http"} <= by_name.keys():
        return {}
    run = partial(_measure, by_name["tidegate-http"], by_name["triton-http"], asks, arguments.seconds)
    ways = {str(callers): partial(run, callers) for callers in arguments.callers}
    return {callers: asdict(median_of(runs)) for callers, runs in interleave(ways, arguments.rounds).items()}


def _measure(gateway: Peer, straight: Peer, asks: Callable[[Peer, str], Iterator[Ask]], seconds: float, callers: int) -> Stages:
    harness.say(f"stages of a request, {callers} callers")
    load = partial(_mean_ms, asks=asks, callers=callers, seconds=seconds)
    through_ms, before = load(gateway), Counts.at(straight)
    straight_ms = load(straight)
    return stages(through_ms, straight_ms, Counts.at(straight).since(before))


def _mean_ms(peer: Peer, *, asks: Callable[[Peer, str], Iterator[Ask]], callers: int, seconds: float) -> float:
    loaded = closed_loop.run(peer.protocol, peer.address, asks(peer, STAGES_MIX), callers=callers, duration_s=seconds)
    return fmean(np.concatenate(list(loaded.latencies_ms.values())))


@dataclass(frozen=True, slots=True)
class Counts:
    ensemble: Counted
    encoder: Counted
    batching: Mapping[str, float]
    """The encoder backend's own metrics."""

    @classmethod
    def at(cls, peer: Peer) -> Counts:
        assert peer.triton is not None
        time.sleep(METRICS_PERIOD_S)
        counted = (statistics(peer.triton["http"], model) for model in _MODELS)
        return cls(*counted, metrics(peer.triton["metrics"], "text_encoder"))

    def since(self, earlier: Counts) -> Counts:
        batching = {name: value - earlier.batching.get(name, 0.0) for name, value in self.batching.items()}
        return Counts(self.ensemble.since(earlier.ensemble), self.encoder.since(earlier.encoder), batching)


def stages(through_ms: float, straight_ms: float, counted: Counts) -> Stages:
    """Mean latencies through the gateway and straight at Triton, and what was counted during the latter, as parts of one request."""
    ensemble_ms = counted.ensemble.success_ns / max(counted.ensemble.requests, 1) / 1e6
    encoder_wait_ms, encoder_ms = _encoder(counted)
    return Stages(
        gateway=through_ms - straight_ms,
        client_and_http=straight_ms - ensemble_ms,
        encoder_wait=encoder_wait_ms,
        encoder=encoder_ms,
        scheduling=ensemble_ms - encoder_wait_ms - encoder_ms,
    )


def _encoder(counted: Counts) -> tuple[float, float]:
    """Waiting and computing, per request. The backend answers later than it returns to Triton, whose own figures say nothing of it."""
    batching = counted.batching
    waits_ms = batching["tidegate_batching_queue_seconds_total"] / batching["tidegate_batching_requests_total"] * 1e3
    computes_ms = batching["tidegate_batching_compute_seconds_total"] / batching["tidegate_batching_batches_total"] * 1e3
    return counted.encoder.phases_ns["queue"] / max(counted.encoder.requests, 1) / 1e6 + waits_ms, computes_ms
