"""What a call of an API does (v2 protocol or OpenAI's), independent of the frontend that received it."""

from __future__ import annotations

from enum import Enum


class Action(Enum):
    """Kind of a call; authorization and both frontends decide by it."""

    INFER = "infer"
    GENERATE = "generate"
    """An inference by Triton's generate extension; `generate_stream` sends its responses as server-sent
    events."""
    LIVE = "live"
    READY = "ready"
    READ = "read"
    """Passed through to Triton; changes nothing."""
    MODEL_READY = "model_ready"
    """Whether requests for a model would be served."""
    STATISTICS = "statistics"
    """Triton's statistics of one model or of all."""
    INDEX = "index"
    """List of the repository's models, for administrators only."""
    LOAD = "load"
    UNLOAD = "unload"
    ADMIN = "admin"
    """Passed through to Triton, for administrators only."""
    SHARED_MEMORY = "shared_memory"
    """Passed through to Triton, for administrators only and only where shared memory is allowed."""
    EMBED = "embed"
    """OpenAI's `/v1/embeddings`; the body names the model."""
    COMPLETE = "complete"
    """OpenAI's `/v1/completions`; the body names the model."""
    CHAT = "chat"
    """OpenAI's `/v1/chat/completions`; the body names the model."""
    LIST_MODELS = "list_models"
    """OpenAI's `/v1/models`: the models that this caller may use for EMBED, COMPLETE or CHAT."""
    SUBMIT_JOB = "submit_job"
    """Hands in an inference to be computed later."""
    LIST_JOBS = "list_jobs"
    READ_JOB = "read_job"
    JOB_RESULT = "job_result"
    JOB_EVENTS = "job_events"
    """The states of a job as they change, as server-sent events."""
    CANCEL_JOB = "cancel_job"
    COMPUTE_JOB = "compute_job"
    """Computes an attempt at a job of any tenant, for a runner in a process of its own."""
    EVENTS = "events"
    """The events of the caller's tenant, as server-sent events."""
    FILES = "files"
    """OpenAI's `/v1/files`: the input and the output of batches."""
    BATCHES = "batches"
    """OpenAI's `/v1/batches`: lists of EMBED calls, computed as jobs."""
    OPTIONS = "options"
    """HTTP OPTIONS: answered with the methods that the path allows."""

    __hash__ = object.__hash__  # Enum's own is written in Python, and every request is looked up by this
