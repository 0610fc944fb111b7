"""`tidegate audit` against the admin API on a real port."""

from __future__ import annotations

import json
from dataclasses import replace

from control_plane.audit.domain.entry import Actor, change_of
from control_plane.cli.admin import audit
from tests.aio import run
from tests.unit.admin.admin_bench import Bench
from tests.unit.cli.command import Tidegate


def test_who_what_and_why(tidegate: Tidegate, at_keyless: tuple[str, str]) -> None:
    assert tidegate("tenants", "set", "acme", "--burst", 5, "--reason", "the fair, ü [x]", *at_keyless).status == 0
    assert tidegate("tenants", "set", "acme", "--burst", 9, *at_keyless).status == 0
    listed = tidegate("audit", "list", *at_keyless).out.splitlines()
    assert [" ".join(line.split()).split(" anonymous at 127.0.0.1 ")[1] for line in listed[1:]] == [
        "create tenant acme the fair, ü [x]",
        "replace tenant acme burst 5 -> 9",
    ]
    assert len(tidegate("audit", "list", "--last", 1, *at_keyless).out.splitlines()) == 2


def test_a_log_of_several_pages_is_read_to_its_end(tidegate: Tidegate, at_keyless: tuple[str, str], keyless: Bench) -> None:
    for _ in range(2 * audit._PAGE + 1):
        run(keyless.audit.append(change_of(Actor("me"), "create", "tenant", "x")))
    assert len(tidegate("audit", "export", *at_keyless).out.splitlines()) == 2 * audit._PAGE + 1
    assert tidegate("audit", "verify", *at_keyless).status == 0


def test_of_a_log_that_keeps_the_newest_these_are_verified(tidegate: Tidegate, at_keyless: tuple[str, str], keyless: Bench) -> None:
    log = keyless.audit
    for number in range(1, 6):
        run(log.append(change_of(Actor("me"), "create", "tenant", f"t{number}")))
    log.kept = 3
    checked = tidegate("audit", "verify", *at_keyless)
    assert (checked.status, checked.err) == (0, "entries 3 to 5 are as they were written, those before are gone\n")
    assert tidegate("audit", "verify", "--head", checked.out.strip(), *at_keyless).status == 0
    gone = tidegate("audit", "verify", "--head", f"2:{log.entries[1].hash}", *at_keyless)
    assert (gone.status, "has no entry 2 any more: it begins with 3" in gone.err) == (1, True)
    log.entries[3] = replace(log.entries[3], at_s=1.0)
    assert "entry 4 has been changed" in tidegate("audit", "verify", *at_keyless).err


def test_what_was_written_is_verified_and_what_was_changed_is_found(
    tidegate: Tidegate,
    at_keyless: tuple[str, str],
    keyless: Bench,
) -> None:
    entries = keyless.audit.entries
    assert tidegate("audit", "verify", *at_keyless)[:2] == (0, "")
    for number in range(1, 4):
        tidegate("tenants", "set", "acme", "--burst", number, *at_keyless)
    checked = tidegate("audit", "verify", *at_keyless)
    head = checked.out.strip()
    assert (checked.status, head, checked.err) == (0, f"3:{entries[-1].hash}", "3 entries are as they were written\n")
    assert tidegate("audit", "verify", "--head", head, *at_keyless).status == 0
    exported = [json.loads(line) for line in tidegate("audit", "export", "--after", 1, *at_keyless).out.splitlines()]
    assert [(entry["number"], entry["hash"]) for entry in exported] == [(each.number, each.hash) for each in entries[1:]]

    kept, last = list(entries), entries.pop()
    cut = tidegate("audit", "verify", "--head", head, *at_keyless)
    assert (cut.status, "it had entry 3, and now ends with 2" in cut.err) == (1, True)
    entries.append(replace(last, change=replace(last.change, who="nobody")))
    assert "entry 3 has been changed" in tidegate("audit", "verify", *at_keyless).err
    entries[:] = kept
    assert "written anew" in tidegate("audit", "verify", "--head", f"2:{'0' * 64}", *at_keyless).err
    assert "is not NUMBER:HASH" in tidegate("audit", "verify", "--head", "x", *at_keyless).err
