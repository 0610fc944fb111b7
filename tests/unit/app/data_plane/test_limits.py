from __future__ import annotations

import pytest

from control_plane.app.data_plane.limits import share_of
from control_plane.settings import GatewaySettings


@pytest.mark.parametrize(("workers", "connections", "upstream"), [(1, 4096, 512), (4, 1024, 128), (512, 8, 1)])
def test_workers_share_what_is_limited_for_all(workers: int, connections: int, upstream: int) -> None:
    share = share_of(GatewaySettings(), workers)
    assert (share.max_connections, share.max_upstream_connections) == (connections, upstream)


def test_each_has_room_for_one_body_of_the_largest_size() -> None:
    gateway = GatewaySettings(max_body_bytes=1 << 20, max_buffered_bytes=10 << 20)
    assert share_of(gateway, 5).max_buffered_bytes == 2 << 20
    assert share_of(gateway, 100).max_buffered_bytes == 1 << 20


def test_what_is_not_limited_for_all_is_each_ones_own() -> None:
    gateway = GatewaySettings(http_port=1234)
    assert share_of(gateway, 2).model_dump(
        exclude={"max_connections", "max_upstream_connections", "max_buffered_bytes"}
    ) == gateway.model_dump(exclude={"max_connections", "max_upstream_connections", "max_buffered_bytes"})
