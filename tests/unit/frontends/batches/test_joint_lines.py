"""Which lines of a chunk are computed together, and that each has its own rows."""

from __future__ import annotations

from typing import Any

import orjson

from control_plane.batches.domain.input_lines import Line
from control_plane.core.algorithms.steps import finish
from control_plane.embeddings.domain.embedding_tensors import EmbeddedText
from control_plane.frontends.batches.joint_lines import MOST_INPUTS, JointLines, joint_steps


def line(given: Any, **more: Any) -> Line:
    return Line("a", orjson.dumps({"model": "m", "input": given, **more}))


def joint(*lines: Line) -> list[JointLines]:
    return finish(joint_steps(lines))


def test_lines_that_want_the_same_kind_are_computed_together() -> None:
    lines = [
        line("a"),
        line([1, 2]),
        line(["b", "c"], encoding_format="base64"),
        line("d", dimensions=2),
        line([3]),
        line("e", dimensions=2),
    ]

    groups = joint(*lines)

    assert [group.numbers for group in groups] == [(0, 2), (1, 4), (3, 5)]
    assert groups[0].request.inputs == (b"a", b"b", b"c")
    assert [group.request.are_tokens for group in groups] == [False, True, False]
    assert [group.request.dimensions for group in groups] == [None, None, 2]


def test_one_that_is_wrong_or_alike_to_no_other_is_computed_by_itself() -> None:
    assert joint(line("a"), line(""), line([1]), Line("a", b"{}")) == []


def test_a_call_is_no_larger_than_what_may_hold_up_a_caller() -> None:
    lines = [line(["a"] * 12) for _ in range(5)]
    groups = joint(*lines, line(["a"] * (MOST_INPUTS + 1)), line("b"))

    assert [group.numbers for group in groups] == [(0, 1), (2, 3)]
    assert all(len(group.request.inputs) <= MOST_INPUTS for group in groups)


def test_each_line_has_its_own_rows() -> None:
    (group,) = joint(line("a"), line(["b", "c"]))
    rows = [EmbeddedText(bytes(4), number) for number in range(3)]

    assert [(number, [row.tokens for row in own]) for number, _, own in group.split(rows)] == [(0, [0]), (1, [1, 2])]
