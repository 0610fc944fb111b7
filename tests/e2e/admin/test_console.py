"""The web console in a real browser, before a real gateway and Triton."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from perf.servers.processes import free_port, program
from tests.e2e import tidegate as servers
from tests.e2e.accounts import OPERATORS, Administrator, make_first_key
from tests.e2e.loads import bad_models
from tests.e2e.tidegate import COMPLETE, Tidegate

MARKUP = "<img src=x onerror=alert(1)>"
_MS = 30_000
_FAILED_FETCH = "Failed to load resource"
"""What Chromium itself writes of each answer from 400 on, and of each that does not come."""
_WATCH = "addEventListener('securitypolicyviolation', (event) => console.error('violated: ' + event.violatedDirective))"


@dataclass
class Place:
    """A gateway with keys, which can be started anew where it was."""

    gateway: Tidegate
    flags: tuple[str, ...]
    admin: str
    viewer: str
    inferring: str

    @property
    def url(self) -> str:
        return f"{self.gateway.endpoints['admin']}/console"

    def start_anew(self) -> None:
        self.gateway = servers.start(self.gateway.state_dir, *self.flags)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("console")
    for name in ("good", "other"):
        bad_models.write(folder / "models", name)
    bad_models.write(folder / "models", "marked", files={"1/model.py": bad_models.code(f"raise ValueError({MARKUP!r})")})
    admin = make_first_key(folder / "state")
    flags = ("--authentication", "--model-repository", str(folder / "models"), "--load", "good", "--admin-port", str(free_port()), COMPLETE)
    gateway = servers.start(folder / "state", *flags)
    administrator = Administrator(gateway, admin)
    viewer, inferring = administrator.make_key(OPERATORS, "viewer"), administrator.make_key(OPERATORS, "infer:*")
    administrator.do("PUT", "/routes/public", {"model": "good", "targets": [{"model": "other", "weight": 2500}]})
    made = Place(gateway, flags, admin, viewer, inferring)
    yield made
    made.gateway.kill()


@pytest.fixture(scope="module")
def browser(place: Place) -> Iterator[Browser]:
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=program("chromium"), args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield made
        made.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that must not have done what its policy forbids, and whose code must not have failed."""
    context = browser.new_context()
    context.set_default_timeout(_MS)
    expect.set_options(timeout=_MS)
    context.add_init_script(_WATCH)
    made, complaints = context.new_page(), list[str]()
    made.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
    made.on("pageerror", lambda error: complaints.append(str(error)))
    made.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
    yield made
    assert not context.cookies()
    assert [each for each in complaints if not each.startswith(_FAILED_FETCH)] == []
    context.close()


def sign_in(page: Page, place: Place, key: str) -> None:
    page.goto(place.url)
    page.get_by_label("Key", exact=True).fill(key)
    page.get_by_role("button", name="Sign in").click()


def test_a_key_is_asked_for_and_a_wrong_one_is_told(page: Page, place: Place) -> None:
    requested = list[str]()
    page.on("request", lambda request: requested.append(request.url))
    sign_in(page, place, "tg_000000000000_wrong")
    expect(page.get_by_role("alert")).to_contain_text("This key is wrong, or no longer valid.")
    expect(page.get_by_role("navigation")).to_be_hidden()

    page.get_by_label("Key", exact=True).fill(place.inferring)
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("this needs the scope viewer or repository")

    page.get_by_label("Key", exact=True).fill(place.viewer)
    page.get_by_label("Key", exact=True).press("Enter")
    expect(page.get_by_text("Requests are served, and nothing is degraded.")).to_be_visible()
    page.reload()
    expect(page.get_by_text("Requests are served, and nothing is degraded.")).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    page.reload()
    expect(page.get_by_label("Key", exact=True)).to_be_visible()
    origin = place.gateway.endpoints["admin"]
    assert all(url.startswith(origin) and "tg_" not in url for url in requested), requested


def test_each_view_shows_what_the_api_has_and_a_viewer_no_actions(page: Page, place: Place) -> None:
    sign_in(page, place, place.viewer)
    for view, shown in {
        "Models": "good",
        "Rollouts": "other: 25 %",
        "Tenants": OPERATORS,
        "Dead jobs": "No job is dead",
        "Audit": "Route public",
        "Events": "Live",
        "Overview": "of 3",
    }.items():
        page.get_by_role("navigation").get_by_role("link", name=view).click()
        expect(page.locator("main").get_by_text(shown).first).to_be_visible()
        expect(page.locator("main [role=alert]")).to_be_hidden()
    for address in ("constructor", "__proto__", "none"):
        page.goto(f"{place.url}#/{address}")
        expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        page.goto("about:blank")
    page.goto(f"{place.url}#/models/good")
    expect(page.get_by_role("heading", name="good")).to_be_visible()
    expect(page.get_by_text("ready", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name=re.compile("load", re.IGNORECASE))).to_have_count(0)


def test_a_load_is_confirmed_by_name_and_seen_as_it_happens_and_markup_in_an_error_is_text(page: Page, place: Place) -> None:
    sign_in(page, place, place.admin)
    expect(page.get_by_text("Requests are served")).to_be_visible()
    events = page.context.new_page()
    sign_in(events, place, place.viewer)
    events.get_by_role("navigation").get_by_role("link", name="Events").click()
    expect(events.get_by_text("Live")).to_be_visible()

    page.bring_to_front()  # one behind another draws once a second, and a click waits for that
    page.get_by_role("link", name="Models").click()
    page.get_by_label("Filter by name or error").fill("MARK")
    expect(page.get_by_role("link", name="good")).to_have_count(0)
    page.get_by_role("link", name="marked").click()
    page.get_by_role("button", name="Load", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text("Load marked?")
    dialog.get_by_label("Reason").fill("tried für the console")
    dialog.get_by_role("button", name="Load").click()
    expect(dialog.get_by_role("alert")).to_contain_text(MARKUP)
    dialog.get_by_role("button", name="Cancel").click()
    expect(page.get_by_label("Last error")).to_contain_text(MARKUP)
    assert page.locator("main img").count() == 0

    failed = events.get_by_role("row").filter(has_text="model.failed").filter(has_text="marked")
    expect(failed.first).to_contain_text(MARKUP)
    page.goto(f"{place.url}#/models/other")
    page.get_by_role("button", name="Load", exact=True).click()
    dialog.get_by_role("button", name="Load").click()
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Unload")).to_be_visible()
    expect(events.get_by_role("row").filter(has_text="model.loaded").filter(has_text="other")).to_be_visible()
    page.get_by_role("link", name="Audit").click()
    expect(page.get_by_text("tried für the console").first).to_be_visible()


def test_a_rollout_is_paused_and_aborted_by_name(page: Page, place: Place) -> None:
    administrator = Administrator(place.gateway, place.admin)
    administrator.do("PUT", "/routes/plain", {"model": "good"})
    administrator.do("POST", "/models/other/load")
    administrator.do("POST", "/rollouts/plain", {"model": "other", "steps": [{"weight": 5000, "samples": 1000}]})
    sign_in(page, place, place.admin)
    page.get_by_role("navigation").get_by_role("link", name="Rollouts").click()
    shown, dialog = page.get_by_role("region", name="plain", exact=True), page.get_by_role("dialog")
    for verb, then in {"Pause": re.compile(", paused"), "Resume": re.compile("canary$"), "Abort": "aborted"}.items():
        shown.get_by_role("button", name=verb).click()
        expect(dialog.get_by_role("heading")).to_have_text(f"{verb} the rollout of plain?")
        dialog.get_by_role("button", name=verb).click()
        expect(shown.locator(".top").get_by_text(then)).to_be_visible()
    expect(shown.get_by_role("button")).to_have_count(0)


def test_a_gateway_that_is_away_is_told_and_the_page_heals_by_itself(page: Page, place: Place) -> None:
    sign_in(page, place, place.viewer)
    expect(page.get_by_text("Requests are served")).to_be_visible()
    place.gateway.kill()
    expect(page.get_by_role("status")).to_contain_text("The gateway does not answer.")
    place.start_anew()
    expect(page.get_by_text("The gateway does not answer.")).to_have_count(0)
    page.get_by_role("navigation").get_by_role("link", name="Events").click()
    expect(page.get_by_text("Live")).to_be_visible()
