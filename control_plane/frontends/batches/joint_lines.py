"""Lines of a batch that are computed as one call: their inputs are concatenated, and each line gets its own rows of the answer.

A line's answer does not reveal the others, just as with Triton's own batching. Used by `frontends/batches/compute_lines`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from control_plane.batches.domain.batch import EMBEDDINGS
from control_plane.batches.domain.input_lines import Line
from control_plane.core.algorithms.steps import Steps
from control_plane.core.errors import ControlPlaneError
from control_plane.core.principal import Principal
from control_plane.embeddings.domain.embedding_tensors import EmbeddedText
from control_plane.embeddings.domain.openai_request import EmbeddingsRequest, request_steps
from control_plane.frontends.openai import HttpEmbeddingsCall
from control_plane.protocols.http1 import HttpRequest

MOST_INPUTS = 32
"""Inputs of a joint call: a caller who comes meanwhile waits for them, as he would for as many lines at once."""


@dataclass(frozen=True, slots=True)
class JointLines:
    """Lines that may be computed together, by their numbers, and what each wants."""

    numbers: tuple[int, ...]
    wanted: tuple[EmbeddingsRequest, ...]

    @property
    def request(self) -> EmbeddingsRequest:
        """One request with the inputs of all lines."""
        first = self.wanted[0]
        inputs = tuple(each for wanted in self.wanted for each in wanted.inputs)
        return EmbeddingsRequest(first.model, inputs, first.are_tokens, first.is_base64, first.dimensions)

    def split(self, rows: Sequence[EmbeddedText]) -> Iterator[tuple[int, EmbeddingsRequest, Sequence[EmbeddedText]]]:
        """Yield each line's number, what it wants, and its rows."""
        at = 0
        for number, wanted in zip(self.numbers, self.wanted, strict=True):
            yield number, wanted, rows[at : at + len(wanted.inputs)]
            at += len(wanted.inputs)


class JointCall(HttpEmbeddingsCall):
    """Call for joint lines, which were read already."""

    __slots__ = ("_request",)

    def __init__(self, lines: JointLines, principal: Principal) -> None:
        super().__init__(HttpRequest(b"POST", EMBEDDINGS.encode()), principal)
        self._request = lines.request

    def read(self) -> Steps[EmbeddingsRequest]:
        yield from ()
        return self._request


def joint_steps(lines: Sequence[Line]) -> Steps[list[JointLines]]:
    """Return the lines of a chunk that may be computed together, in steps; those that are wrong, or alike to no other, are in
    none.
    """
    alike = dict[tuple[str, bool, int | None], list[list[tuple[int, EmbeddingsRequest]]]]()
    for number, line in enumerate(lines):
        try:
            wanted = yield from request_steps(line.body)
        except ControlPlaneError:
            continue  # computed by itself it is answered with that error
        groups = alike.setdefault((wanted.model, wanted.are_tokens, wanted.dimensions), [[]])
        if sum(len(each.inputs) for _, each in groups[-1]) + len(wanted.inputs) > MOST_INPUTS:
            groups.append([])
        groups[-1].append((number, wanted))
    found = (group for groups in alike.values() for group in groups if len(group) > 1)
    return [JointLines(tuple(number for number, _ in group), tuple(wanted for _, wanted in group)) for group in found]
