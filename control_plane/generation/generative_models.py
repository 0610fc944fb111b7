"""Finds out which models generate text, by their configurations.

Called by `generation` for each call and by `frontends/openai` for its list of models.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from control_plane.auth.access import Access
from control_plane.generation.domain.generative_model import REQUIREMENTS, GenerativeModel, read_generative_model
from control_plane.inference.dispatch.dispatch import Dispatch
from control_plane.inference.model_configuration.models_of_kind import ModelsOfKind
from control_plane.models.fingerprints import Fingerprints


class GenerativeModels(ModelsOfKind[GenerativeModel]):
    """Descriptions of models: which of them generate text, what they can be asked for, and how they take chats."""

    def __init__(
        self, dispatch: Dispatch, fingerprints: Fingerprints, access: Access, *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(dispatch, fingerprints, access, read_generative_model, refusal=REQUIREMENTS, now_s=now_s)
