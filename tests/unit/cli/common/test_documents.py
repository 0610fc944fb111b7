from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from control_plane.cli.common.documents import bounded_text, read_documents
from control_plane.core.errors import InvalidRequest

ROUTE = "kind: Route\nname: search\nspec:\n  model: m\n"


def problem(text: str) -> str:
    with pytest.raises(InvalidRequest) as refused:
        read_documents([], text)
    return str(refused.value).replace("standard input", "-")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (ROUTE + "  modle: x\n", "-:5: Route search: modle: unknown field; did you mean 'model'?"),
        (ROUTE + "  cache:\n    is_on: true\n    tll_s: 3\n", "-:7: Route search: cache.tll_s: unknown field; did you mean 'ttl_s'?"),
        ("kind: Route\nname: search\nspec: {}\n", "-:3: Route search: model: is missing and must be given"),
        ("kind: Rout\nname: x\n", "-:1: unknown kind 'Rout'; did you mean 'Route'?"),
        ("kind: Tenant\nname: x\nspecs: {}\n", "-:3: unknown field 'specs'"),
        ("name: x\n", "-:1: `kind` is missing, such as `kind: Route`"),
        ("kind: Tenant\n", "-:1: `name` is missing"),
        ("kind: Tenant\nname: 12\n", "a number goes in quotes"),
        ("kind: Tenant\nname: a b\n", "the name 'a b' must be"),
        ("kind: Tenant\nname: a\nmetadata: {name: a}\n", "not both"),
        ("kind: Tenant\nmetadata: {name: a, labels: {}}\n", "-:2: metadata has one field: name"),
        (ROUTE + "  version: 3\n", "-:5: Route search: version: must be a valid string: write it in quotes"),
        (ROUTE + "  tenants: [a, b c]\n", "-:5: Route search: tenants.1:"),
        (ROUTE + "  model: n\n", "-:5: field 'model' is given twice"),
        (ROUTE + "---\n" + ROUTE, "-:6: Route 'search' is declared at standard input:1 as well; keep one".replace("standard input", "-")),
        ("kind: [\n", "this is not YAML"),
        ("kind: Tenant\nname: \tx: y\n", "-:2: this is not YAML"),
        ("- 1\n", "-:1: a document must have `kind`, `name` and `spec`"),
        ("kind: Tenant\nname: x\nspec: 3\n", "-:3: spec must be fields"),
        ("kind: Tenant\nname: x\nspec: !!python/object:os.system {}\n", "-:3: unknown tag"),
        ("kind: !secret Tenant\nname: x\n", "-:1: unknown tag '!secret'"),
        ("kind: Tenant\nname: x\nspec:\n  burst: " + "9" * 5000, "-:4: a number of 5000 digits"),
        ("kind: Tenant\nname: x\nspec:\n  burst: " + "9" * 30, "-:4: Tenant x: burst: must be less than or equal to"),
        ("", "no documents found"),
        (
            "a: &a [1, 1]\n"
            + "".join(f"{one}: &{one} [{', '.join(['*' + two] * 9)}]\n" for one, two in zip("bcdefghi", "abcdefgh", strict=True)),
            "with what its aliases stand for",
        ),
        ("[" * 5000, "nested too deeply"),
        (ROUTE + "  ? [a, b]\n  : 1\n", "-:5: the name of a field must be a text"),
        (ROUTE + "  deadline_s: !!int x\n", "-:5: 'x' is no int"),
        (ROUTE + "  deadline_s: !!int 0x1f\n", "-:5: '0x1f' is no int"),
        (ROUTE + "  deadline_s: !!float x\n", "-:5: 'x' is no float"),
        (ROUTE + '  deadline_s: !!float "1\\n"\n', "is no float"),
        ('kind: Tenant\nname: "\\U00110000"\n', "stands for no character of Unicode"),
        ('kind: Tenant\nname: "\\Uffffffff"\n', "stands for no character of Unicode"),
        (ROUTE + "  deadline_s: 1e999\n", "-:5: Route search: deadline_s:"),
    ],
)
def test_what_is_wrong_is_said_with_its_line_and_what_would_be_right(text: str, said: str) -> None:
    assert said in problem(text)


def test_all_that_is_wrong_is_said_at_once() -> None:
    assert len(problem(ROUTE + "  a: 1\n  b: 2\n---\nkind: Tenant\nname: t\nspec: {weight: -1}\n").splitlines()) == 3


def test_no_is_a_text_and_a_day_is_no_date() -> None:
    (found,) = read_documents([], ROUTE.replace("model: m", "model: no\n  version: '12'\n  deadline_s: 1e-1"))
    assert (found.spec, found.where) == ({"model": "no", "version": "12", "deadline_s": 0.1}, "standard input:1")


def test_folders_files_and_lists(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "a.yml").write_text("kind: tenants\nmetadata: {name: a}\n")
    (tmp_path / "b.json").write_text('[{"kind": "Tenant", "name": "b", "spec": {"weight": 2}}, {"kind": "Tenant", "name": "c"}]')
    (tmp_path / "notes.txt").write_text("nothing of ours")
    found = read_documents([tmp_path], "# only a comment\n")
    assert [(each.kind.name, each.name, dict(each.spec)) for each in found] == [
        ("Tenant", "b", {"weight": 2}),
        ("Tenant", "c", {}),
        ("Tenant", "a", {}),
    ]


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot be read: No such file"), (b"\xff", "not UTF-8"), (b" " * (2**24 + 1), "16 MiB")]
)
def test_a_file_that_is_none(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "x.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidRequest, match=said):
        read_documents([file])


def test_a_key_of_nested_aliases_costs_nothing() -> None:
    lists = "".join(f"  - &a{count} [{', '.join([f'*a{count - 1}'] * 10)}]\n" for count in range(1, 9))
    assert (
        problem("?\n  - &a0 [1, 1]\n" + lists + ": 1\n").splitlines()[0] == "-:2: the name of a field must be a text, not a list or fields"
    )


@pytest.mark.parametrize("text", [f"kind: Tenant\nname: {'x' * 10**5}\n", f"kind: Tenant\nname: x\n{'y' * 1000}: 1\n"])
def test_what_is_long_is_shown_cut(text: str) -> None:
    assert len(problem(text)) < 400


def test_a_file_of_something_else_is_not_answered_with_a_line_for_each_of_its_own() -> None:
    said = problem("- 1\n" * 1000).splitlines()
    assert (len(said), said[-1]) == (101, "and 900 more problems")


def test_a_pipe_in_a_folder_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_text("kind: Tenant\nname: b\n")
    assert [each.name for each in read_documents([tmp_path])] == ["b"]


@pytest.mark.parametrize(
    ("content", "said"), [(b"\xff", "standard input is not UTF-8"), (b" " * (2**24 + 1), "standard input has more than 16 MiB")]
)
def test_standard_input_has_the_bounds_of_a_file(content: bytes, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        bounded_text("standard input", io.BytesIO(content))


def test_a_link_that_leads_nowhere_is_not_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").symlink_to(tmp_path / "gone")
    with pytest.raises(InvalidRequest, match=r"a\.yaml cannot be read"):
        read_documents([tmp_path])
