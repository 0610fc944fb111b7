"""Agreement of two models' answers to the same request, by kinds that a rollout declares.

A model of embeddings in the same space has to keep each text's place, since what was embedded before stays where it is:
a rotated space keeps all similarities and is of no use there. One of another space, for which everything is embedded
anew, has to keep who is near whom. Each kind judges one request at a time; how often answers may differ is tested by
a gate (`rollout/domain/gate`). Another kind is a function of two answers and a limit, in `KINDS`. Pure; called by
`rollout/shadow` and the admin API.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from control_plane.core.errors import InvalidRequest
from control_plane.objects.domain.rollout import Agreement
from control_plane.rollout.domain.edit_distance import edit_distance
from control_plane.rollout.domain.neighbourhood import Neighbourhood

Tensor = NDArray[Any]
Outputs = Mapping[str, Tensor]
"""An answer's tensors by name; those of BYTES have elements of `bytes`."""

Judge = Callable[[Tensor, Tensor], bool | None]
"""Whether stable's tensor and the next model's agree; None: that cannot be said yet."""

_MAX_CHARS = 2_000
"""Characters of a text that are compared."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Kind of agreement."""

    make: Callable[[float], Judge]
    """Makes its judge, with a limit; a judge may remember what it has seen."""
    limit: float
    """Limit where a rollout declares none."""
    told: str
    """When two answers agree, for documents and messages; `{limit}` is put in."""
    may_differ: float = 0.01
    """Part of the answers that may differ, where a rollout declares none."""


class PairJudge:
    """Judge of answers by a rollout's agreement."""

    def __init__(self, agreement: Agreement) -> None:
        """Raises InvalidRequest: there is no such kind."""
        kind = _kind_of(agreement)
        self._output = agreement.output
        self._judge = kind.make(kind.limit if agreement.limit is None else agreement.limit)

    def agree(self, stable: Outputs, candidate: Outputs) -> bool | None:
        """Return whether two answers to the same request agree; None: that cannot be said yet, or not of these."""
        names = [self._output] if self._output else list(stable)
        if any(name not in stable for name in names):
            return None
        verdicts = [name in candidate and self._judge(stable[name], candidate[name]) for name in names]
        return False if False in verdicts else None if None in verdicts else True


def completed(agreement: Agreement) -> Agreement:
    """Return an agreement with its kind's own limits where it has none. Raises InvalidRequest: there is no such kind."""
    kind = _kind_of(agreement)
    limit = kind.limit if agreement.limit is None else agreement.limit
    return replace(agreement, limit=limit, may_differ=kind.may_differ if agreement.may_differ is None else agreement.may_differ)


def _kind_of(agreement: Agreement) -> Kind:
    """Return the kind that is declared. Raises InvalidRequest: there is no such kind; the text names those there are."""
    kind = KINDS.get(agreement.kind)
    if kind is None:
        raise InvalidRequest(f"there is no agreement {agreement.kind!r}; there are {', '.join(KINDS)}", field="agreement")
    return kind


def _exactly(limit: float) -> Judge:
    return lambda stable, candidate: _are_alike(stable, candidate) and bool(np.array_equal(stable, candidate, equal_nan=_is_float(stable)))


def _within(limit: float) -> Judge:
    """Absolute or relative difference of each element at most `limit`."""

    def agree(stable: Tensor, candidate: Tensor) -> bool:
        if not _are_numbers(stable, candidate) or stable.shape != candidate.shape:
            return False
        return bool(np.allclose(candidate.astype(np.float64), stable.astype(np.float64), rtol=limit, atol=limit, equal_nan=True))

    return agree


def _same_class(limit: float) -> Judge:
    """The largest of each row's scores is the same one; of what are no scores, each element."""

    def agree(stable: Tensor, candidate: Tensor) -> bool:
        if stable.shape != candidate.shape:
            return False
        if not (_is_float(stable) and _is_float(candidate)) or not stable.ndim or stable.shape[-1] < 2:
            return bool(np.array_equal(stable, candidate))
        return bool(np.array_equal(stable.argmax(axis=-1), candidate.argmax(axis=-1)))

    return agree


def _same_space(limit: float) -> Judge:
    """Cosine of a request's rows, of which one is looked at, each time the next: what may differ is a part of all rows."""
    seen = 0

    def agree(stable: Tensor, candidate: Tensor) -> bool:
        nonlocal seen
        if not _are_numbers(stable, candidate) or stable.shape != candidate.shape or not stable.size:
            return False
        number, seen = seen, seen + 1
        one, other = _row(stable, number), _row(candidate, number)
        sizes = float(np.linalg.norm(one) * np.linalg.norm(other))
        return bool(np.isfinite(sizes)) and (sizes > 0.0 and float(one @ other) / sizes >= limit)

    return agree


def _another_space(limit: float) -> Judge:
    """Who is near whom, among the rows that were seen last: see `rollout/domain/neighbourhood`."""
    seen, held = 0, Neighbourhood()

    def agree(stable: Tensor, candidate: Tensor) -> bool | None:
        nonlocal seen
        if not _are_numbers(stable, candidate) or not (stable.size and candidate.size):
            return False
        number, seen = seen, seen + 1
        return held.agree(_row(stable, number), _row(candidate, number), least=limit)

    return agree


def _edit_distance(limit: float) -> Judge:
    """Edits of each text, per character of the longer one, at most `limit`."""

    def agree(stable: Tensor, candidate: Tensor) -> bool:
        if stable.shape != candidate.shape:
            return False
        pairs = zip(map(_text, stable.ravel()), map(_text, candidate.ravel()), strict=True)
        return all(edit_distance(one, other) <= limit * max(len(one), len(other)) for one, other in pairs)

    return agree


def _row(tensor: Tensor, number: int) -> Tensor:
    rows = tensor.reshape(-1, tensor.shape[-1] if tensor.ndim else 1)
    row: Tensor = rows[number % len(rows)].astype(np.float64)
    return row


def _text(element: object) -> str:
    text = element.decode(errors="replace") if isinstance(element, bytes) else str(element)
    return text[:_MAX_CHARS]


def _are_alike(stable: Tensor, candidate: Tensor) -> bool:
    return stable.shape == candidate.shape and stable.dtype == candidate.dtype


def _is_float(tensor: Tensor) -> bool:
    return tensor.dtype.kind == "f"


def _are_numbers(*tensors: Tensor) -> bool:
    return all(tensor.dtype.kind in "fiub" for tensor in tensors)


KINDS: dict[str, Kind] = {
    "exact": Kind(_exactly, 0.0, "all elements are equal"),
    "tolerance": Kind(_within, 1e-3, "no element differs by more than {limit:g}, nor by more than that part of it"),
    "classes": Kind(_same_class, 0.0, "the largest score of each row is the same one"),
    "same-space": Kind(_same_space, 0.99, "the cosine of the embeddings is at least {limit:g}"),
    "another-space": Kind(_another_space, 0.3, "the similarities to other texts rank alike: Spearman's correlation, and the part of the "
                          "ten nearest that are the same, are at least {limit:g}", 0.2),
    "edit-distance": Kind(_edit_distance, 0.1, "no text needs more edits than {limit:g} of its characters"),
}  # fmt: skip
"""The kinds there are, by name."""
