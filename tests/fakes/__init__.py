"""In-memory stand-ins for the ports (control_plane/ports.py), with the switches that tests need."""

from tests.fakes.recorder import FakeRecorder, Recorded
from tests.fakes.repository import FakeRepository
from tests.fakes.upstream import FakeControl, FakeGrpc, FakeHttp, FakeUpstream

__all__ = ["FakeControl", "FakeGrpc", "FakeHttp", "FakeRecorder", "FakeRepository", "FakeUpstream", "Recorded"]
