"""What callers were answered, when, and what is made of it: pure, so that a drill's figures can be checked without servers."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

REPEATABLE, ONCE = "repeatable", "once"
"""Kinds of the callers that do no harm: those whose requests may be computed twice, and those whose may not."""
CHAT_STREAM, GENERATE_STREAM, MODEL_STREAM = "chat stream", "generate_stream", "ModelStreamInfer"
STREAMS = (CHAT_STREAM, GENERATE_STREAM, MODEL_STREAM)
"""Kinds of those whose answers come piece by piece, of a model that may compute them twice: until the first piece has come."""
HARMLESS = (REPEATABLE, ONCE, *STREAMS)
LOST, HUNG, BROKEN_OFF, REFUSED = "connection lost", "no answer within", "broken off:", "refused for now:"
CUT_SHORT, WRONG_ANSWER = "ended as if it were whole", "a wrong answer"
"""How a text begins that says what is wrong: the connection broke; nothing came for too long; pieces came, then an error; it is
said when to come again; pieces came, then an end that tells of nothing wrong; another one's answer. Each other text is an error."""
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
    refused_repeatable: int
    """Of these, those who were told when to come again."""
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
        refused_repeatable=sum(each.kind == REPEATABLE and each.wrong.startswith(REFUSED) for each in wrong),
        last_failure_s=max((each.ended_s - fault_s for each in wrong), default=math.nan),
        longest_s=max((each.ended_s - each.began_s for each in since if not each.wrong), default=math.nan),
        longest_repeatable_s=max(
            (each.ended_s - each.began_s for each in since if not each.wrong and each.kind == REPEATABLE), default=math.nan
        ),
        slow_until_s=max(
            (each.began_s - fault_s for each in since if each.wrong or each.ended_s - each.began_s > SLOW_S), default=math.nan
        ),
    )


class Streamed(NamedTuple):
    """What became of the streams that ended after a fault began."""

    streams: int
    streams_refused: int
    """Before they began, and told when to come again."""
    streams_failed: int
    """With an error in place of a first piece, though they could be sent again."""
    streams_broken_off: int
    """With an error after it, or of what is sent once."""
    streams_lost: int
    """Without a word: the connection broke, or nothing came until the caller gave up."""
    streams_cut_short: int
    """As if they were whole, or with a wrong piece."""
    streams_last_failure_s: float
    """Seconds from the fault; NaN without a failure."""
    streams_longest_s: float
    """Of those that were whole."""


def streamed(answers: Iterable[Answer], fault_s: float) -> Streamed:
    """Of the answers that came piece by piece since `fault_s`."""
    since = [each for each in answers if each.kind in STREAMS and each.ended_s >= fault_s]
    wrong = [each for each in since if each.wrong]
    refused, broken_off, lost, cut_short = (
        sum(each.wrong.startswith(how) for each in wrong) for how in (REFUSED, BROKEN_OFF, (LOST, HUNG), (CUT_SHORT, WRONG_ANSWER))
    )
    return Streamed(
        streams=len(since),
        streams_refused=refused,
        streams_failed=len(wrong) - refused - broken_off - lost - cut_short,
        streams_broken_off=broken_off,
        streams_lost=lost,
        streams_cut_short=cut_short,
        streams_last_failure_s=max((each.ended_s - fault_s for each in wrong), default=math.nan),
        streams_longest_s=max((each.ended_s - each.began_s for each in since if not each.wrong), default=math.nan),
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
    return max((each.ended_s for each in answers if each.wrong and each.kind in HARMLESS), default=-math.inf)


def _alike(text: str) -> str:
    one_line = _FOLDER.sub("...", " ".join(text.split()))
    cut = one_line[:_QUOTED_BYTES] + ("..." if len(one_line) > _QUOTED_BYTES else "")
    kept = len(REFUSED) + 5 if cut.startswith(REFUSED) else 4  # a status in front stays
    return cut[:kept] + _DIGITS.sub("N", cut[kept:])
