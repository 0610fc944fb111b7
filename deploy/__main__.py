"""`make deploy` and `make undeploy`, which pass on their variables as options."""

from __future__ import annotations

import argparse
import sys

from deploy.deployment import Console, Deployment
from deploy.errors import DeployError
from deploy.kubectl import Kubectl
from deploy.manifests import parse_images, render


def main(words: list[str]) -> int:
    """Deploy, or undeploy; 0 if it is done, 1 if not."""
    asked = _parser().parse_args(words)
    try:
        kubectl = Kubectl(asked.context)
        rendered = render(kubectl, asked.environment, parse_images(asked.images), require_digests=asked.action == "deploy")
        console = Console(say=lambda text: print(text, flush=True), ask=lambda question: _is_yes(question, given=asked.yes))
        console.say(f"cluster: {asked.context or kubectl.ask('config', 'current-context').strip()}")
        it = Deployment(kubectl, rendered, console, wait_s=asked.wait_s, model=asked.model)
        if asked.action == "deploy":
            it.deploy()
        else:
            it.undeploy(with_volumes=asked.volumes == "delete")
    except DeployError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted; what was applied stays, and the same command goes on from there", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m deploy")
    parser.add_argument("action", choices=("deploy", "undeploy"))
    parser.add_argument("environment", help="an overlay: local, gpu, gpu-shared, attached, or one of your own")
    parser.add_argument("--images", default="", help="NAME=REFERENCE@sha256:... with blanks between, in place of the overlay's")
    parser.add_argument("--context", default="", help="of kubectl; not given: the current one")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.add_argument("--wait-s", type=float, default=1800.0, help="longest wait for the workloads; a first pull of Triton takes minutes")
    parser.add_argument("--model", default="", help="the model of the one request; not given: the first that is ready")
    parser.add_argument("--volumes", choices=("keep", "delete"), default="keep", help="undeploy: what becomes of volumes and Secrets")
    return parser


def _is_yes(question: str, *, given: bool) -> bool:
    if given:
        return True
    if not sys.stdin.isatty():
        raise DeployError(f"{question} nobody is here to say yes", next_step="YES=1")
    return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
