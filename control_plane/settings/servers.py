"""Settings of the model servers behind the frontends: one Triton, or a fleet of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from pydantic import ByteSize, Field, model_validator

from control_plane.core.endpoints import authority
from control_plane.settings.fields import (
    PROJECT_ROOT,
    ByteCount,
    CpuList,
    Group,
    ModelParameters,
    NameList,
    PathList,
    Seconds,
    StoreList,
    VariableList,
)
from control_plane.settings.triton_args import TritonArgs

_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SERVICE = rf"^(({_LABEL}/)?{_LABEL})?$"
"""Names of Kubernetes' namespaces and Services."""
_SERVICES = rf"^(({_LABEL}/)?{_LABEL}(,{_LABEL}){{0,9}})?$"


class TritonSettings(Group):
    """The Triton behind the gateway: embedded (started by us) or attached (run by others)."""

    model_repository: PathList = Field([PROJECT_ROOT / "model_repository", PROJECT_ROOT / "ensembles"])
    """Folders whose subfolders are models. A model name that occurs in two of them is an error."""

    model_store: StoreList = Field(default_factory=list)
    """Folders or URLs, such as `s3://BUCKET/PREFIX`, whose subfolders are models that are fetched when they
    are first asked for. Credentials come from the provider's own variables (`AWS_...`), files or roles, never
    from the URL. A model of `model_repository` hides a store's model of the same name."""

    warm_dir: Path | None = None
    """Folder on this machine, on disk or in a memory file system, for models fetched from `model_store`. Each
    running `tidegate` needs its own. Not given: `warm` in the state folder."""

    warm_bytes: ByteCount = ByteSize(64 * 2**30)
    """Most bytes in `warm_dir`, such as `200GiB`; the least valuable models are removed to make room. It must
    hold all models that are loaded or loading at the same time; with less, loads fail."""

    load: NameList | None = None
    """Models to load at the start; `*` means all. A model that fails to load is reported and the others are
    served. Not given: `text_embedding` from the project's own repositories; no model from other repositories
    or with an attached Triton."""

    model_parameter: ModelParameters = Field(default_factory=dict)
    """`MODEL:KEY=VALUE` entries that override `parameters` in models' configurations, such as
    `m:variant=int8`. Embedded Triton only. A value with a comma can only be given as an option, which is
    repeatable."""

    build_models: bool = False
    """Build the variants that are out of date, of models that have a recipe, in the background at the lowest
    CPU priority; a variant is served as soon as it is built and eligible. This runs the `build.py` of each
    model in `model_repository`; when off, `tidegate models build` does so on request. Without effect for
    Tritons that others run."""

    triton_url: str = ""
    """URL of a running Triton to attach to instead of starting one, `http://HOST:HTTP_PORT`. After it
    may come `?grpc_port=N&metrics_port=N&pool=NAME`; the two ports default to the next two numbers.
    `https://` uses TLS for all three ports; `&grpc_scheme=grpcs` or `grpc` says otherwise for gRPC.
    `&node=HOST:PORT` names the `tidegate node` that runs it, by which all is known of it that is known of
    an embedded one.
    Several URLs, separated by commas, are a fleet: each Triton must be able to load every model, and
    nobody else may load models there. Gateways that share a fleet must list all its URLs in the same
    spelling, or set the same `fleet_name`."""

    triton_ca: Path | None = None
    """PEM file with the authorities that may vouch for Tritons behind TLS (`https://` in `triton_url` or
    `servers_file`, or `?grpc_scheme=grpcs`). Not given: this machine's authorities. Read at the start, as the
    three files below are: restart the gateway after renewing them."""

    triton_certificate: Path | None = None
    """PEM file with the certificate that the gateway shows to Tritons that ask for one (mutual TLS), and its
    chain. Needs `triton_key`."""

    triton_key: Path | None = None
    """PEM file with the key of `triton_certificate`, without a passphrase."""

    triton_header_file: Path | None = None
    """File whose lines `NAME: VALUE` are header fields for every request to Tritons that others run, such as
    `authorization: Bearer ...` for a proxy in front of them. Over plain `http://` everybody on the way can
    read them."""

    model_config_name: str = "auto"
    """Name of the `configs/<name>.pbtxt` that Triton uses of each model. `auto` means `gpu` where there is an
    NVIDIA device and a library that computes on it (and, for models with variants, a variant for it); else
    `nvidia` where there is a device and `tritonserver` has an ONNX Runtime backend that computes on it; else
    the plain `config.pbtxt`."""

    tritonserver: Path | None = None
    """Program to start as the embedded Triton instead of the one in the wheel of `make setup`, such as
    `/opt/tritonserver/bin/tritonserver` in NVIDIA's image: release 24.10 or later. All backends in its folder
    `backends` are used, and of `python_backends` those whose names are free. Its Python models import what the
    running Python has, if its stub was built for that version, else what the machine's `python3` has."""

    triton_transport: Literal["unix", "tcp"] = "unix"
    """How the gateway reaches the embedded Triton: `unix` uses sockets that only this user can open; `tcp`
    uses free ports on loopback, so that Triton can be measured directly. With `tcp` every user of this
    machine may send it requests, and, with the secret that its command line shows, load code that then runs
    as this user."""

    triton_user: str = ""
    """User that the embedded Triton and its models run as, so that a model's code can read neither this
    process's environment nor its state; needs a start as root. That user must be able to read the models,
    this environment's Python and `cache_dir`; in the state folder it gets access to what Triton reads. Not
    given: the user of this process."""

    triton_env: VariableList = Field(default_factory=list)
    """Names of environment variables to pass on to the embedded Triton and its models, such as `HF_HOME`.
    Those that computing needs are always passed on (`PATH`, `HOME`, `LANG`, `TZ`, `LD_LIBRARY_PATH`,
    `CUDA_*`, `NVIDIA_*`, `OMP_*`, `MKL_*`, `TORCH_*` and similar, except names that sound like secrets).
    Every model can read what is passed on."""

    triton_arg: TritonArgs = Field(default_factory=list)
    """Further `tritonserver` flags for the embedded Triton, each as `--NAME=VALUE`, such as
    `--rate-limit=execution_count`; separated by blanks in a variable. Flags that one of our settings
    controls are refused. The others are not checked: Triton does not start with a flag that it does not
    know."""

    lock_model_control: bool = True
    """Let only the gateway list, load and unload models of the embedded Triton. When off, everybody on this
    machine may use Triton's repository API directly; the gateway then cannot know what is loaded, so it
    caches no responses."""

    load_timeout_s: Seconds = 300.0
    """Deadline of one model load, in seconds; after it the load has failed. The Python processes that an
    embedded Triton waits for are then killed; an attached Triton goes on loading, since Triton cannot cancel
    a load. Too short fails large models."""

    start_timeout_s: Seconds = 60.0
    """Seconds in which a started Triton must become live, and in which the Redis of `state_url` must answer when a gateway
    starts. Two is usual; the first start on a GPU takes longer."""

    start_stall_timeout_s: Seconds = 60.0
    """Seconds for which an embedded Triton that is not live yet may do nothing: take no CPU time, read nothing, log nothing. Then it
    is killed and started again, ahead of `start_timeout_s`. One that computes or reads at all is left alone, however slow. Too short
    ends one on a machine that gives it no time at all; raise it to hold a start in a debugger."""

    silence_timeout_s: Seconds = 30.0
    """Seconds for which an embedded Triton may say nothing to either of its liveness probes while its process is
    there; after them it is killed and started again. A shorter silence is a pause, after which everything is as
    before: too short replaces one that is swapped out. Raise it to hold Triton in a debugger. One that others run
    is never killed."""

    triton_cpus: CpuList = ()
    """CPUs for the embedded Triton and its Python stubs, such as `2-7`. Not given: all CPUs. Fewer CPUs than
    the models have threads make them slow."""

    model_cpus: CpuList = ()
    """CPUs for the model instances (Triton's host policy `cpu`), as one range such as `1-7`. Not given:
    Triton's CPUs."""

    cache_dir: Path = PROJECT_ROOT / ".cache"
    """Folder with the downloaded wheels and the unpacked Triton."""

    python_backends: Path = PROJECT_ROOT / "python_backends"
    """Folder with the project's Python-based backends."""


class FleetSettings(Group):
    """The fleet: several Tritons, and more models than fit into their memory."""

    servers: int = Field(1, ge=1, le=64)
    """Number of embedded Tritons, each a process with a model repository of its own. More than one is a
    fleet, in which models are loaded on demand. Each Triton takes some 100 MB before any model."""

    servers_file: Path | None = None
    """YAML list of Tritons that others run, instead of `triton_url`. It is read again when it changes, so
    that servers can join and leave at run time. Each entry has a `url` (as in `triton_url`) and optionally a
    `name` (default: host and port), a `pool`, `labels` and a `memory_budget`. A server removed from the list
    is drained: it gets no new requests, finishes those it has, and its models are unloaded. A list with
    errors is ignored as a whole."""

    triton_service: str = Field("", pattern=_SERVICES)
    """Kubernetes Service, `NAME` or `NAMESPACE/NAME`, whose pods are the fleet's Tritons, instead of
    `servers_file`: for a gateway that is itself a pod there, and may list and watch `endpointslices` in that
    namespace (not given: its own). Up to ten Services of one namespace have commas between them, such as
    `triton,triton-fallback`, one for each kind of server. A Service's ports are named `http`, `grpc` and `metrics`,
    and `node` where a `tidegate node` runs each Triton; its labels `tidegate.io/pool` and
    `tidegate.io/memory-budget` (such as `70Gi`) hold for each of its pods. A pod joins once it is ready, and is drained
    when it ends. While the API server is away the servers stay as they are."""

    kubernetes_lease: str = Field("", pattern=_SERVICE)
    """Lease of Kubernetes, `NAME` or `NAMESPACE/NAME`, by which gateways that are pods elect their
    fleet's leader, instead of a record in the Redis of `state_url`: the leader then goes on loading while that
    is away. The gateway may `create`, `get` and `update` it. All gateways of a fleet must have the same; stop
    all of them to change it, or two would lead."""

    model_resources: bool = False
    """Take what is wanted of the fleet's models from resources of kind `Model` (`kubectl apply`) in the pod's
    namespace, too: the gateway that leads applies them as owner `kubernetes`, and writes what came of it into
    their status. It may `list` and `watch` `models` of `tidegate.io`, and `update` `models/status`. While the API
    server is away all stays as it is."""

    kubernetes_api: str = Field("", pattern=r"^(([A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?)?$")
    """Host and port of the API server that the settings above ask, such as `10.0.0.1:443`. Not given: the one
    of the cluster that the gateway's pod is in, by the variables that Kubernetes gives each pod."""

    service_account_dir: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    """Folder with the pod's `token`, `namespace` and `ca.crt`, by which the settings above ask the API
    server. The default is where Kubernetes mounts them; another one for a token that is mounted by itself (a
    projected volume)."""

    pools: NameList = Field(default_factory=list)
    """Pools of the embedded servers, in their order, with commas between. A route can send its requests
    to one pool. Not given: every server serves everything."""

    fleet_name: str = Field("", pattern=r"^[A-Za-z0-9._-]{0,64}$")
    """Name of the fleet that gateways with one `state_url` share. Gateways with the same `state_url`
    and the same name share one fleet: one of them is its leader, which loads and unloads models. Not
    given: with `triton_url` a name made from the hosts and ports as they are written; with
    `servers_file` or `triton_service`, `default`. If one gateway writes `localhost` and another `127.0.0.1`, or one lists
    fewer servers, they form two fleets that load and unload against each other; the log shows the name
    at the start. Two different fleets must not share a Redis and a name: only one would get a leader,
    and the other would load nothing of its own."""

    memory_budget: ByteCount | None = None
    """Bytes that models may take on each server, such as `2GiB`; Triton itself does not count. Setting it
    turns on loading on demand and eviction. Not given: no bound, and a single server loads only the models
    that `load` names."""

    load_wait_s: Seconds = 30.0
    """Most seconds that a request waits for its model to load, within its own deadline. A request that would
    wait longer is refused at once with 503 and the expected time in `Retry-After`."""

    hedging: bool = False
    """Send a request that is late to a second server of the fleet, if another one has an idle instance of its model, and
    take the first answer. Only for models whose responses are cached or that declare `tidegate_repeatable`; for at
    most 10 % of the compute units asked for. When off, only routes with hedging of their own do so.
    Off by default: what it gains on a quiet machine has not been shown yet (`make perf-hedging`)."""

    @model_validator(mode="before")
    @classmethod
    def _take_pods_variables(cls, given: dict[str, object]) -> dict[str, object]:
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        # Only where it is asked for: others run in pods too, and a run's settings should not tell of the cluster.
        asks = any(given.get(name) for name in ("triton_service", "kubernetes_lease", "model_resources"))
        if asks and not given.get("kubernetes_api") and host and port.isdecimal():
            return {**given, "kubernetes_api": authority(host, int(port))}
        return given

    @property
    def is_on(self) -> bool:
        """Whether one of these settings makes a fleet; several URLs in `triton_url` also do."""
        return self.servers > 1 or self.memory_budget is not None or self.is_listed

    @property
    def is_listed(self) -> bool:
        """Whether a list that somebody else keeps says which servers there are."""
        return self.servers_file is not None or bool(self.triton_service)
