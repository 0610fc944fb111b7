"""In-memory fakes of the ports (`*/ports.py`), with the switches that tests need."""

from tests.fakes.reading import FakeBoard, FakeReading
from tests.fakes.recorder import FakeRecorder, Recorded
from tests.fakes.triton.repository import FakeRepository
from tests.fakes.triton.upstream import FakeControl, FakeGrpc, FakeGrpcStream, FakeHttp, FakeHttpStream, FakeUpstream, server_of
from tests.fakes.tuning import FakeLoad, FakeTuningServers
from tests.fakes.worker import FakeModels, FakeWorker, FakeWorkers

__all__ = [
    "FakeBoard",
    "FakeControl",
    "FakeGrpc",
    "FakeGrpcStream",
    "FakeHttp",
    "FakeHttpStream",
    "FakeLoad",
    "FakeModels",
    "FakeReading",
    "FakeRecorder",
    "FakeRepository",
    "FakeTuningServers",
    "FakeUpstream",
    "FakeWorker",
    "FakeWorkers",
    "Recorded",
    "server_of",
]
