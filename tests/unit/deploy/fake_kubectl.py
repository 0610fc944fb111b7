"""A `kubectl` for tests that plays a cluster whose state is a file; rendering is the real one's.

It notes each call with what it was given on standard input. `cluster.json` says what is there, and which calls fail.
Run as a program: fake_kubectl.py FOLDER WORDS... It starts a dozen times for one deployment, and so imports little.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any


def main(folder: Path, words: list[str]) -> int:
    given = "" if sys.stdin.isatty() or words[0] not in ("apply", "create", "diff", "delete") else sys.stdin.read()
    with (folder / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps({"words": words, "given": given}) + "\n")
    path = folder / "cluster.json"
    cluster = json.loads(path.read_text())
    failure = cluster["failures"].get(words[0])
    if failure:
        print(failure, file=sys.stderr)
        return 2 if words[0] == "diff" else 1
    status = answer(cluster, words, given)
    path.write_text(json.dumps(cluster))
    return status


def answer(cluster: dict[str, Any], words: list[str], given: str) -> int:
    objects: dict[str, Any] = cluster["objects"]
    handed = {key(each): each for each in objects_of(given)}
    match words[0]:
        case "config":
            print("kind-test")
        case "diff":
            changed = [name for name, each in handed.items() if cluster["applied"].get(name) != each]
            print("".join(f"+ {name}\n" for name in changed), end="")
            return int(bool(changed))
        case "apply" | "create":
            for name, each in handed.items():
                if words[0] == "create" and name in objects:
                    print("Error: AlreadyExists", file=sys.stderr)
                    return 1
                cluster["applied"][name] = each
                objects[name] = stored(each, cluster)
                print(f"{name} serverside-applied")
        case "delete":
            for name in handed:
                objects.pop(name, None)
        case "get" if words[1] == "nodes":
            print(json.dumps({"items": cluster["nodes"]}))
        case "get" if words[1] == "pods":
            print(json.dumps({"items": cluster["pods"]}))
        case "get":
            found = objects.get(words[1])
            if "--output=name" in words:
                print(words[1] if found else "")
            elif found is None:
                print("Error: NotFound", file=sys.stderr)
                return 1
            else:
                print(json.dumps(found))
        case "exec":
            print("tg_a.secret")
        case "port-forward":
            print(f"Forwarding from 127.0.0.1:{cluster['port']} -> 8000", flush=True)
            time.sleep(60)
        case _:
            print(f"unknown command {words[0]}", file=sys.stderr)
            return 1
    return 0


def objects_of(given: str) -> list[dict[str, Any]]:
    if not given:
        return []
    import yaml

    return [each for each in yaml.load_all(given, yaml.CSafeLoader) if each]


def key(it: dict[str, Any]) -> str:
    return f"{it['kind'].lower()}/{it['metadata']['name']}"


def stored(it: dict[str, Any], cluster: dict[str, Any]) -> dict[str, Any]:
    """The object as the API server gives it back: with what its controller says of it."""
    if it["kind"] not in ("Deployment", "StatefulSet"):
        return it
    wanted = it["spec"].get("replicas", 1)
    able = min(wanted, cluster["available"])
    spec = {"replicas": 1, **json.loads(json.dumps(it["spec"]))}
    if not cluster["knows_image_volumes"]:
        for volume in spec["template"]["spec"].get("volumes", []):
            volume.pop("image", None)
    status = {"observedGeneration": 2, "replicas": wanted, "updatedReplicas": wanted, "availableReplicas": able, "readyReplicas": able}
    managed = {"manager": "tidegate-deploy", "operation": "Apply", "fieldsV1": {"f:spec": {f"f:{name}": {} for name in it["spec"]}}}
    return {**it, "metadata": {**it["metadata"], "generation": 2, "managedFields": [managed]}, "spec": spec, "status": status}


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
