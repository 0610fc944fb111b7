"""`tidegate apply | diff | get | delete | export | schema`: declared objects, over the admin API.

Files are checked here, by the schema that the admin API has as well, before anything is sent.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from control_plane.cli.common.changing import differences, text_of
from control_plane.cli.common.options import AdminUrlOption, ReasonOption, StateDirOption, admin_client
from control_plane.cli.common.output import Output, Shape, ShapeOption, print_documents, print_found
from control_plane.cli.common.printing import printable, remark
from control_plane.core.errors import ControlPlaneError, ErrorCode, InvalidRequest

if TYPE_CHECKING:
    from control_plane.admin.client import AdminClient
    from control_plane.cli.common.documents import Document

_DIFFERS = 1
_FAILED = 2
"""Exit status of a `diff` that could not be made, as `diff` and `kubectl diff` have it."""
_STDIN = "-"
_TRIES = 4
"""Tries while the gateway says that its store is away, a second apart unless it says otherwise."""

FilesOption = Annotated[
    list[str], typer.Option("--file", "-f", metavar="FILE|DIR|-", help="YAML or JSON file, folder of such, or - for input; repeatable.")
]
MaybeFilesOption = Annotated[
    list[str] | None, typer.Option("--file", "-f", metavar="FILE|DIR|-", help="Delete what these files declare; repeatable.")
]
OwnerOption = Annotated[str, typer.Option(help="Who applies: one that differs for each set of files, such as ci.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Take over objects that another owner applies.")]
OutputOption = Annotated[Output, typer.Option("--output", "-o", help="Output format.")]


def apply(
    file: FilesOption,
    owner: OwnerOption = "apply",
    force: ForceOption = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Change nothing, and say what would change.")] = False,
    reason: ReasonOption = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Make and change objects as files declare them. A second time changes nothing.

    Fields that these files gave before and give no more get their defaults; what others have set otherwise stays.
    """
    documents = _in_order(_read(file))
    client = admin_client(state_dir, admin_url, reason)
    failed, results = 0, _Results(output)
    with results:
        for number, each in enumerate(documents):
            try:
                done = _apply(client, each, owner=owner, force=force, dry_run=dry_run)
            except ControlPlaneError as exc:
                if exc.code is ErrorCode.UPSTREAM_UNAVAILABLE:
                    remark("not applied: " + ", ".join(f"{left.kind.name} {left.name}" for left in documents[number:]))
                    raise
                failed += 1
                remark(f"error: {each.where}: {exc}")
                continue
            results.add(done, _line_of(done) + (" (dry run)" if dry_run else ""))
            for warning in done["warnings"]:
                remark(f"warning: {each.where}: {warning}")
    if not failed and all(done["outcome"] == "unchanged" for done in results.found):
        remark("nothing to change: everything is as the files declare it")
    if failed:
        raise typer.Exit(1)


def diff(
    file: FilesOption,
    owner: OwnerOption = "apply",
    force: ForceOption = False,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Show what `apply` would change. Exits with 0 if nothing, 1 if something, and 2 if that cannot be told."""
    try:
        client, results = admin_client(state_dir, admin_url), _Results(output)
        with results:
            for each in _in_order(_read(file)):
                done = _apply(client, each, owner=owner, force=force, dry_run=True)
                if done["outcome"] != "unchanged":
                    results.add(done, *_differences(done))
    except ControlPlaneError as exc:
        for line in str(exc).splitlines():
            remark(f"error: {line}")
        raise typer.Exit(_FAILED) from exc
    if results.found:
        raise typer.Exit(_DIFFERS)


def get(
    kind: Annotated[str, typer.Argument(help="Tenant, Price, Model, Route or RolloutPolicy; also as `routes`.")],
    name: Annotated[str | None, typer.Argument(help="The object's name. \\[all of the kind]")] = None,
    output: OutputOption = Output.YAML,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Print objects as `apply` takes them: only the fields that differ from their defaults."""
    from control_plane.admin.declared.kinds import kind_named

    found, client = kind_named(kind), admin_client(state_dir, admin_url)
    held = client.ask_all("objects", found.name) if name is None else [client.ask("GET", "objects", found.name, name)]
    print_documents(map(_document, held), output, is_one=name is not None)


def delete(
    kind: Annotated[str | None, typer.Argument(help="Kind of the object, such as Route.")] = None,
    name: Annotated[str | None, typer.Argument(help="The object's name.")] = None,
    file: MaybeFilesOption = None,
    reason: ReasonOption = None,
    output: ShapeOption = Shape.TABLE,
    admin_url: AdminUrlOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Delete an object, or all that files declare; of these, what is not there counts as deleted."""
    from control_plane.admin.declared.kinds import kind_named

    if (file is None) == (kind is None or name is None):
        raise InvalidRequest("say what to delete: either `delete KIND NAME`, such as `delete Route search`, or `delete -f FILE`")
    client = admin_client(state_dir, admin_url, reason)
    named = [(kind_named(kind).name, name)] if kind is not None and name is not None else []
    failed = 0
    with _Results(output) as results:
        for each, called in named or [(each.kind.name, each.name) for each in reversed(_in_order(_read(file or [])))]:
            try:
                client.ask("DELETE", "objects", each, called)
                outcome, told = "deleted", f"{each} {called} deleted"
            except ControlPlaneError as exc:
                if named or exc.code is ErrorCode.UPSTREAM_UNAVAILABLE:
                    raise
                if exc.code is not ErrorCode.OBJECT_NOT_FOUND:
                    failed += 1
                    remark(f"error: {each} {called}: {exc}")
                    continue
                outcome, told = "absent", f"{each} {called} is not there"
            results.add({"kind": each, "name": called, "outcome": outcome}, told)
    if failed:
        raise typer.Exit(1)


def export(output: OutputOption = Output.YAML, admin_url: AdminUrlOption = None, state_dir: StateDirOption = None) -> None:
    """Print every object that files can declare, as `apply` takes them. API keys are never among them."""
    from control_plane.admin.declared.kinds import KINDS

    client = admin_client(state_dir, admin_url)
    print_documents([_document(held) for kind in KINDS for held in client.ask_all("objects", kind)], output)


def schema(
    crd: Annotated[bool, typer.Option("--crd", help="Print Kubernetes' definition of kind Model, for kubectl apply -f -.")] = False,
) -> None:
    """Print the JSON Schema of the documents that `apply` takes, for editors and checks."""
    from control_plane.admin.declared.kinds import json_schema

    if crd:
        from control_plane.operator.definition import definition

        print_documents([definition()], Output.YAML, is_one=True)
        return
    typer.echo(json.dumps(json_schema(), indent=2))


class _Results:
    """Results of a command, one for each object: printed at once for people, and for programs as one list at the end,
    also where the command fails half way.
    """

    def __init__(self, shape: Shape) -> None:
        self._shape = shape
        self.found: list[Mapping[str, Any]] = []

    def add(self, result: Mapping[str, Any], *lines: str) -> None:
        self.found.append(result)
        if self._shape is Shape.TABLE:
            typer.echo("\n".join(map(printable, lines)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        print_found(self.found, self._shape, lambda: None)


def _read(files: Iterable[str]) -> list[Document]:
    from control_plane.cli.common.documents import bounded_text, read_documents

    named = list(files)
    return read_documents(
        [Path(each) for each in named if each != _STDIN], bounded_text("standard input", sys.stdin.buffer) if _STDIN in named else None
    )


def _in_order(documents: Iterable[Document]) -> list[Document]:
    """Sort them so that what others refer to comes first."""
    from control_plane.admin.declared.kinds import KINDS

    order = list(KINDS)
    return sorted(documents, key=lambda each: order.index(each.kind.name))


def _apply(client: AdminClient, document: Document, *, owner: str, force: bool, dry_run: bool) -> Mapping[str, Any]:
    options = {"owner": owner, "force": str(force).lower(), "dry_run": str(dry_run).lower()}
    path = "objects", document.kind.name, document.name
    done: Mapping[str, Any] = client.ask("PATCH", *path, body=document.spec, query=options, tries=_TRIES)
    return done


def _line_of(done: Mapping[str, Any]) -> str:
    """One line on one object, such as `Route search changed: model a -> b`."""
    line = f"{done['kind']} {done['name']} {done['outcome']}"
    if done["outcome"] != "changed":
        return line
    changes = differences(done["before"], done["after"])
    return f"{line}: " + ", ".join(f"{field} {text_of(old)} -> {text_of(new)}" for field, old, new in changes)


def _differences(done: Mapping[str, Any]) -> Iterator[str]:
    """Yield one object's difference, a line for each field: `-` as it is, `+` as it would be; of a new one what is not
    as by default.
    """
    from control_plane.admin.declared.kinds import KINDS, without_defaults

    is_new = done["before"] is None
    after = without_defaults(KINDS[done["kind"]], done["after"]) if is_new else done["after"]
    yield f"{done['kind']} {done['name']}" + (" (new)" if is_new else "")
    for field, old, new in differences(done["before"] or {}, after):
        if not is_new:
            yield f"-  {field}: {text_of(old)}"
        yield f"+  {field}: {text_of(new)}"


def _document(held: Mapping[str, Any]) -> dict[str, Any]:
    from control_plane.admin.declared.kinds import document_of, kind_named

    return document_of(kind_named(held["kind"]), held["name"], held["spec"])
