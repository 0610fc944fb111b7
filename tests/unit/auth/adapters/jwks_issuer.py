"""Issuer of tokens for tests: it has keys of its own, and a real server that publishes them as well or badly
as a test says.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

from control_plane.auth.adapters.jwks import RefreshIntervals
from control_plane.auth.adapters.jwt import JwtVerifier
from control_plane.core.errors import Unauthenticated
from control_plane.settings import AuthenticationSettings

ISSUER, AUDIENCE = "https://issuer.example", "tidegate"

PACE = RefreshIntervals(refresh_s=0.2, at_least_s=0.05, fetch_timeout_s=0.5)
WAIT_S = 45.0

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
Answer = Callable[["Handler"], None]


@cache
def private_key(kind: str, number: int = 0) -> PrivateKey:
    """Return the private key of a number, from a memo: making an RSA key takes a while."""
    makers: dict[str, Callable[[], PrivateKey]] = {
        "RS256": lambda: rsa.generate_private_key(65537, 2048),
        "weak": lambda: rsa.generate_private_key(65537, 1024),
        "ES256": lambda: ec.generate_private_key(ec.SECP256R1()),
        "ES384": lambda: ec.generate_private_key(ec.SECP384R1()),
        "EdDSA": ed25519.Ed25519PrivateKey.generate,
    }
    return makers[kind]()


def public_jwk(kind: str, number: int = 0, **fields: Any) -> dict[str, Any]:
    """Return the public key as a JWK, with the id that `token` names by default; a field given as None is
    left out.
    """
    key = private_key(kind, number).public_key()
    algorithm = {"R": RSAAlgorithm, "w": RSAAlgorithm, "E": OKPAlgorithm if kind == "EdDSA" else ECAlgorithm}[kind[0]]
    jwk = {"use": "sig", "kid": f"{kind}-{number}", **algorithm.to_jwk(key, as_dict=True), **fields}
    return {name: value for name, value in jwk.items() if value is not None}


def key_set(*jwks: dict[str, Any]) -> bytes:
    return json.dumps({"keys": jwks}).encode()


def claims(**changes: Any) -> dict[str, Any]:
    """Return valid claims with some of them changed; a claim given as None is left out."""
    whole = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "somebody",
        "exp": int(time.time()) + 600,
        "tenant": "acme",
        "scope": "openid infer:text_* metrics",
    }
    return {name: value for name, value in {**whole, **changes}.items() if value is not None}


def token(kind: str = "ES256", number: int = 0, *, head: dict[str, Any] | None = None, **changes: Any) -> str:
    """Return a token that is signed correctly."""
    return jwt.encode(claims(**changes), private_key(kind, number), algorithm=kind, headers={"kid": f"{kind}-{number}", **(head or {})})


def forge(head: Any, body: Any, sign: Callable[[bytes], bytes] = lambda _: b"") -> str:
    """Return a token with any header, claims and signature, also those that libraries refuse to make."""
    parts = [part if isinstance(part, bytes) else json.dumps(part).encode() for part in (head, body)]
    signed = b".".join(map(_encode, parts))
    return (signed + b"." + _encode(sign(signed))).decode()


def _encode(part: bytes) -> bytes:
    return urlsafe_b64encode(part).rstrip(b"=")


def seconds(since_now_s: float) -> int:
    return int(time.time() + since_now_s)


class Handler(BaseHTTPRequestHandler):
    server: JwksServer

    def do_GET(self) -> None:
        self.server.asked += 1
        with suppress(OSError):  # whoever asked has gone
            self.server.answer(self)

    def log_message(self, *_: object) -> None:
        pass

    def begin(self, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()


class JwksServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.answer: Answer = documented(key_set(*map(public_jwk, ("RS256", "ES256", "EdDSA"))))
        self.asked = 0
        self.sent_bytes = 0
        self.must_end = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/jwks.json"

    @contextmanager
    def serving(self) -> Iterator[JwksServer]:
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield self
        finally:
            self.must_end.set()
            self.shutdown()
            self.server_close()
            thread.join()


def documented(body: bytes, status: int = 200, **headers: str) -> Answer:
    """Answer with a document."""

    def answer(handler: Handler) -> None:
        handler.begin(status, content_length=str(len(body)), **headers)
        handler.wfile.write(body)

    return answer


def endless(handler: Handler) -> None:
    """Answer with more bytes than any client has room for."""
    handler.begin()
    piece = b" " * 65536
    while not handler.server.must_end.is_set() and handler.server.sent_bytes < 2**30:
        handler.wfile.write(piece)
        handler.server.sent_bytes += len(piece)


def dripping(handler: Handler) -> None:
    """Answer with one byte now and then, for ever: no single wait is long."""
    handler.begin()
    while not handler.server.must_end.wait(0.05):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def silent(handler: Handler) -> None:
    handler.server.must_end.wait(30)


def hanging_up(handler: Handler) -> None:
    handler.close_connection = True


def cut_off(handler: Handler) -> None:
    handler.begin(content_length="1000")
    handler.wfile.write(b'{"keys": [')


class Bench:
    """Token verifier with the keys of a real server; its clock runs as fast as a test says."""

    def __init__(self, server: JwksServer, pace: RefreshIntervals = PACE, **settings: Any) -> None:
        self.server = server
        self.passed_s = 0.0
        made = AuthenticationSettings(jwks_url=server.url, jwt_issuer=ISSUER, jwt_audience=AUDIENCE, **settings)
        self.tokens = JwtVerifier(made, pace=pace, now_s=lambda: time.time() + self.passed_s)

    @asynccontextmanager
    async def running(self, *, is_ready: bool = True) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(self.tokens.run())
            if is_ready:
                await until(lambda: self.tokens._keys.are_fresh)
            yield
            task.cancel()

    async def ask_twice_more(self) -> None:
        """Wait until the server has begun two more answers: one of them then came entirely after this
        call.
        """
        asked = self.server.asked
        await until(lambda: self.server.asked >= asked + 2)

    def accepts(self, text: str) -> bool:
        try:
            self.tokens.verify(text)
        except Unauthenticated:
            return False
        return True


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)
