from __future__ import annotations

from pathlib import Path

import pytest

from control_plane.core.errors import StartupError
from control_plane.node.adapters.credentials import client_context, server_context
from control_plane.settings import NodeSettings


def test_beyond_loopback_a_node_asks_who_comes(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="asks nobody who they are is refused"):
        server_context(NodeSettings(node_host="10.0.0.5"))
    secret = tmp_path / "secret"
    secret.write_text("a secret that is long enough")
    assert server_context(NodeSettings(node_host="10.0.0.5", node_secret_file=secret)) is None
    assert server_context(NodeSettings()) is None


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"node_ca": "ca.pem"}, "--node-ca needs --node-certificate"),
        ({"node_certificate": "c.pem"}, "given together"),
        ({"node_certificate": "c.pem", "node_key": "k.pem"}, "No such file"),
    ],
)
def test_half_of_what_tls_needs_is_refused(fields: dict[str, Path], why: str) -> None:
    with pytest.raises(StartupError, match=why):
        server_context(NodeSettings(**fields))


def test_a_gateway_without_authorities_speaks_no_tls() -> None:
    assert client_context(NodeSettings()) is None
    with pytest.raises(StartupError, match="without --node-ca"):
        client_context(NodeSettings(node_certificate=Path("c.pem")))
