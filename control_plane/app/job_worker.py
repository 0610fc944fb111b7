"""The composition root of `tidegate jobs run`: a runner of jobs in a process of its own, which has gateways compute them.

It shares the gateways' job store, spool and broker. Stop, on SIGTERM or SIGINT: claim no more jobs -> let running jobs end
-> give the remaining claims back.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack

from control_plane.app.data_plane.jobs import open_jobs
from control_plane.app.stopping import StopSignals
from control_plane.app.stores import open_state_store, open_usage_store, wait_for_state_store
from control_plane.core.endpoints import TcpAddress
from control_plane.core.errors import StartupError
from control_plane.core.text.redaction import without_user
from control_plane.host.network.exposure import is_loopback
from control_plane.jobs.adapters.gateway_compute import GatewayCompute
from control_plane.objects.mirror import ObjectMirror
from control_plane.settings import Settings, parse_triton_url
from control_plane.triton.adapters.http.client import HttpClient

_log = logging.getLogger(__name__)

Announce = Callable[[list[str]], None]


class JobWorker:
    """The application of one `tidegate jobs run`; `run` runs jobs until a signal."""

    def __init__(self, settings: Settings) -> None:
        """Raises StartupError."""
        _refuse_contradictions(settings)
        self._settings = settings

    async def run(self, announce: Announce) -> None:
        """Run jobs until SIGTERM or SIGINT; call `announce` once they may be claimed. Raises StartupError,
        StoreUnavailable, in a group."""
        signals, settings = StopSignals(), self._settings
        signals.follow()
        url, timeout_s = settings.state.state_url, settings.triton.start_timeout_s
        if not await signals.finishes_first(wait_for_state_store(url, timeout_s=timeout_s)):
            return
        async with AsyncExitStack() as held:
            usage = await open_usage_store(settings.state.state_url, settings.process.state_dir, keep_records=settings.events.events_keep)
            held.push_async_callback(usage.close)
            services = await held.enter_async_context(open_jobs(settings, usage))
            assert services is not None, "refused before"
            state = await open_state_store(settings.state.state_url, settings.process.state_dir)
            held.push_async_callback(state.close)
            known = ObjectMirror(state)
            await known.start()
            compute = GatewayCompute([_client(url, settings) for url in settings.jobs.jobs_gateways], model_of=known.model_of)
            held.push_async_callback(compute.close)
            services.run_by(compute, weight_of=known.weight_of)
            services.deliver_by(known.webhook_secrets_of)
            services.open()
            async with asyncio.TaskGroup() as tasks:
                following = tasks.create_task(known.run(), name="known-state")
                loaded = tasks.create_task(compute.run(), name="loaded-models")
                running = tasks.create_task(services.run(), name="jobs")
                announce(settings.jobs.jobs_gateways)
                looking = tasks.create_task(tell_who_is_away(compute, settings.jobs.jobs_gateways), name="first-look")
                await signals.wait()
                draining = tasks.create_task(services.drain(settings.gateway.longest_drain_s), name="drain")
                second = tasks.create_task(signals.second.wait(), name="second-signal")
                await asyncio.wait((draining, second), return_when=asyncio.FIRST_COMPLETED)
                second.cancel()
                if not draining.done():
                    draining.cancel()
                    await services.drain(0.0)
                looking.cancel()
                loaded.cancel()
                running.cancel()
                following.cancel()


async def tell_who_is_away(compute: GatewayCompute, urls: Sequence[str]) -> None:
    """Say at the start which gateways do not answer: a name that is wrong would else show in jobs that wait alone."""
    for number in await compute.away():
        _log.warning("no answer from the gateway %s: jobs are handed to others, or wait, until it answers", without_user(urls[number]))


def _client(url: str, settings: Settings) -> HttpClient:
    """Make the client of a gateway, without connecting. Raises StartupError."""
    place = parse_triton_url(url, setting="--gateway")
    key = settings.admin.api_key
    return HttpClient(
        TcpAddress(place.host, place.http_port),
        max_connections=settings.jobs.jobs_at_once + 2,  # whether it lives, and what is loaded
        tls=ssl.create_default_context() if place.http_is_tls else None,
        headers=(("Authorization", f"Bearer {key.get_secret_value()}"),) if key is not None else (),
    )


def _refuse_contradictions(settings: Settings) -> None:
    if not settings.jobs.jobs_gateways:
        raise StartupError("name the gateways that compute: --gateway http://HOST:8000, several with commas between them")
    if not settings.jobs.jobs:
        raise StartupError("TIDEGATE_JOBS is off, so there are no jobs to run")
    if settings.state.state_url is None:
        raise StartupError("`tidegate jobs run` needs the --state-url of the gateways, where their jobs are")
    if settings.jobs.jobs_spool is None:
        raise StartupError("`tidegate jobs run` needs the gateways' spool, TIDEGATE_JOBS_SPOOL: a folder that all of them share")
    for url in settings.jobs.jobs_gateways:
        place = parse_triton_url(url, setting="--gateway")
        if not (place.http_is_tls or is_loopback(place.host) or settings.jobs.jobs_plaintext or settings.admin.api_key is None):
            raise StartupError(
                f"--gateway {without_user(url)}: without TLS the key of an administrator would cross the network for anyone to read; "
                "give an https:// address or, in a network that you trust, set TIDEGATE_JOBS_PLAINTEXT=true"
            )
