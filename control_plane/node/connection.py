"""What a gateway knows over one connection to a node, and over no other; kept by `node/remote_node`."""

from __future__ import annotations

from dataclasses import dataclass, field

from control_plane.core.model import ModelVersion
from control_plane.node.domain.messages import Contents, Index, TritonState, WrongMessage
from control_plane.node.ports import NodeLink


@dataclass(slots=True, eq=False)
class NodeConnection:
    """Connection to a node, with what the node has said over it."""

    link: NodeLink
    state: TritonState | None = None
    """State of its Triton; None until the node has said everything, and has answered a ping since."""
    first_state: TritonState = field(default_factory=lambda: TritonState("", "Triton is starting"))
    """State of its Triton as it was told before that."""
    first: Contents | None = None
    """What the node has loaded, until it has answered that ping."""
    index: tuple[int, list[ModelVersion]] = (0, [])
    """Edition and lines of the index that the node has told last."""
    named: set[str] = field(default_factory=set)
    """Models that the node has named."""
    valid_until_s: float = 0.0
    pinged_s: float = 0.0
    """When the latest ping was sent: an answer to a later one would be relied on for ever."""
    wrong: WrongMessage | None = None
    """Why the connection ends, where what the node says is against the protocol."""

    def note_index(self, index: Index) -> None:
        """Keep an index for answers that it is still the same. Raises WrongMessage."""
        if index.lines is not None:
            self.index = index.edition, [ModelVersion(*line) for line in index.lines]
        elif not index.number or index.edition != self.index[0]:
            raise WrongMessage(f"edition {index.edition} of the index was not told")
