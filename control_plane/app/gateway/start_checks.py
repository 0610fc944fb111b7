"""Checks of a gateway's settings before anything starts: ports that nobody guards, and CPUs that there are not."""

from __future__ import annotations

from control_plane.core.errors import StartupError
from control_plane.core.text.cpus import format_cpus, is_range
from control_plane.host.cpu_affinity import require_cpus
from control_plane.host.network.exposure import refusal
from control_plane.settings import Settings


def refuse_exposure(settings: Settings) -> None:
    """Refuse addresses that other machines reach while callers show neither keys nor certificates. Raises StartupError."""
    callers_show_keys = settings.authentication.authentication
    clients_show_certificates = settings.tls.tls_client_ca is not None
    for host, setting, is_authenticated in (
        (settings.gateway.host, "--host", callers_show_keys or clients_show_certificates),
        (settings.admin.admin_host, "--admin-host", callers_show_keys),
    ):
        reason = refusal(host, setting=setting, authentication_is_configured=is_authenticated)
        if reason is not None:
            raise StartupError(reason)


def require_usable_cpus(settings: Settings) -> None:
    """Require that the CPUs in the settings exist, and are enough. Raises StartupError."""
    process, triton = settings.process, settings.triton
    require_cpus(process.gateway_cpus, setting="--gateway-cpus", at_least=process.workers)
    for setting, cpus in (("--triton-cpus", triton.triton_cpus), ("--model-cpus", triton.model_cpus)):
        require_cpus(cpus, setting=setting)
        if cpus and settings.is_attached:
            raise StartupError(f"{setting} is for the embedded Triton; an attached Triton is pinned by whoever starts it")
    if not is_range(triton.model_cpus):
        raise StartupError(f"--model-cpus {format_cpus(triton.model_cpus)}: Triton takes a range only, such as 3-7")
