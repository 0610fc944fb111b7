"""A `kubectl` for tests that plays a cluster whose state is a file; rendering is the real one's.

It notes each call with what it was given on standard input. `cluster.json` says what is there, and which calls fail.
The program itself is a few lines of shell that ask the test's own process: it starts a dozen times for one deployment,
and Python would start for longer than it answers.
"""

from __future__ import annotations

import json
import socketserver
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests import http_server

PROGRAM = """#!/bin/bash
if [ "$1" = kustomize ]; then
    kept="{renderings}/$(cksum < "$2/kustomization.yaml" | tr ' ' -)"
    if [ ! -f "$kept" ]; then "{real}" "$@" > "$kept.new" || exit; mv "$kept.new" "$kept"; fi
    exec cat "$kept"
fi
case $1 in apply|create|diff|delete) given=$(cat) ;; esac
exec 3<> /dev/tcp/127.0.0.1/{port}
printf '%s\\0' $# "$@" "$given" >&3
read -r status descriptor <&3
cat <&3 >&"$descriptor"
[ "$1" != port-forward ] || exec sleep 60
exit "$status"
"""
"""The scripted `kubectl`. What the real one has rendered is not rendered again for each test."""


@contextmanager
def serving(folder: Path) -> Iterator[int]:
    """Answer the program's calls from that folder; yields the port that it asks."""

    class Call(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            told = b""
            while told.count(b"\0") < 2 or told.count(b"\0") < 2 + int(told.split(b"\0", 1)[0]):
                told += self.request.recv(1 << 20)
            count, *words, given, _ = told.decode().split("\0")
            assert len(words) == int(count)
            status, said, error = called(folder, words, given)
            self.wfile.write(f"{status} {2 if error else 1}\n{error or said}".encode())

    with socketserver.TCPServer(("127.0.0.1", 0), Call) as server, http_server.serving(server):
        yield server.server_address[1]


def called(folder: Path, words: list[str], given: str) -> tuple[int, str, str]:
    """The exit status of a call, what it prints, and what it says instead on standard error."""
    with (folder / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps({"words": words, "given": given}) + "\n")
    path = folder / "cluster.json"
    cluster = json.loads(path.read_text())
    failure = cluster["failures"].get(words[0])
    if failure:
        return (2 if words[0] == "diff" else 1), "", failure
    answered = answer(cluster, words, given)
    path.write_text(json.dumps(cluster))
    return answered


def answer(cluster: dict[str, Any], words: list[str], given: str) -> tuple[int, str, str]:
    objects: dict[str, Any] = cluster["objects"]
    handed = {key(each): each for each in yaml.load_all(given, yaml.CSafeLoader) if each}
    match words[0]:
        case "config":
            return 0, "kind-test", ""
        case "diff":
            changed = [name for name, each in handed.items() if cluster["applied"].get(name) != each]
            return int(bool(changed)), "".join(f"+ {name}\n" for name in changed), ""
        case "apply" | "create":
            for name, each in handed.items():
                if words[0] == "create" and name in objects:
                    return 1, "", "Error: AlreadyExists"
                cluster["applied"][name] = each
                objects[name] = stored(each, cluster)
            return 0, "".join(f"{name} serverside-applied\n" for name in handed), ""
        case "delete":
            for name in handed:
                objects.pop(name, None)
            return 0, "", ""
        case "get" if words[1] in ("nodes", "pods"):
            return 0, json.dumps({"items": cluster[words[1]]}), ""
        case "get":
            found = objects.get(words[1])
            if "--output=name" in words:
                return 0, words[1] if found else "", ""
            return (0, json.dumps(found), "") if found else (1, "", "Error: NotFound")
        case "exec":
            return 0, "tg_a.secret", ""
        case "port-forward":
            return 0, f"Forwarding from 127.0.0.1:{cluster['port']} -> 8000\n", ""
        case _:
            return 1, "", f"unknown command {words[0]}"


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
