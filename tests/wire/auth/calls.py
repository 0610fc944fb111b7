"""Calls of both frontends, and the right that each needs: a call that is added to a frontend needs a row here."""

from __future__ import annotations

from tests.wire.gateway import INFER

OPEN, INFERENCE, OF_M, REPOSITORY, OWN_EVENTS, ADMINISTRATION = (
    "open",
    "inference",
    "inference of m",
    "repository",
    "own events",
    "administration",
)
"""The rights that calls need: none, any right to infer, the right to infer with `m`, administration of the
repository, the events of one's tenant, and administration of everything."""

HTTP_CALLS = {
    ("POST", "/v2/models/m/infer"): OF_M,
    ("POST", "/v2/models/m/versions/1/infer"): OF_M,
    ("POST", "/v2/models/m/generate"): OF_M,
    ("POST", "/v2/models/m/generate_stream"): OF_M,
    ("GET", "/v2/health/live"): OPEN,
    ("GET", "/v2/health/ready"): OPEN,
    ("POST", "/v2/models/m/jobs"): OF_M,
    ("GET", "/v2/jobs"): INFERENCE,
    ("GET", "/v2/jobs/job-1"): INFERENCE,
    ("GET", "/v2/jobs/job-1/result"): INFERENCE,
    ("GET", "/v2/jobs/job-1/events"): INFERENCE,
    ("DELETE", "/v2/jobs/job-1"): INFERENCE,
    ("POST", "/v2/jobs/job-1/compute"): ADMINISTRATION,
    ("GET", "/v2/events"): OWN_EVENTS,
    ("GET", "/v2"): INFERENCE,
    ("GET", "/v2/models/stats"): INFERENCE,
    ("GET", "/v2/models/m"): OF_M,
    ("GET", "/v2/models/m/ready"): OF_M,
    ("GET", "/v2/models/m/config"): OF_M,
    ("GET", "/v2/models/m/versions/1/stats"): OF_M,
    ("POST", "/v2/repository/index"): REPOSITORY,
    ("POST", "/v2/repository/models/m/load"): REPOSITORY,
    ("POST", "/v2/repository/models/m/unload"): REPOSITORY,
    ("POST", "/v2/repository/r/models/m/load"): REPOSITORY,
    ("GET", "/v2/trace/setting"): REPOSITORY,
    ("POST", "/v2/models/m/trace/setting"): REPOSITORY,
    ("GET", "/v2/logging"): REPOSITORY,
    ("POST", "/v2/logging"): REPOSITORY,
    ("POST", "/v1/embeddings"): OF_M,  # which its body names
    ("POST", "/v1/completions"): OF_M,
    ("POST", "/v1/chat/completions"): OF_M,
    ("GET", "/v1/files"): INFERENCE,
    ("POST", "/v1/files"): INFERENCE,
    ("GET", "/v1/files/f"): INFERENCE,
    ("DELETE", "/v1/files/f"): INFERENCE,
    ("GET", "/v1/files/f/content"): INFERENCE,
    ("GET", "/v1/batches"): INFERENCE,
    ("POST", "/v1/batches"): INFERENCE,  # each line names a model, and is looked at when it is computed
    ("GET", "/v1/batches/b"): INFERENCE,
    ("POST", "/v1/batches/b/cancel"): INFERENCE,
    ("GET", "/v1/models"): INFERENCE,
    ("GET", "/v1/models/m"): OF_M,
    ("GET", "/v2/systemsharedmemory/status"): REPOSITORY,
    ("POST", "/v2/cudasharedmemory/region/r/register"): REPOSITORY,
}

GRPC_CALLS = {
    "ModelInfer": OF_M,
    "ModelStreamInfer": INFERENCE,  # each of its messages names a model, and is looked at by itself
    "ServerLive": OPEN,
    "ServerReady": OPEN,
    "/grpc.health.v1.Health/Check": OPEN,
    "ServerMetadata": INFERENCE,
    "ModelReady": OF_M,
    "ModelMetadata": OF_M,
    "ModelConfig": OF_M,
    "ModelStatistics": OF_M,
    "RepositoryIndex": REPOSITORY,
    "RepositoryModelLoad": REPOSITORY,
    "RepositoryModelUnload": REPOSITORY,
    "TraceSetting": REPOSITORY,
    "LogSettings": REPOSITORY,
    **{f"{kind}SharedMemory{verb}": REPOSITORY for kind in ("System", "Cuda") for verb in ("Status", "Register", "Unregister")},
}

BODIES = {
    "/v2/models/m/infer": INFER.decode(),
    "/v2/models/m/versions/1/infer": INFER.decode(),
    "/v1/embeddings": '{"model":"m","input":"a"}',
    "/v1/completions": '{"model":"m","prompt":"a"}',
    "/v1/chat/completions": '{"model":"m","messages":[{"role":"user","content":"a"}]}',
}
"""Bodies of POST requests, by their path."""
