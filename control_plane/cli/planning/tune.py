"""`tidegate tune`: finds the model configuration with the most throughput within a p99 limit, on this
machine.

The search is in `tuning`; this module finds the model, prepares its requests and prints the result.
"""

from __future__ import annotations

import asyncio
import os
import platform
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from control_plane.cli.common.output import Shape, ShapeOption, print_found
from control_plane.core.errors import InvalidRequest, ModelNotFound
from control_plane.host.cpu_affinity import allowed_cpus
from control_plane.models.adapters.profile import with_profile
from control_plane.settings import TritonSettings, load_settings
from control_plane.triton.adapters.model_config import composing_models, config_file
from control_plane.triton.config_name import config_name_in_force
from control_plane.triton.embedded.installation import ensure_installed
from control_plane.tuning.adapters.config import TunedConfig, read_tuned_config, text_input
from control_plane.tuning.adapters.perf_analyzer import PerfAnalyzer, PerfAnalyzerLoad
from control_plane.tuning.adapters.report import Report, apply_recommendation, as_fields, print_table, write_report
from control_plane.tuning.adapters.server import EmbeddedTuningServers
from control_plane.tuning.domain.request_mix import is_json, parse_json, parse_texts, requests_of
from control_plane.tuning.domain.search import make_axes
from control_plane.tuning.tuner import Tuner, TuningPlan, TuningProgress, TuningResult

MIX_OF_MODEL = "samples_mix.tsv"
"""File in a model's folder with typical requests, used unless `--mix` names another."""


@dataclass(frozen=True, slots=True)
class _Subject:
    """The model that gets the requests, and the model whose configuration is tuned (a step of it, for an
    ensemble).
    """

    model: Path
    tuned: Path
    config_name: str

    @property
    def config(self) -> Path:
        return config_file(self.tuned, self.config_name)


def tune(
    model: Annotated[str, typer.Argument(help="The model that gets the requests; of an ensemble, one of its steps is tuned.")],
    p99_ms: Annotated[float, typer.Option(min=0.01, help="Highest p99 latency that is acceptable, in milliseconds.")] = 10.0,
    mix: Annotated[
        Path | None,
        typer.Option(
            help="File of typical requests: lines WEIGHT<TAB>TEXT or TEXT for a model of texts, else perf_analyzer's JSON. "
            f"\\[{MIX_OF_MODEL} in the model's folder]"
        ),
    ] = None,
    tuned: Annotated[str | None, typer.Option("--tune", help="Which of an ensemble's models to tune. \\[the last step's]")] = None,
    concurrency: Annotated[str, typer.Option(help="Numbers of requests in flight to try.")] = "1,8,32",
    budget_s: Annotated[float, typer.Option(min=5, help="Seconds that the whole search may take.")] = 300.0,
    out: Annotated[Path | None, typer.Option(help="Folder for config.pbtxt, table.txt, table.json, plot.png. \\[tuning/MODEL]")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Also write the recommended configuration to the model, keeping a .bak.")] = False,
    model_repository: Annotated[list[Path] | None, typer.Option(help="Folder of models; repeatable. \\[the project's two]")] = None,
    output: ShapeOption = Shape.TABLE,
) -> None:
    """Find the instances, threads, lanes, queue delay and CPUs that serve a model best on this machine.

    Maximizes requests per second within the p99 limit, at the best of the concurrencies. A configuration is
    recommended only if it beats the present one by more than noise.
    """
    settings = with_profile(load_settings({"model_repository": model_repository})).triton
    subject = _find(settings, model, tuned)
    config = read_tuned_config(subject.config)
    plan = _plan(config, _levels(concurrency), p99_ms, budget_s)
    mix = mix or subject.model / MIX_OF_MODEL
    remarks = Console(stderr=output is not Shape.TABLE)
    with tempfile.TemporaryDirectory(prefix="tidegate-mix-") as folder:
        requests = Path(folder, "requests.json")
        requests.write_text(_requests(mix, subject), encoding="utf-8")
        cache = settings.cache_dir.absolute()
        load = PerfAnalyzerLoad(PerfAnalyzer(cache, ensure_installed(cache).libs), model, requests)
        servers = EmbeddedTuningServers(settings, model=model, tuned=subject.tuned, config_of=config.text_of)
        with _progress() as report_progress:
            result = _run(Tuner(plan, servers=servers, load=load, report=report_progress))
    report = Report(subject.tuned.name, config, result, p99_ms, _machine(), str(mix))
    _finish(report, out or Path("tuning") / model, remarks, output)
    if apply:
        remarks.print(apply_recommendation(report), highlight=False, markup=False, soft_wrap=True)


def _find(settings: TritonSettings, model: str, tuned: str | None) -> _Subject:
    config_name = config_name_in_force(settings.model_config_name)
    folder = _folder_of(settings, model)
    steps = composing_models(folder, config_name)
    if tuned is not None and tuned not in (model, *steps):
        raise InvalidRequest(f"--tune {tuned}: {model} runs {', '.join(steps) or 'no other models'}; name one of these")
    name = tuned or (steps[-1] if steps else model)
    return _Subject(folder, _folder_of(settings, name), config_name)


def _folder_of(settings: TritonSettings, model: str) -> Path:
    found = [source.resolve() / model for source in settings.model_repository if (source / model).is_dir()]
    if not found:
        raise ModelNotFound(f"no model {model!r} in {', '.join(map(str, settings.model_repository))}")
    return found[0]


def _levels(text: str) -> tuple[int, ...]:
    levels = [part.strip() for part in text.split(",")]
    if not all(level.isdecimal() and 0 < int(level) <= 1024 for level in levels):
        raise InvalidRequest(f"--concurrency {text}: write numbers from 1 to 1024, such as 1,8,32")
    return tuple(sorted({int(level) for level in levels}))


def _plan(config: TunedConfig, levels: tuple[int, ...], p99_ms: float, budget_s: float) -> TuningPlan:
    on_cpu = config.runs_on_cpu(gpu_is_there=Path("/dev/nvidia0").exists())
    axes = make_axes(config.knobs, cpus=allowed_cpus(), on_cpu=on_cpu, limit_ms=p99_ms)
    return TuningPlan(axes, levels, p99_ms, budget_s)


def _requests(mix: Path, subject: _Subject) -> str:
    """Return the requests as perf_analyzer's input JSON. Raises InvalidRequest."""
    try:
        text = mix.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidRequest(f"{mix} cannot be read: {exc}; say with --mix what requests look like") from exc
    if is_json(text):
        return parse_json(text)
    tensor = text_input(config_file(subject.model, subject.config_name))
    if tensor is None:
        raise InvalidRequest(f"{mix}: {subject.model.name} does not take one text; write perf_analyzer's JSON instead")
    return requests_of(parse_texts(text), tensor)


def _run(tuner: Tuner) -> TuningResult:
    """Run the search; Ctrl-C or SIGTERM stops all servers it has started, then raises KeyboardInterrupt or
    typer.Exit.
    """
    try:
        return asyncio.run(_until_sigterm(tuner))
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None


async def _until_sigterm(tuner: Tuner) -> TuningResult:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await tuner.run()


@contextmanager
def _progress() -> Iterator[Callable[[TuningProgress], None]]:
    columns = (BarColumn(bar_width=30), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("starting", total=None)
        yield lambda now: progress.update(task, description=now.doing, completed=now.done, total=now.expected)


def _machine() -> dict[str, object]:
    return {
        "cpus": len(allowed_cpus()),
        "machine": platform.machine(),
        "processor": _processor(),
        "load_1_min": round(os.getloadavg()[0], 2),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "")


def _finish(report: Report, out: Path, remarks: Console, output: Shape) -> None:
    notes = write_report(report, out)
    print_found(as_fields(report), output, lambda: print_table(report, Console()))
    remarks.print(f"\nwritten to {out}: {', '.join(sorted(path.name for path in out.iterdir()))}", highlight=False, soft_wrap=True)
    for note in notes:
        remarks.print(note, highlight=False, markup=False)
