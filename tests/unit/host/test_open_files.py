from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from control_plane.host.open_files import allow_open_files


@pytest.fixture(autouse=True)
def _soft_limit_restored() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def soft_limit() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def test_connections_fit() -> None:
    assert allow_open_files(2000) == 2000
    assert soft_limit() == 2000


def test_what_is_enough_is_left_as_it_is() -> None:
    assert allow_open_files(10) == 10
    assert soft_limit() == 1024


def test_what_the_machine_forbids_is_told(caplog: pytest.LogCaptureFixture) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if hard == resource.RLIM_INFINITY:
        pytest.skip("this machine forbids nothing")
    assert allow_open_files(hard + 1) == hard
    assert soft_limit() == hard
    assert f"only {hard} files can be open" in caplog.text
