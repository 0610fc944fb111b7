"""What an answer from the cache costs, beside nginx answering by itself (`return 200`) with as many bytes.

    python -m perf.cache_hits [--rounds 5] [--duration-s 2] [--connections 1 8 64] [--only http|grpc]

One request over and over, to the model `echo` with its answers kept: all but the first are hits. `tidegate-keys` has the key of a
tenant with every limit. Load generator and server share this machine's cores. Writes perf/results/cache-hits.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from perf.echo_requests import MODEL, Echo
from perf.gateway_report import Case, Results, Run, commit, machine
from perf.interleaved import interleave, median_of
from perf.keys import LIMITED, make_keys
from perf.load_generators import Grpc, Http
from perf.peers.nginx import answering_nginx
from perf.processes import PROJECT, cpu_s, exit_on_sigterm, require_programs
from perf.serving import DOORS, tidegate

_TENSOR_BYTES = 384 * 4
_TARGET = 0.7
_KEEPS_ANSWERS = "response_cache { enable: true }\n"


@dataclass(frozen=True, slots=True)
class Peer:
    door: str
    name: str
    address: str
    pid: int


def main() -> None:
    arguments = _arguments()
    exit_on_sigterm()
    require_programs(("wrk", "nginx", "h2load"))
    results = _measure(arguments)
    rows = [{**asdict(case), "median": asdict(median_of(runs)), "rounds": [asdict(run) for run in runs]} for case, runs in results.items()]
    document = {"scenario": "cache-hits", "commit": commit(), "machine": machine(), **vars(arguments), "cases": rows}
    (PROJECT / "perf" / "results" / "cache-hits.json").write_text(json.dumps(document, indent=1) + "\n")
    print_table(results)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=DOORS, help="one door")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--duration-s", type=int, default=2, help="of one peer in one case in one round")
    parser.add_argument("--connections", type=int, nargs="+", default=[1, 8, 64])
    return parser.parse_args()


def _measure(arguments: argparse.Namespace) -> Results:
    echo = Echo(_TENSOR_BYTES)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidegate-perf-")))
        (folder / "state").mkdir(mode=0o700)
        key = make_keys(folder / "state", LIMITED)[LIMITED.name]
        generators = {"http": Http(echo, folder, key=key), "grpc": Grpc(echo, folder, key=key)}
        ways: dict[Case, Callable[[], Run]] = {}
        for peer in _peers(stack, echo, folder, [arguments.only] if arguments.only else list(DOORS)):
            if peer.name != "nginx":
                echo.check(peer.door, peer.address, key=key)
            for connections in arguments.connections:
                case = Case(peer.door, _TENSOR_BYTES, connections, peer.name)
                ways[case] = partial(_run, peer, generators[peer.door], connections, arguments.duration_s)
        return interleave(
            {case: ways[case] for case in sorted(ways, key=lambda case: (DOORS.index(case.door), case.connections))}, arguments.rounds
        )


def _peers(stack: contextlib.ExitStack, echo: Echo, folder: Path, doors: list[str]) -> Iterator[Peer]:
    repository = _repository(folder)
    flags = ["--model-repository", str(repository), "--load", MODEL]
    ours = {
        "tidegate": stack.enter_context(tidegate(flags)),
        "tidegate-keys": stack.enter_context(tidegate([*flags, "--authentication"], state=folder / "state")),
    }
    sizes = {"http": len(echo.http_answer().body), "grpc": len(echo.grpc_answer())}
    for door in doors:
        yield Peer(door, "nginx", *stack.enter_context(answering_nginx(door, sizes[door])))
        for name, started in ours.items():
            yield Peer(door, name, started.addresses[door], started.pid)


def _repository(folder: Path) -> Path:
    model = folder / "models" / MODEL
    shutil.copytree(PROJECT / "perf" / "models" / MODEL, model)
    config = model / "config.pbtxt"
    config.write_text(config.read_text() + _KEEPS_ANSWERS)
    return model.parent


def _run(peer: Peer, generator: Http | Grpc, connections: int, duration_s: int) -> Run:
    before_s = cpu_s(peer.pid)
    loaded = generator.run(peer.address, connections=connections, duration_s=duration_s)
    used_s = cpu_s(peer.pid) - before_s
    return Run(loaded.requests / loaded.seconds, loaded.p50_ms, loaded.p99_ms, used_s / max(loaded.requests, 1) * 1e6, loaded.errors)


def print_table(results: Results) -> None:
    """Every case, and whether the target is met."""
    table = Table("door", "connections", "peer", "requests/s", "p50 ms", "p99 ms", "CPU us/request", "of nginx's", "", box=None)
    for case, runs in results.items():
        run = median_of(runs)
        share = median_of([_Share(own.requests_per_s / nginx.requests_per_s) for own, nginx in _paired(results, case)]).share
        verdict = "" if case.peer == "nginx" else f"{'[green]met' if share >= _TARGET else '[red]not met'} (>= {_TARGET})"
        figures = (f"{run.requests_per_s:.0f}", f"{run.p50_ms:.3f}", f"{run.p99_ms:.3f}", f"{run.cpu_us:.0f}", f"{share:.2f}")
        table.add_row(case.door, str(case.connections), case.peer, *figures, verdict)
    Console(width=140).print(table)


@dataclass(frozen=True, slots=True)
class _Share:
    share: float


def _paired(results: Results, case: Case) -> list[tuple[Run, Run]]:
    nginx = results[Case(case.door, case.tensor_bytes, case.connections, "nginx")]
    return list(zip(results[case], nginx, strict=True))


if __name__ == "__main__":
    main()
