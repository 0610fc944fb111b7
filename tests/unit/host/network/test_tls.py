"""Real handshakes, against an echo server on port 0."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from control_plane.core.errors import StartupError
from control_plane.host.network.tls import GRPC, HTTP, Tls, make_admin_tls, make_tls
from control_plane.settings import TlsSettings
from tests.tls_files import Authority, Identity, needs_openssl, subject_of

pytestmark = needs_openssl


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def settings_of(server: Identity, client_ca: Path | None = None) -> TlsSettings:
    return TlsSettings(tls_certificate=server.certificate, tls_key=server.key, tls_client_ca=client_ca)


@asynccontextmanager
async def serving(tls: Tls, protocol: str = HTTP) -> AsyncIterator[int]:
    """Run an echo server; yield its port."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(100))
        writer.close()

    bound = socket.create_server(("127.0.0.1", 0))
    server = await asyncio.start_server(echo, sock=bound, ssl=tls.context(protocol))
    async with server:
        yield bound.getsockname()[1]


def ask(port: int, client: ssl.SSLContext, name: str | None = "localhost") -> tuple[str, str | None]:
    """Exchange a few bytes; return whose certificate was shown, and the protocol (ALPN). Without `name` no
    SNI is sent.
    """
    if name is None:
        client.check_hostname = False
    with socket.create_connection(("127.0.0.1", port)) as plain, client.wrap_socket(plain, server_hostname=name) as connection:
        connection.settimeout(5)
        connection.sendall(b"hello")
        if connection.recv(100) != b"hello":  # in TLS 1.3 a client whose certificate is refused learns it after its handshake
            raise ConnectionResetError
        return subject_of(connection), connection.selected_alpn_protocol()


async def asked(port: int, client: ssl.SSLContext, name: str | None = "localhost") -> tuple[str, str | None]:
    return await asyncio.to_thread(ask, port, client, name)


@pytest.mark.parametrize("protocol", [HTTP, GRPC])
async def test_each_frontend_agrees_on_its_protocol(authority: Authority, protocol: str) -> None:
    async with serving(Tls(settings_of(authority.issue("server"))), protocol) as port:
        assert await asked(port, authority.client(alpn=protocol)) == ("server", protocol)
        assert await asked(port, authority.client()) == ("server", None)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("name", ["localhost", None], ids=["with a server name", "without"])
async def test_new_connections_get_a_changed_certificate(authority: Authority, version: ssl.TLSVersion, name: str | None) -> None:
    server = authority.issue("before")
    tls = Tls(settings_of(server))
    client = authority.client()
    client.maximum_version = client.minimum_version = version
    async with serving(tls) as port:
        assert (await asked(port, client, name))[0] == "before"
        authority.issue("after", into=server)
        tls.reload()
        assert (await asked(port, client, name))[0] == "after"


async def test_changed_files_are_found_by_themselves(authority: Authority) -> None:
    server = authority.issue("before")
    tls = Tls(settings_of(server))
    watching = asyncio.get_running_loop().create_task(tls.watch())
    async with serving(tls) as port:
        authority.issue("after", into=server)
        while (await asked(port, authority.client()))[0] != "after":
            await asyncio.sleep(0.1)
    watching.cancel()


async def test_files_that_cannot_be_used_leave_the_old_ones_in_force(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    server = authority.issue("before")
    tls = Tls(settings_of(server))
    async with serving(tls) as port:
        authority.issue("other", into=Identity(server.certificate, server.key.with_name("elsewhere.key")))
        with caplog.at_level(logging.ERROR):
            tls.reload()
        assert (await asked(port, authority.client()))[0] == "before"
    assert "the key is not the certificate's" in caplog.text


class TestClientCertificates:
    async def test_none_and_a_strangers_are_refused(self, authority: Authority, tmp_path: Path) -> None:
        server, known = authority.issue("server"), authority.issue("known")
        stranger = Authority(tmp_path, "stranger").issue("unknown")
        async with serving(Tls(settings_of(server, authority.certificate))) as port:
            assert await asked(port, authority.client(known)) == ("server", None)
            for client in (authority.client(), authority.client(stranger)):
                with pytest.raises((ssl.SSLError, ConnectionError)):
                    await asked(port, client)

    async def test_an_authority_that_is_replaced_is_accepted_no_longer(self, authority: Authority, tmp_path: Path) -> None:
        server = authority.issue("server")
        old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
        accepted = tmp_path / "accepted.pem"
        accepted.write_bytes(old.certificate.read_bytes())
        tls = Tls(settings_of(server, accepted))
        async with serving(tls) as port:
            leaving = authority.client(old.issue("leaving"))
            assert (await asked(port, leaving))[0] == "server"
            accepted.write_bytes(new.certificate.read_bytes())
            tls.reload()
            assert (await asked(port, authority.client(new.issue("coming"))))[0] == "server"
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await asked(port, leaving)


async def test_old_versions_of_tls_are_refused(authority: Authority) -> None:
    client = authority.client()
    client.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.warns(DeprecationWarning, match="TLSv1_1"):
        client.maximum_version = ssl.TLSVersion.TLSv1_1
    client.set_ciphers("ALL:@SECLEVEL=0")
    async with serving(Tls(settings_of(authority.issue("server")))) as port:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asked(port, client)


class TestUnusableFiles:
    def refusal(self, settings: TlsSettings) -> str:
        with pytest.raises(StartupError) as caught:
            make_tls(settings)
        return str(caught.value)

    def test_none_is_no_tls(self) -> None:
        assert make_tls(TlsSettings()) is None

    def test_a_certificate_without_its_key(self, authority: Authority) -> None:
        assert "--tls-key is missing" in self.refusal(TlsSettings(tls_certificate=authority.certificate))

    def test_a_key_or_authorities_without_a_certificate(self, tmp_path: Path) -> None:
        assert "--tls-key" in self.refusal(TlsSettings(tls_key=tmp_path / "x"))
        assert "--tls-client-ca" in self.refusal(TlsSettings(tls_client_ca=tmp_path / "x"))

    def test_a_file_that_is_not_there(self, authority: Authority, tmp_path: Path) -> None:
        server = authority.issue("server")
        assert "No such file" in self.refusal(settings_of(Identity(tmp_path / "none.pem", server.key)))
        assert "--tls-client-ca" in self.refusal(settings_of(server, tmp_path / "none.pem"))

    def test_a_file_that_is_not_pem(self, authority: Authority, tmp_path: Path) -> None:
        server = authority.issue("server")
        noise = tmp_path / "noise.pem"
        noise.write_text("nothing")
        assert "cannot be read as PEM" in self.refusal(settings_of(Identity(noise, server.key)))
        assert "cannot be read as PEM" in self.refusal(settings_of(server, noise))

    def test_a_key_of_another_certificate(self, authority: Authority) -> None:
        one, other = authority.issue("one"), authority.issue("other")
        assert "the key is not the certificate's" in self.refusal(settings_of(Identity(one.certificate, other.key)))


async def test_the_admin_port_may_have_files_of_its_own(authority: Authority) -> None:
    public, own = authority.issue("public"), authority.issue("admin")
    settings = TlsSettings(tls_certificate=public.certificate, tls_key=public.key, admin_tls_cert=own.certificate, admin_tls_key=own.key)
    tls, admin = make_tls(settings), make_admin_tls(settings)
    assert tls is not None
    assert admin is not None
    async with serving(tls) as port, serving(admin) as admin_port:
        assert (await asked(port, authority.client()))[0] == "public"
        assert (await asked(admin_port, authority.client()))[0] == "admin"


async def test_the_admin_port_demands_certificates_of_its_own_authorities(authority: Authority, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    own, house = authority.issue("admin"), Authority(other)
    admin = make_admin_tls(TlsSettings(admin_tls_cert=own.certificate, admin_tls_key=own.key, admin_tls_client_ca=house.certificate))
    assert admin is not None
    async with serving(admin) as port:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asked(port, authority.client())
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asked(port, authority.client(authority.issue("of the data ports")))
        assert (await asked(port, authority.client(house.issue("operator"))))[0] == "admin"


def test_without_files_of_its_own_the_admin_port_has_what_all_have(authority: Authority, tmp_path: Path) -> None:
    server = authority.issue("server")
    assert make_admin_tls(settings_of(server)) is None
    with pytest.raises(StartupError, match=r"--admin-tls-key .* has no effect: --admin-tls-cert"):
        make_admin_tls(TlsSettings(admin_tls_key=server.key))
    with pytest.raises(StartupError, match=r"^--admin-tls-key is missing"):
        make_admin_tls(TlsSettings(admin_tls_cert=server.certificate))
    with pytest.raises(StartupError, match=r"^--admin-tls-cert .*none\.pem and --admin-tls-key"):
        make_admin_tls(TlsSettings(admin_tls_cert=tmp_path / "none.pem", admin_tls_key=server.key))
