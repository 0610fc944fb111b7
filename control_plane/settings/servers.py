"""Settings of what stands behind the doors: one Triton, or a fleet of them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import ByteSize, Field

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


class TritonSettings(Group):
    """The Triton behind the gateway, embedded or attached."""

    model_repository: PathList = Field([PROJECT_ROOT / "model_repository", PROJECT_ROOT / "ensembles"])
    """Folders whose subfolders are models. A name in two of them is an error."""

    model_store: StoreList = Field(default_factory=list)
    """Where more models come from when they are wanted: folders, or such as `s3://BUCKET/PREFIX`, whose subfolders are models. Credentials
    are the provider's own (`AWS_...` variables, its files, roles), never in the URL. A model of `model_repository` hides one here."""

    warm_dir: Path | None = None
    """Folder on this machine, on disk or in a memory file system, that holds what was fetched of `model_store`; one `tidegate` each.
    Not given: `warm` in the state folder."""

    warm_bytes: ByteCount = ByteSize(64 * 2**30)
    """Bytes that it may hold, such as `200GiB`; what is worth least is removed for what is wanted. It must hold all models that are loaded
    or being loaded at a time, and less than that makes loads fail."""

    load: NameList | None = None
    """Models loaded at start; `*` is all. One that fails is reported and the rest is served.
    Not given: `text_embedding` from the project's own repositories, nothing from others' or into an attached Triton."""

    model_parameter: ModelParameters = Field(default_factory=dict)
    """`MODEL:KEY=VALUE`, over the `parameters` in a model's configuration: `text_encoder:variant=fp32` serves that variant.
    For the embedded Triton; a value with a comma needs the option, which is repeatable."""

    build_models: bool = False
    """Build what is not up to date of the models that have recipes, in the background and at the lowest priority, and serve a variant as
    soon as it is there and may be chosen. Runs the `build.py` of each model in `model_repository`; without it `tidegate models build` does.
    Has no effect with Tritons that others run."""

    triton_url: str = ""
    """Attach to a running Triton instead: `http://HOST:HTTP_PORT[?grpc_port=N&metrics_port=N&pool=NAME]`; the others default to the next
    two. Several, with commas between, are a fleet; each must be able to load every model, and nobody else may load there. Gateways that
    share them name all of them, and each alike, or have one `fleet_name`."""

    model_config_name: str = "auto"
    """Which `configs/<name>.pbtxt` of a model Triton uses; `auto` is `gpu` where there is an NVIDIA device and a library that computes on
    it (and, of models with variants, one for it), else the plain config."""

    triton_transport: Literal["unix", "tcp"] = "unix"
    """How the embedded Triton is reached: `unix`, by sockets that only this user can open, or `tcp`, by free ports on loopback, for
    measuring it straight. There every user of this machine may ask it anything, and, with the secret in its flags, load code that
    then runs as this user."""

    triton_user: str = ""
    """User as whom the embedded Triton and its models' processes run, so that code of models' reads neither this process's environment
    nor its state; needs to be started as root. That user must be able to read the models, this environment's Python and `cache_dir`; of
    the state folder it gets what Triton reads. Not given: this process's own."""

    triton_env: VariableList = Field(default_factory=list)
    """Variables of this process that the embedded Triton and its models' processes get besides what computing needs (`PATH`,
    `HOME`, `LANG`, `TZ`, `LD_LIBRARY_PATH`, `CUDA_*`, `NVIDIA_*`, `OMP_*`, `MKL_*`, `TORCH_*` and their like, less names that
    sound like secrets), by name, such as `HF_HOME`. Every model can read what is passed on."""

    triton_arg: TritonArgs = Field(default_factory=list)
    """Further flags of `tritonserver` for the embedded Triton, each as `--NAME=VALUE`, such as `--rate-limit=execution_count` or
    `--backend-config=python,shm-default-byte-size=4194304`; as a variable with blanks between. Those that say what a setting of
    ours says are refused; what Triton makes of the others is its own affair, and one that it does not know ends it at the start."""

    lock_model_control: bool = True
    """Whether the embedded Triton lists, loads and unloads models for the gateway only. Off, whoever is on this machine may use its
    repository API straight, so nobody knows what is loaded and no answers are kept."""

    load_timeout_s: Seconds = 300.0
    """Deadline of one load, in seconds. Past it the load has failed: the embedded Triton's Python processes that it waits for are ended;
    a Triton that others run goes on with it, since it cannot cancel a load."""

    start_timeout_s: Seconds = 60.0
    """Seconds a started Triton may take to become live. Two is usual; a GPU's first start takes longer."""

    triton_cpus: CpuList = ()
    """CPUs that the embedded Triton and its stubs run on, such as `2-7`; not given: all. Fewer than its models' threads makes it slow."""

    model_cpus: CpuList = ()
    """CPUs that the instances of models run on (Triton's host policy `cpu`), a range such as `1-7`; not given: those of Triton."""

    cache_dir: Path = PROJECT_ROOT / ".cache"
    """Holds the downloaded wheels and the unpacked Triton."""

    python_backends: Path = PROJECT_ROOT / "python_backends"
    """Our Python-based backends."""


class FleetSettings(Group):
    """Several Tritons, and more models than they have memory for."""

    servers: int = Field(1, ge=1, le=64)
    """Embedded Tritons, each a process of its own with a repository of its own. More than one is a fleet: a model is loaded where and
    when it is asked for. Each takes some 100 MB without any model."""

    servers_file: Path | None = None
    """YAML list of Tritons that others run, in place of `triton_url`; read again when it changes, so that servers join and leave while this
    runs. Each entry has a `url` as there, and may have a `name` (its host and port else), a `pool`, `labels` and a `memory_budget`. One
    that is gone from it gets no more requests; what it does ends, and its models are unloaded. A list with faults is not taken up."""

    pools: NameList = Field(default_factory=list)
    """What each of the embedded `servers` is for, in their order: names of pools, which routes choose. Not given: all serve everything."""

    fleet_name: str = Field("", pattern=r"^[A-Za-z0-9._-]{0,64}$")
    """Gateways that share a `state_url` and this name share one fleet, of which one of them loads and unloads. Not given: with `triton_url`
    made of the hosts and ports that it names, as they are written: where one says `localhost` and another `127.0.0.1`, or not all of them,
    are two fleets, of which each loads and unloads as if alone; the log says at the start which it is. With `servers_file` `default`.
    Two fleets that share a Redis and a name would wait for each other and load nothing but what the one that is first wants."""

    memory_budget: ByteCount | None = None
    """Bytes of models that each server holds at a time, such as `2GiB`; turns on loading on demand, and evicting for it. Triton itself is
    not in it. Not given: no bound, and with one server nothing is loaded but what is asked for by `load`."""

    load_wait_s: Seconds = 30.0
    """Seconds that a request may wait for its model's load, within its own deadline. One that would wait longer is refused with 503 and
    the expected time in `Retry-After`."""

    @property
    def is_on(self) -> bool:
        return self.servers > 1 or self.memory_budget is not None or self.servers_file is not None
