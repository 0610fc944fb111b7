from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from control_plane.core.endpoints import TcpAddress, TritonEndpoints, UnixAddress, UpstreamCredentials
from control_plane.core.errors import StartupError
from control_plane.host.network.tls import HTTP
from control_plane.triton.adapters.connected import UpstreamClient
from control_plane.triton.adapters.credentials import make_channel_credentials, make_context, read_headers, tls_context
from control_plane.triton.ports import Liveness
from tests.tls_files import Authority, needs_openssl


def written(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "headers"
    path.write_bytes(content)
    return path


def test_header_fields_of_a_file(tmp_path: Path) -> None:
    fields = read_headers(written(tmp_path, b"Authorization: Bearer a b \r\n\nx-tenant:7\n"))
    assert fields == (("authorization", "Bearer a b"), ("x-tenant", "7"))
    assert "Bearer" not in repr(UpstreamCredentials(headers=fields))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"x: 1\nsecret", "line 2 is not `NAME: VALUE` in ASCII", id="no colon"),
        pytest.param(b"x:", "line 1 is not", id="no value"),
        pytest.param(b"a b: secret", "line 1 is not", id="a blank in the name"),
        pytest.param("x: secr\u00e9t".encode(), "line 1 is not", id="not ASCII"),
        pytest.param(b"x: secret\0", "line 1 is not", id="a NUL"),
        pytest.param(b"Host: secret", "sets host, which the gateway writes itself", id="a field of ours"),
        pytest.param(b"grpc-timeout: 1S", "sets grpc-timeout, which", id="gRPC's own"),
        pytest.param(b"x-bin: secret", "sets x-bin, which", id="binary metadata"),
        pytest.param(b"x: secret\n" * 2000, "is larger than 16384 bytes", id="large"),
    ],
)
def test_a_file_that_holds_something_else_is_refused_without_showing_it(content: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"^--triton-header-file ") as told:
        read_headers(written(tmp_path, content))
    assert said in str(told.value)
    assert "secr" not in str(told.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="none: No such file"):
        read_headers(tmp_path / "none")


def test_addresses_in_plain_text_have_no_context() -> None:
    assert tls_context(TcpAddress("h", 1), HTTP) is None
    assert tls_context(UnixAddress("/h"), HTTP) is None


@needs_openssl
def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    right = UpstreamCredentials(str(authority.certificate), str(one.certificate), str(one.key))
    assert tls_context(TcpAddress("h", 1, right), HTTP) is not None
    make_channel_credentials(right)
    (tmp_path / "text").write_text("no certificate")
    for wrong, said in (
        (replace(right, ca=str(tmp_path / "none")), "--triton-ca .*: No such file"),
        (replace(right, ca=str(tmp_path / "text")), "--triton-ca .*: cannot be read as PEM"),
        (replace(right, key=""), "given together"),
        (replace(right, certificate=""), "given together"),
        (replace(right, key=str(other.key)), "the key is not the certificate's"),
        (replace(right, key=str(tmp_path / "text")), "cannot be read as PEM"),
    ):
        with pytest.raises(StartupError, match=said):
            make_context(wrong, HTTP)
        with pytest.raises(StartupError, match=said):
            make_channel_credentials(wrong)


@needs_openssl
async def test_files_that_are_renewed_may_be_missing_once_they_were_read(tmp_path: Path) -> None:
    """The probe makes new clients after each silence."""
    authority = Authority(tmp_path)
    credentials = UpstreamCredentials(str(authority.certificate))
    triton = UpstreamClient(
        TritonEndpoints("127.0.0.1", 1, 1, None, http_is_tls=True, grpc_is_tls=True, credentials=credentials), max_connections=1
    )
    authority.certificate.unlink()
    for _ in range(2):
        assert await triton.liveness.ask(timeout_s=0.3) is Liveness.NOT_LIVE
        await triton.liveness.close()
    await triton.close()
