"""The error with which a deployment ends: what is wrong with which object, and what to do next."""

from __future__ import annotations


class DeployError(Exception):
    """Why a deployment cannot go on."""

    def __init__(self, what: str, *, next_step: str = "") -> None:
        super().__init__(what)
        self.next_step = next_step

    def __str__(self) -> str:
        what = super().__str__()
        return f"{what}\nnext: {self.next_step}" if self.next_step else what
