"""What a call of the v2 protocol does, whichever door it came through."""

from __future__ import annotations

from enum import Enum


class Action(Enum):
    """What is to be done with a call."""

    INFER = "infer"
    GENERATE = "generate"
    """An inference in the words of the model, answered piece by piece; `generate_stream` sends its pieces as events."""
    LIVE = "live"
    READY = "ready"
    READ = "read"
    """Answered by Triton as it is; changes nothing."""
    MODEL_READY = "model_ready"
    """Whether requests for a model would be served."""
    STATISTICS = "statistics"
    """What Triton has counted, of a model or of all."""
    INDEX = "index"
    """The models that there are, for administrators only."""
    LOAD = "load"
    UNLOAD = "unload"
    ADMIN = "admin"
    """Answered by Triton as it is, for administrators only."""
    SHARED_MEMORY = "shared_memory"
    """As ADMIN, and only where shared memory is allowed."""
    EMBED = "embed"
    """Texts to embeddings, as OpenAI's clients ask for them; the body names the model."""
    LIST_MODELS = "list_models"
    """Which models EMBED takes of this caller, in OpenAI's words."""
    OPTIONS = "options"
    """Answered with the methods that the path takes."""
