"""The admin API under schemathesis: whatever its own OpenAPI document allows, forbids or leaves open, no
answer is undocumented.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema
from starlette.types import Receive, Scope, Send

from tests.aio import changing
from tests.unit.admin.admin_bench import Bench

DOCUMENT = "/openapi.json"

BEYOND_A_SCHEMA = {
    "POST /keys": "the tenant must exist",
    "POST /webhook-secrets": "the same",
    "PUT /routes/{name}": "the model must have another name than the route",
    "PATCH /routes/{name}": "the same",
    "PATCH /objects/{kind}/{name}": "which fields it takes depends on the kind",
    "POST /rollouts/{name}": "without a policy it needs steps",
    "GET /usage": "days must be in order and exist, dimensions differ",
}
BEYOND_A_SCHEMA |= dict.fromkeys(
    (
        *("GET /keys", "GET /models", "GET /tenants", "GET /routes", "GET /prices", "GET /rollouts", "GET /objects/{kind}", "GET /audit"),
        *("GET /dead-jobs", "GET /webhook-secrets"),
    ),
    "which tokens the pages before have given",
)
"""What a document cannot say: here a request that fits it may be refused with 400."""


def configuration(examples: int, *, phases: dict[str, Any] | None = None, **more: object) -> SchemathesisConfig:
    refused = {"checks": {"positive_data_acceptance": {"expected-statuses": ["2xx", "400", "404", "409", "501"]}}}
    return SchemathesisConfig.from_dict(
        {
            "seed": 1,
            "continue-on-failure": True,
            "generation": {"max-examples": examples, "deterministic": True, "database": "none", "no-shrink": True},
            # Its coverage phase counts `if-match: 0` as fitting, whatever the header's pattern.
            "phases": {"coverage": {"checks": {"positive_data_acceptance": {"enabled": False}}}} | (phases or {}),
            "operations": [{"include-name": name} | refused for name in BEYOND_A_SCHEMA],
        }
        | more
    )


class Findings:
    """Findings of one schemathesis run by check and call, and the answers that it saw."""

    def __init__(self, bench: Bench, config: SchemathesisConfig, **headers: str) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            bench.clock.now_s += 61  # failed attempts are not slowed
            async with changing(bench.models):
                await bench.app(scope, receive, send)

        schema = schemathesis.openapi.from_asgi(DOCUMENT, app=app, config=config, headers=headers)
        self.failures: dict[str, str] = {}
        self.errors: list[str] = []
        self.answers: Counter[tuple[str, int]] = Counter()
        for event in from_schema(schema).execute():
            if isinstance(event, events.NonFatalError):
                self.errors.append(f"{event.label}: {event.value!r}")
            elif isinstance(event, events.FatalError):
                self.errors.append(repr(event.exception))
            elif isinstance(event, events.ScenarioFinished):
                self._take(event)

    def _take(self, event: events.ScenarioFinished) -> None:
        for interaction in event.recorder.interactions.values():
            assert interaction.response is not None
            self.answers[interaction.request.method, interaction.response.status_code] += 1
        for checks in event.recorder.checks.values():
            for check in checks:
                if check.failure_info is not None:
                    told = f"{check.failure_info.failure}\n{check.failure_info.code_sample}"
                    self.failures.setdefault(f"{check.name} {event.label}", told)


def assert_nothing_found(found: Findings) -> None:
    assert found.errors == []
    assert not found.failures, "\n\n".join(f"{where}: {what}" for where, what in found.failures.items())
    assert not [status for _, status in found.answers if status >= 500]


def test_the_api_is_as_its_document_says() -> None:
    bench = Bench()
    bench.make_key()
    found = Findings(bench, configuration(4))
    assert_nothing_found(found)
    # That it came past the refusals: everything was made, read, changed and deleted.
    assert {("PUT", 200), ("GET", 200), ("POST", 201), ("DELETE", 204), ("PUT", 409), ("GET", 404), ("PUT", 400)} <= found.answers.keys()


def test_nothing_is_answered_to_those_without_a_key() -> None:
    bench = Bench(authentication=True)
    header = {"Authorization": f"Bearer {bench.make_key()}"}
    phases = {"coverage": {"enabled": False}, "stateful": {"enabled": False}}  # as without keys
    config = configuration(1, phases=phases, auth={"openapi": {"bearer": {"bearer": header["Authorization"][7:]}}})
    found = Findings(bench, config, **header)
    assert_nothing_found(found)
    assert {("GET", 200), ("GET", 401), ("PUT", 401)} <= found.answers.keys()


def test_a_defect_would_be_found() -> None:
    """The checks do find defects: an undocumented answer, and a handler that fails."""
    bench = Bench()
    document: dict[str, Any] = bench.app.openapi()
    document["paths"] = {path: operations for path, operations in document["paths"].items() if path == "/tenants/{name}"}
    del document["paths"]["/tenants/{name}"]["get"]["responses"]["400"]

    @bench.app.get("/defect")
    async def defect() -> None:
        raise ZeroDivisionError

    document["paths"]["/defect"] = {"get": {"responses": {"204": {"description": ""}}}}
    found = Findings(bench, configuration(1, phases={"fuzzing": {"enabled": False}, "stateful": {"enabled": False}}))
    assert "status_code_conformance GET /tenants/{name}" in found.failures
    assert found.errors[0] == "GET /defect: ZeroDivisionError()"
