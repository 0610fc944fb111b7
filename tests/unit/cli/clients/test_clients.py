from __future__ import annotations

import json
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from control_plane.admin.client import AdminClient
from control_plane.cli.clients.embeddings import EmbeddingClient
from control_plane.cli.clients.jobs import JobClient
from control_plane.cli.clients.model import ModelClient
from control_plane.core.errors import InvalidRequest, ObjectNotFound, UpstreamUnavailable
from tests.http_server import serving
from tests.tls_files import Authority, needs_openssl

MODEL = {"name": "a", "state": "READY", "reason": "", "versions": ["1"], "memory_bytes": None}


class Gateway(HTTPServer):
    """HTTP server that answers every request with `status` and `body`, and records the requests."""

    retry_after = server_timing = ""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.status, self.body = 200, json.dumps(MODEL)
        self.content_type = "application/json"
        self.requests: list[tuple[str, str, Any]] = []
        self.authorizations: list[str | None] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Gateway
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.requests.append((self.command, self.path, json.loads(sent) if sent else None))
        self.server.authorizations.append(self.headers.get("Authorization"))
        body = self.server.body.encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", self.server.content_type)
        if self.server.server_timing and self.headers.get("Tidegate-Timing") == "1":
            self.send_header("Server-Timing", self.server.server_timing)
        if self.server.retry_after:
            self.send_header("Retry-After", self.server.retry_after)
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = _answer  # noqa: N815 - the library's names

    def log_message(self, format: str, *args: Any) -> None: ...  # noqa: A002 - the library's name


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    with Gateway() as server, serving(server):
        yield server


class UnixGateway(Gateway):
    address_family = socket.AF_UNIX

    def __init__(self, path: Path) -> None:
        HTTPServer.__init__(self, str(path), _Handler, bind_and_activate=False)  # type: ignore[arg-type]
        socketserver.TCPServer.server_bind(self)  # HTTPServer's own wants a host and a port
        self.server_activate()
        self.status, self.body, self.requests = 200, json.dumps(MODEL), []
        self.content_type, self.authorizations = "application/json", []
        self.url = f"unix:{path}"

    def get_request(self) -> tuple[socket.socket, Any]:
        return super().get_request()[0], ("local", 0)


@pytest.fixture
def embedder(gateway: Gateway) -> Iterator[EmbeddingClient]:
    client = EmbeddingClient(gateway.url)
    yield client
    client.close()


class TestAdminClient:
    @pytest.mark.parametrize("url", ["127.0.0.1:8080", "nonsense", "ftp://127.0.0.1", ""])
    def test_what_is_no_url_is_told_with_what_would_be_one(self, url: str) -> None:
        with pytest.raises(InvalidRequest, match=r"is no URL to ask at: expected http://HOST:PORT"):
            AdminClient(url).list_models()

    def test_a_wrong_field_is_named_without_where_the_request_had_it(self, gateway: Gateway) -> None:
        gateway.status, gateway.body = 400, json.dumps({"error": "body.weight: too low; path.name: in a body.x"})
        with pytest.raises(InvalidRequest, match=r"^weight: too low; name: in a body.x \(HTTP 400\)$"):
            AdminClient(gateway.url).load("a")

    def test_list(self, gateway: Gateway) -> None:
        gateway.body = json.dumps([MODEL])
        assert AdminClient(gateway.url).list_models() == [MODEL]
        assert gateway.requests == [("GET", "/models?limit=500", None)]

    def test_load_and_unload(self, gateway: Gateway) -> None:
        assert AdminClient(gateway.url).load("a") == AdminClient(gateway.url).unload("a") == MODEL
        assert AdminClient(gateway.url).release("a") == MODEL
        assert AdminClient(gateway.url).load("a", everywhere=True) == MODEL
        paths = ["/models/a/load", "/models/a/unload", "/models/a/release", "/models/a/load?everywhere=true"]
        assert [path for _, path, _ in gateway.requests] == paths

    @pytest.mark.parametrize(
        ("name", "path"), [("a b", "/models/a%20b/load"), ("a?b", "/models/a%3Fb/load"), ("..x#", "/models/..x%23/load")]
    )
    def test_a_name_stays_one_segment(self, gateway: Gateway, name: str, path: str) -> None:
        AdminClient(gateway.url).load(name)
        assert gateway.requests[0][1] == path

    @pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../keys"])
    def test_a_name_that_would_be_another_path_is_not_asked_for(self, gateway: Gateway, name: str) -> None:
        with pytest.raises(InvalidRequest, match="is no name: a name is 1-255 letters, digits"):
            AdminClient(gateway.url).load(name)
        assert not gateway.requests

    @pytest.mark.parametrize(
        ("body", "text"),
        [
            (json.dumps({"error": "bad weights", "code": "load_failed", "retryable": False}), r"^bad weights \(HTTP 422\)$"),
            (json.dumps({"detail": "other"}), r'\{"detail": "other"\} \(HTTP 422\)'),
            (json.dumps(["odd"]), r"odd.*\(HTTP 422\)"),
            ("<html>", r"<html> \(HTTP 422\)"),
            ("", r" \(HTTP 422\)"),
        ],
    )
    def test_a_refusal_is_told_in_its_own_words(self, gateway: Gateway, body: str, text: str) -> None:
        gateway.status, gateway.body = 422, body
        with pytest.raises(InvalidRequest, match=text):
            AdminClient(gateway.url).load("a")

    @pytest.mark.parametrize(
        ("status", "body", "raised"),
        [
            (404, '{"error": "why"}', ObjectNotFound),
            (409, '{"error": "why"}', InvalidRequest),
            (503, '{"error": "why"}', UpstreamUnavailable),
            pytest.param(504, '{"error": "why"}', InvalidRequest, id="a load that takes too long"),
            pytest.param(502, "why", UpstreamUnavailable, id="a proxy whose gateway is away"),
            pytest.param(504, "why", UpstreamUnavailable, id="a proxy whose gateway says nothing"),
            pytest.param(404, "why", ObjectNotFound, id="a proxy without such a path"),
        ],
    )
    def test_what_is_away_for_a_while_is_told_from_what_is_wrong(
        self, gateway: Gateway, status: int, body: str, raised: type[Exception]
    ) -> None:
        gateway.status, gateway.body = status, body
        with pytest.raises(raised, match=rf"^why \(HTTP {status}\)$"):
            AdminClient(gateway.url).load("a")

    @pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[", "http://no-such-host.invalid"])
    def test_nobody_there_says_what_to_check(self, url: str) -> None:
        with pytest.raises(UpstreamUnavailable, match=r"no answer from .* is `tidegate serve` running there\?"):
            AdminClient(url).list_models()

    def test_what_is_timed_is_sent_as_it_is_and_its_answer_not_read(self, gateway: Gateway) -> None:
        """A large tensor takes longer to write and to read as JSON than to compute."""
        gateway.body = "no JSON"
        client = ModelClient(gateway.url, "m")
        assert client.infer(client.encoded({"inputs": []})) == {}
        gateway.server_timing = "total;dur=2.5"
        assert client.infer(client.encoded({"inputs": []})) == {"total": 2.5}
        assert gateway.requests == [("POST", "/v2/models/m/infer", {"inputs": []})] * 2
        gateway.status, gateway.body = 404, '{"error": "no such model"}'
        with pytest.raises(ObjectNotFound, match="no such model"):
            client.infer(b'{"inputs": []}')
        client.close()

    def test_of_a_stream_each_response_is_heard_with_its_tokens(self, gateway: Gateway) -> None:
        responses = [{"num_output_tokens": 1}, {"num_output_tokens": [2, 3]}, {"text_output": ""}, {"num_output_tokens": ["?"]}]
        gateway.body, gateway.server_timing = "".join(f"data: {json.dumps(each)}\n\n" for each in responses), "total;dur=2.5"
        heard = list[int | None]()
        with closing(ModelClient(gateway.url, "m")) as client:
            sent = client.encoded_stream({"inputs": [{"name": "X", "shape": [1], "data": [7]}]})
            assert client.stream(sent, heard.append) == {"total": 2.5}
        assert heard == [1, 5, None, None]
        assert gateway.requests == [("POST", "/v2/models/m/generate_stream", {"X": 7})]

    @pytest.mark.parametrize(
        ("status", "body", "raised", "said"),
        [
            pytest.param(200, 'data: {"error": "oops"}\n\n', InvalidRequest, r"^oops \(in the stream\)$", id="in the stream"),
            pytest.param(404, '{"error": "why"}', ObjectNotFound, r"^why \(HTTP 404\)$", id="before it"),
            pytest.param(200, "data: <html>\n\n", UpstreamUnavailable, "has broken off", id="somebody else"),
            pytest.param(200, "data: 5\n\n", UpstreamUnavailable, "has broken off: a response is no object", id="no response"),
            pytest.param(400, '{"error": {"message": "why"}}', InvalidRequest, r'"why"}} \(HTTP 400\)$', id="in another form"),
        ],
    )
    def test_an_error_of_a_stream_is_told(self, gateway: Gateway, status: int, body: str, raised: type[Exception], said: str) -> None:
        gateway.status, gateway.body = status, body
        with closing(ModelClient(gateway.url, "m")) as client, pytest.raises(raised, match=said):
            client.stream(b"{}", lambda tokens: None)

    def test_one_that_says_nothing_is_not_waited_for_without_end(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            client = ModelClient(f"http://127.0.0.1:{silent.getsockname()[1]}", "m", timeout_s=0.05)
            with pytest.raises(UpstreamUnavailable, match=r"no answer from .*: timed out; is `tidegate serve` running there"):
                client.metadata()
            client.close()

    def test_a_gateway_that_goes_away_meanwhile_is_named(self) -> None:
        with pytest.raises(UpstreamUnavailable, match=r"no answer from"):
            ModelClient("http://127.0.0.1:1", "m").ping()

    def test_somebody_else_there_says_so_too(self, gateway: Gateway) -> None:
        gateway.body = "<html>welcome</html>"
        with pytest.raises(UpstreamUnavailable, match=r"no answer from"):
            AdminClient(gateway.url).list_models()

    @pytest.mark.parametrize("body", ["[]", "5", "null"])
    def test_what_is_no_gateways_data_port_is_told(self, gateway: Gateway, body: str) -> None:
        gateway.body = body
        with closing(ModelClient(gateway.url, "m")) as client:
            for ask in (client.metadata, client.config, lambda: client.statistics("m")):
                with pytest.raises(InvalidRequest, match="otherwise than a gateway does"):
                    ask()

    def test_a_port_that_is_not_the_admin_apis_is_named(self, gateway: Gateway) -> None:
        gateway.status, gateway.body = 404, json.dumps({"error": "Not Found"})
        with pytest.raises(ObjectNotFound, match=r"there is no admin API at that address: .* port 8080"):
            AdminClient(gateway.url).list_models()

    def test_a_proxy_in_the_environment_is_not_asked(self, gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:1")
        assert AdminClient(gateway.url).load("a") == MODEL

    def test_any_call(self, gateway: Gateway) -> None:
        client = AdminClient(gateway.url)
        assert client.ask("PUT", "tenants", "a b", body={"burst": 1}) == MODEL
        assert client.ask("GET", "usage", query={"by": "tenant,day", "tenant": ""}) == MODEL
        assert gateway.requests == [("PUT", "/tenants/a%20b", {"burst": 1}), ("GET", "/usage?by=tenant%2Cday&tenant=", None)]

    def test_an_answer_without_content(self, gateway: Gateway) -> None:
        gateway.status, gateway.body = 204, ""
        assert AdminClient(gateway.url).ask("DELETE", "tenants", "a") is None

    def test_an_answer_as_csv_is_text(self, gateway: Gateway) -> None:
        gateway.content_type, gateway.body = "text/csv; charset=utf-8", "tenant,requests\r\n"
        assert AdminClient(gateway.url).ask("GET", "usage") == "tenant,requests\r\n"


class TestKeys:
    @pytest.mark.parametrize("key", ["tg_0123456789ab_x", "  tg_0123456789ab_x\n"])
    def test_a_key_is_sent_as_a_bearer_token_without_its_blanks(self, gateway: Gateway, key: str) -> None:
        AdminClient(gateway.url, key).load("a")
        gateway.body = json.dumps({"outputs": [{"shape": [1, 1], "data": [1]}]})
        client = EmbeddingClient(gateway.url, key)
        client.embed(["a"], "m")
        client.close()
        assert gateway.authorizations == ["Bearer tg_0123456789ab_x"] * 2

    @pytest.mark.parametrize("key", [None, "", " \n"])
    def test_none_is_none(self, gateway: Gateway, key: str | None) -> None:
        AdminClient(gateway.url, key).load("a")
        assert gateway.authorizations == [None]

    @pytest.mark.parametrize("key", ["tg_secret\nX: y", "tg_secret\u00e4", "tg_secret more", "tg_secret\x7f"])
    @pytest.mark.parametrize("client", [AdminClient, EmbeddingClient])
    def test_what_cannot_be_shown_is_refused_and_not_repeated(self, client: type[AdminClient | EmbeddingClient], key: str) -> None:
        with pytest.raises(InvalidRequest, match="TIDEGATE_API_KEY has a character") as raised:
            client("http://127.0.0.1:1", key)
        assert "secret" not in str(raised.value)

    def test_who_is_refused_for_want_of_one_is_told_where_to_put_it(self, gateway: Gateway) -> None:
        gateway.status, gateway.body = 401, json.dumps({"error": "the API key is not valid"})
        with pytest.raises(InvalidRequest, match=r"^the API key is not valid \(HTTP 401\); commands send the key in TIDEGATE_API_KEY$"):
            AdminClient(gateway.url).list_models()


class TestEmbeddingClient:
    def test_one_row_per_text(self, gateway: Gateway, embedder: EmbeddingClient) -> None:
        gateway.body = json.dumps({"outputs": [{"name": "EMBEDDING", "shape": [2, 3], "data": [1, 2, 3, 4, 5, 6]}]})
        assert embedder.embed(["a", "\u00e4:"], "text_embedding") == [[1, 2, 3], [4, 5, 6]]
        method, path, sent = gateway.requests[0]
        assert (method, path) == ("POST", "/v2/models/text_embedding/infer")
        assert sent["inputs"] == [{"name": "TEXT", "shape": [2, 1], "datatype": "BYTES", "data": ["a", "\u00e4:"]}]

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param({}, id="no outputs"),
            pytest.param({"outputs": []}, id="none in them"),
            pytest.param({"outputs": [{"shape": [1], "data": [1]}]}, id="one dimension"),
            pytest.param({"outputs": [{"shape": [1, 2, 3], "data": [1] * 6}]}, id="three dimensions"),
            pytest.param({"outputs": [{"shape": [1, 3]}]}, id="no data"),
            pytest.param({"outputs": [{"shape": [2, 1], "data": [1, 2]}]}, id="more than one"),
            pytest.param({"outputs": [{"shape": [0, 3], "data": []}]}, id="none"),
            pytest.param({"outputs": [{"shape": [1, 3], "data": [1]}]}, id="less data"),
            pytest.param({"outputs": [{"shape": [1, 1], "data": ["positive"]}]}, id="a label"),
            pytest.param([], id="not an object"),
        ],
    )
    def test_a_model_of_another_kind_is_named(self, gateway: Gateway, embedder: EmbeddingClient, body: object) -> None:
        gateway.body = json.dumps(body)
        with pytest.raises(InvalidRequest, match="model 'm' does not answer with one embedding per text"):
            embedder.embed(["a"], "m")

    def test_a_refusal(self, gateway: Gateway, embedder: EmbeddingClient) -> None:
        gateway.status, gateway.body = 404, '{"error":"Request for unknown model"}'
        with pytest.raises(ObjectNotFound, match=r"Request for unknown model \(HTTP 404\)"):
            embedder.embed(["a"], "m")


@pytest.mark.parametrize(
    ("told", "pause_s"), [("3", 3.0), ("600", 30.0), ("", 1.0), ("Wed, 21 Oct 2026 07:28:00 GMT", 1.0), ("-5", 1.0), ("nan", 1.0)]
)
def test_a_job_is_handed_in_again_when_the_refusal_says(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, told: str, pause_s: float
) -> None:
    paused: list[float] = []

    def pause(seconds: float) -> None:
        paused.append(seconds)
        gateway.status = 202

    monkeypatch.setattr("control_plane.admin.connection.time.sleep", pause)
    gateway.status, gateway.retry_after, gateway.body = 429, told, '{"id": "job-1"}'
    with closing(JobClient(gateway.url)) as client:
        assert client.submit("m", b"{}", key="k") == {"id": "job-1"}
    assert paused == [pause_s]


def test_embedding_over_a_unix_socket(tmp_path: Path) -> None:
    with UnixGateway(tmp_path / "http.sock") as gateway:
        gateway.body = json.dumps({"outputs": [{"shape": [1, 2], "data": [0.5, 1.5]}]})
        thread = threading.Thread(target=gateway.handle_request)
        thread.start()
        client = EmbeddingClient(gateway.url)
        assert client.embed(["a"], "m") == [[0.5, 1.5]]
        assert gateway.requests[0][:2] == ("POST", "/v2/models/m/infer")
        client.close()
        thread.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # httpcore leaves its socket to the collector
def test_a_unix_socket_that_is_not_there_is_named(tmp_path: Path) -> None:
    client = EmbeddingClient(f"unix:{tmp_path}/none.sock")
    with pytest.raises(UpstreamUnavailable, match=f"no answer from unix:{tmp_path}/none.sock"):
        client.embed(["a"], "m")
    client.close()


@needs_openssl
def test_every_client_trusts_the_authorities_that_ssl_cert_file_names(
    gateway: Gateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = Authority(tmp_path)
    shown, context = authority.issue("gateway"), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(shown.certificate, shown.key)
    gateway.socket = context.wrap_socket(gateway.socket, server_side=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    url = gateway.url.replace("http:", "https:")
    gateway.body = json.dumps({"id": "a", "outputs": [{"shape": [1, 1], "data": [1]}]})
    with closing(EmbeddingClient(url)) as embedder:
        assert embedder.embed(["a"], "m") == [[1]]
    with closing(JobClient(url)) as jobs:
        assert jobs.show("a")["id"] == "a"
    assert AdminClient(url).get("a")["id"] == "a"
