"""Certificates for tests, made by the `openssl` command where they are used and kept nowhere."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="the openssl command makes the certificates")


@dataclass(frozen=True)
class Identity:
    """A certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """A certificate authority in a folder of its own."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._own = Identity(folder / f"{name}.pem", folder / f"{name}.key")
        _openssl("req", "-x509", *_NEW_KEY, "-keyout", self._own.key, "-out", self.certificate, "-days", "1", "-subj", f"/CN={name}")

    @property
    def certificate(self) -> Path:
        return self._own.certificate

    def issue(self, name: str, *, into: Identity | None = None, address: str = "127.0.0.1") -> Identity:
        """A certificate for this machine with `name` as its subject, over an older one if `into` says so."""
        issued = into or Identity(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        request, extensions = self._folder / f"{name}.csr", self._folder / "extensions"
        extensions.write_text(f"subjectAltName=DNS:localhost,IP:{address}\n")
        _openssl("req", *_NEW_KEY, "-keyout", issued.key, "-out", request, "-subj", f"/CN={name}")
        signed_by = ("-CA", self.certificate, "-CAkey", self._own.key, "-CAcreateserial")
        _openssl("x509", "-req", "-in", request, *signed_by, "-days", "1", "-extfile", extensions, "-out", issued.certificate)
        return issued

    def client(self, shows: Identity | None = None, *, alpn: str | None = None) -> ssl.SSLContext:
        """A client's context that trusts this authority and shows a certificate, if any."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        if shows is not None:
            context.load_cert_chain(shows.certificate, shows.key)
        if alpn is not None:
            context.set_alpn_protocols([alpn])
        return context


def subject_of(connection: ssl.SSLSocket) -> str:
    """The name in the certificate that the other end has shown."""
    shown = connection.getpeercert()
    assert shown
    return {name: value for ((name, value),) in shown["subject"]}["commonName"]  # type: ignore[misc, union-attr]


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)
