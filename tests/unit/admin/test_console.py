from __future__ import annotations

import re
from pathlib import Path

import pytest

from control_plane.admin.console import files
from tests.unit.admin.admin_bench import Bench

STATIC = Path(files.__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench(authentication=True)


@pytest.mark.parametrize("path", ["/console", *(f"/console/{each.name}" for each in sorted(STATIC.iterdir()))])
def test_each_file_needs_no_key_and_lets_the_page_do_little(bench: Bench, path: str) -> None:
    answer = bench.response("GET", path)
    assert answer.status_code == 200
    told = answer.headers
    assert told["content-security-policy"] == POLICY
    assert (told["x-content-type-options"], told["referrer-policy"], told["cache-control"]) == ("nosniff", "no-referrer", "no-cache")
    assert "set-cookie" not in told
    assert told["content-type"] in files._TYPES.values()


def test_a_browser_that_has_a_file_is_not_sent_it_again(bench: Bench) -> None:
    first = bench.response("GET", "/console/main.js")
    for known in (first.headers["etag"], f"W/{first.headers['etag']}", f'"other", {first.headers["etag"]}', "*"):
        again = bench.response("GET", "/console/main.js", if_none_match=known)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    assert bench.response("GET", "/console/main.js", if_none_match='"other"').content == first.content


def test_the_head_alone(bench: Bench) -> None:
    whole, head = bench.response("GET", "/console"), bench.response("HEAD", "/console")
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(whole.content)))
    assert head.headers["etag"] == whole.headers["etag"]


def test_a_slash_at_the_end_leads_back_to_the_page_below_whatever_path_a_proxy_has_it(bench: Bench) -> None:
    answer = bench.response("GET", "/console/")
    assert (answer.status_code, answer.headers["location"]) == (308, "../console")


@pytest.mark.parametrize("path", ["/console/none.js", "/console/..%2ffiles.py", "/console/%2e%2e/files.py", "/console/static/main.js"])
def test_there_is_nothing_else(bench: Bench, path: str) -> None:
    status, body = bench.ask("GET", path)
    assert (status, body["code"]) == (404, "route_not_found")


def test_it_takes_no_changes(bench: Bench) -> None:
    bench.make_key()
    assert bench.ask("POST", "/console")[0] == 401
    assert bench.response("POST", "/console", authorization=f"Bearer {bench.make_key()}").headers["allow"] == "GET, HEAD"


def test_it_can_be_switched_off() -> None:
    status, body = Bench(console=False).ask("GET", "/console")
    assert (status, body["code"]) == (404, "route_not_found")


def test_pages_of_other_sites_are_refused_as_ever(bench: Bench) -> None:
    status, body = bench.ask("GET", "/console/main.js", origin="https://evil.example")
    assert (status, body["code"]) == (403, "foreign_origin")


def test_its_actions_reach_a_port_that_has_a_name_of_its_own_and_demands_keys(bench: Bench) -> None:
    key = f"Bearer {bench.make_key()}"
    own, host = "https://tidegate.internal", "tidegate.internal"
    assert bench.ask("POST", "/models/b/load", authorization=key, origin=own, host=host)[0] == 200
    assert bench.ask("POST", "/models/b/load", origin=own, host=host)[0] == 401
    assert bench.ask("POST", "/models/b/load", authorization=key, origin="https://evil.example", host=host)[0] == 403


def test_no_other_page_runs_code_beside_it_that_is_from_elsewhere() -> None:
    """It could do what the console's reader may do, without authentication everything."""
    bench = Bench()
    paths = [route.path for route in bench.app.routes if "GET" in route.methods and "{" not in route.path and route.path != "/events"]
    pages = [each for each in paths if bench.response("GET", each).headers.get("content-type", "").startswith("text/html")]
    assert pages == ["/console"]


def test_files_ask_for_nothing_elsewhere_and_make_no_markup_of_data() -> None:
    text = {each.name: each.read_text() for each in STATIC.iterdir()}
    for name, content in text.items():
        found = re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|document\.cookie|style=", content)
        assert not found, (name, found)
        assert not [each for each in re.findall(r"https?://[^\"' >]*", content) if each != "http://www.w3.org/2000/svg"], name
    for name in re.findall(r'"(?:\./|console/)([a-z]+\.[a-z]+)"', "".join(text.values())):
        assert name in text
