"""What callers were answered, when, and what is made of it: pure, so that a drill's figures can be checked without servers."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

REPEATABLE, ONCE = "repeatable", "once"
"""Kinds of the callers that do no harm: those whose requests may be computed twice, and those whose may not."""
SLOW_S = 1.0
_DIGITS = re.compile(r"\d+(?:\.\d+)?")
_FOLDER = re.compile(r"/\S*tidegate-chaos-\w+")
_QUOTED_BYTES = 150


class Answer(NamedTuple):
    """One request, from sending it to its end."""

    kind: str
    """`REPEATABLE`, `ONCE`, or whatever a drill calls those that it sends itself."""
    began_s: float
    ended_s: float
    wrong: str = ""
    """What was said instead of the right answer."""


class Counted(NamedTuple):
    """What became of the requests that ended after a fault began; of the callers who do no harm."""

    asked: int
    failed: int
    failed_repeatable: int
    last_failure_s: float
    """Seconds from the fault; NaN without a failure."""
    longest_s: float
    """Of those that were answered rightly."""
    longest_repeatable_s: float
    """Of those of them that may be computed twice, and so may be sent elsewhere."""
    slow_until_s: float
    """Seconds from the fault until the last one was sent that took longer than a second, or failed; NaN where none did."""


def counted(answers: Iterable[Answer], fault_s: float) -> Counted:
    """Of the harmless callers' answers since `fault_s`."""
    since = [each for each in answers if each.kind in (REPEATABLE, ONCE) and each.ended_s >= fault_s]
    wrong = [each for each in since if each.wrong]
    return Counted(
        asked=len(since),
        failed=len(wrong),
        failed_repeatable=sum(each.kind == REPEATABLE for each in wrong),
        last_failure_s=max((each.ended_s - fault_s for each in wrong), default=math.nan),
        longest_s=max((each.ended_s - each.began_s for each in since if not each.wrong), default=math.nan),
        longest_repeatable_s=max(
            (each.ended_s - each.began_s for each in since if not each.wrong and each.kind == REPEATABLE), default=math.nan
        ),
        slow_until_s=max(
            (each.began_s - fault_s for each in since if each.wrong or each.ended_s - each.began_s > SLOW_S), default=math.nan
        ),
    )


def said(answers: Iterable[Answer], fault_s: float) -> dict[str, int]:
    """Error texts since `fault_s` by kind of caller, the most frequent first; figures in a text are no difference."""
    wrong = (each for each in answers if each.wrong and each.ended_s >= fault_s)
    return dict(Counter(f"{each.kind}: {_alike(each.wrong)}" for each in wrong).most_common())


def have_all_answered(answers: Sequence[Answer], kinds: Iterable[str], at_least: int) -> bool:
    """Whether each kind of caller has been answered rightly so often."""
    right = Counter(each.kind for each in answers if not each.wrong)
    return all(right[kind] >= at_least for kind in kinds)


def last_failure_s(answers: Iterable[Answer]) -> float:
    """When the last harmless request failed, on the clock of the answers; -inf where none did."""
    return max((each.ended_s for each in answers if each.wrong and each.kind in (REPEATABLE, ONCE)), default=-math.inf)


def _alike(text: str) -> str:
    one_line = _FOLDER.sub("...", " ".join(text.split()))
    cut = one_line[:_QUOTED_BYTES] + ("..." if len(one_line) > _QUOTED_BYTES else "")
    return cut[:4] + _DIGITS.sub("N", cut[4:])  # a status in front stays
