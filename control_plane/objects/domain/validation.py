"""Validation of stored objects: what each kind of them may say. The sentences are for whoever wrote it.

Called by `objects/domain/stored_objects` for writes and for reads. The patterns and bounds are the admin API's, too.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from control_plane.core.model import MODEL_NAME, NAME_GLOB, NAME_RULE
from control_plane.core.names import POOL_NAME
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.applied import Applied
from control_plane.objects.domain.price import Price
from control_plane.objects.domain.purge import EVERY_MODEL, Purge
from control_plane.objects.domain.rollout import Phase, Rollout, Step
from control_plane.objects.domain.rollout_policy import RolloutPolicy
from control_plane.objects.domain.route import WHOLE, Route
from control_plane.objects.domain.tenant import ANY, LOCAL, Tenant
from control_plane.objects.domain.webhook_secret import WebhookSecret
from control_plane.protocols.per_request import PER_REQUEST_FIELDS

KEY_ID = re.compile(r"[0-9a-f]{12}")
WEBHOOK_SECRET = re.compile(r"whsec_[A-Za-z0-9+/]{32,86}={0,2}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_GENERATION = re.compile(r"[0-9a-f]{32}")
VERSION = re.compile(r"[0-9]{0,18}")
CURRENCY = re.compile(r"[A-Z]{3}")
POOL_OR_NONE = re.compile(f"({POOL_NAME.pattern})?")
STICKY = re.compile(r"(tenant|key|sequence|header:[a-z0-9][a-z0-9_.-]{0,99})?")
MAX_TARGETS = 8
MAX_SALT_CHARS = 100
MAX_STEPS = 20
MAX_ALPHA = 0.2
MAX_BAKE_S = 1e7
MAX_OUTPUT_CHARS = 200
AGREEMENT = re.compile(r"([a-z][a-z0-9_-]{0,62})?")
_KIND = re.compile(r"[A-Za-z]{1,63}")
OWNER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@/-]{0,62}")
OWNER_RULE = "1-63 letters, digits and ._@/-, beginning with a letter or digit"
MAX_DESCRIPTION_CHARS = 1000
MAX_PRIORITY = 100

_SECRET_FIELDS = (b"authorization", b"cookie", b"x-api-key")


def problems(value: Any) -> Iterator[str]:
    """Yield what is wrong with an object, and what would be right: a sentence each."""
    return _RULES[type(value)](value)


def _of_key(key: ApiKey) -> Iterator[str]:
    if not KEY_ID.fullmatch(key.id):
        yield "id must be 12 hexadecimal digits"
    yield from _of_name("tenant", key.tenant)
    if not key.scopes:
        yield "scopes: a key without any may do nothing; give it one, such as infer:*"
    if not _SHA256.fullmatch(key.secret_sha256):
        yield "secret_sha256 must be 64 hexadecimal digits"
    for name, moment_s in (("created_s", key.created_s), ("expires_s", key.expires_s), ("revoked_s", key.revoked_s)):
        yield from _of_number(name, moment_s)
    if len(key.description) > MAX_DESCRIPTION_CHARS:
        yield f"description must have {MAX_DESCRIPTION_CHARS} characters at most"


def _of_webhook_secret(secret: WebhookSecret) -> Iterator[str]:
    if not KEY_ID.fullmatch(secret.id):
        yield "id must be 12 hexadecimal digits"
    if secret.tenant:
        yield from _of_name("tenant", secret.tenant)
    if not WEBHOOK_SECRET.fullmatch(secret.secret):
        yield "secret must be whsec_ and the base64 of 24 to 64 bytes"
    yield from _of_number("created_s", secret.created_s)


def _of_tenant(tenant: Tenant) -> Iterator[str]:
    yield from _of_name("name", tenant.name)
    yield from _of_number("requests_per_s", tenant.requests_per_s, above=0)
    yield from _of_number("burst", tenant.burst, least=1)
    yield from _of_number("concurrency", tenant.concurrency, least=1)
    yield from _of_number("daily_compute_units", tenant.daily_compute_units)
    yield from _of_number("weight", tenant.weight, above=0)
    if tenant.regions not in (ANY, LOCAL):
        yield f"regions must be {ANY} or {LOCAL}"
    if abs(tenant.priority) > MAX_PRIORITY:
        yield f"priority must be from -{MAX_PRIORITY} to {MAX_PRIORITY}"


def _of_route(route: Route) -> Iterator[str]:
    yield from _of_name("name", route.name)
    yield from _of_name("model", route.model)
    if route.model == route.name:
        yield "model must be another name: the route stands before the model of its own name"
    if not VERSION.fullmatch(route.version):
        yield "version must be a number, or empty"
    yield from _of_number("deadline_s", route.deadline_s, above=0)
    for tenant in route.tenants or ():
        yield from _of_name("tenants", tenant)
    yield from _of_number("cache.ttl_s", route.cache.ttl_s, above=0)
    yield from _of_number("cache.min_cost_units", route.cache.min_cost_units)
    yield from _of_number("hedging.twice_from_s", route.hedging.twice_from_s, above=0)
    yield from _of_targets(route)
    yield from _of_faster(route)
    yield from _of_mirror(route)
    if not POOL_OR_NONE.fullmatch(route.pool):
        yield "pool must be 1-63 letters, digits, dots, dashes and underscores, beginning with a letter or digit, or empty"


def _of_targets(route: Route) -> Iterator[str]:
    if len(route.targets) > MAX_TARGETS:
        yield f"targets: there may be {MAX_TARGETS} at most"
    for target in route.targets:
        yield from _of_name("targets.model", target.model)
        if not VERSION.fullmatch(target.version):
            yield "targets.version must be a number, or empty"
        if not 0 <= target.weight <= WHOLE:
            yield f"targets.weight must be from 0 to {WHOLE}: requests of {WHOLE:,}"
    if len(set(route.arms)) < len(route.arms):
        yield "targets, faster: each model may be there once, and not the route's own, which gets the rest"
    for model in sorted(_repeated(route.models)):
        if any(not version for name, version in route.arms if name == model):
            yield f"targets: several versions of {model} need their numbers, in all of the route: version, targets.version, faster.version"
    if route.name in route.models[1:]:
        yield "targets.model, faster.model must be another name: the route stands before the model of its own name"
    if sum(target.weight for target in route.targets) > WHOLE:
        yield f"targets: the weights together must be {WHOLE} at most; the route's own model gets the rest"
    if not STICKY.fullmatch(route.sticky):
        yield "sticky must be tenant, key, sequence, header:NAME with a name in lower case, or empty for the request's contents"
    elif route.sticky.startswith("header:") and route.sticky[7:].encode() in (*PER_REQUEST_FIELDS, *_SECRET_FIELDS):
        yield "sticky: a header that differs with each request, or is a secret, cannot keep anybody anywhere; choose another"
    if len(route.salt) > MAX_SALT_CHARS:
        yield f"salt must have {MAX_SALT_CHARS} characters at most"


def _of_faster(route: Route) -> Iterator[str]:
    yield from _of_number("latency_budget_s", route.latency_budget_s, above=0)
    yield from _of_number("cost_budget_units", route.cost_budget_units, above=0)
    if len(route.faster) > MAX_TARGETS:
        yield f"faster: there may be {MAX_TARGETS} at most"
    for each in route.faster:
        yield from _of_name("faster.model", each.model)
        if not VERSION.fullmatch(each.version):
            yield "faster.version must be a number, or empty"


def _of_mirror(route: Route) -> Iterator[str]:
    if (mirror := route.mirror) is None:
        return
    yield from _of_name("mirror.model", mirror.model)
    if not VERSION.fullmatch(mirror.version):
        yield "mirror.version must be a number, or empty"
    if not 0 <= mirror.weight <= WHOLE:
        yield f"mirror.weight must be from 0 to {WHOLE}: requests of {WHOLE:,} that are copied"
    if mirror.model == route.name:
        yield "mirror.model must be another name: the route stands before the model of its own name"
    if any(map(mirror.may_be, route.arms)):
        yield "mirror.model must be none that the route's requests go to, but for another version of it where both have their numbers"


def _repeated(names: Iterable[str]) -> set[str]:
    return {name for name, count in Counter(names).items() if count > 1}


def _of_price(price: Price) -> Iterator[str]:
    yield from _of_name("name", price.name)
    yield from _of_number("from_s", price.from_s)
    for field in ("per_unit", "per_input_token", "per_output_token"):
        yield from _of_number(field, getattr(price, field))
    if not CURRENCY.fullmatch(price.currency):
        yield "currency must be three letters, such as EUR (ISO 4217)"
    if not NAME_GLOB.fullmatch(price.models):
        yield "models must be a glob of names, such as text_*"
    if price.tenant:
        yield from _of_name("tenant", price.tenant)


def _of_purge(purge: Purge) -> Iterator[str]:
    if purge.model != EVERY_MODEL:
        yield from _of_name("model", purge.model)
    if not _GENERATION.fullmatch(purge.generation):
        yield "generation must be 32 hexadecimal digits"


def _of_rollout(rollout: Rollout) -> Iterator[str]:
    for field, name in (("route", rollout.route), ("model", rollout.model), ("stable", rollout.stable)):
        yield from _of_name(field, name)
    if rollout.model == rollout.stable and (not (rollout.version and rollout.stable_version) or rollout.version == rollout.stable_version):
        yield "model must be another one than the route's own, or another version of it where both have their numbers: model@version"
    if rollout.model == rollout.route:
        yield "model must be another name: the route stands before the model of its own name"
    if not _GENERATION.fullmatch(rollout.id):
        yield "id must be 32 hexadecimal digits"
    for version in (rollout.version, rollout.stable_version):
        if not VERSION.fullmatch(version):
            yield "version must be a number, or empty"
    yield from _of_steps(rollout.steps)
    if not 0 <= rollout.step < max(1, len(rollout.steps)):
        yield "step must be the number of a step, from 0"
    yield from _of_shadow(rollout)
    yield from _of_number("entered_s", rollout.entered_s)
    yield from _of_number("bake_s", rollout.bake_s)
    yield from _of_number("copies", rollout.copies, least=1)
    yield from _of_gates(rollout.slower_by, rollout.alpha)


def _of_steps(steps: Sequence[Step]) -> Iterator[str]:
    weights = [step.weight for step in steps]
    if not 0 < len(weights) <= MAX_STEPS:
        yield f"steps: there must be 1 to {MAX_STEPS}"
    if weights != sorted(set(weights)) or not all(0 < weight < WHOLE for weight in weights):
        yield f"steps.weight must rise from step to step, within 1 to {WHOLE - 1}: what stays is what the next model is compared with"
    names = [step.name for step in steps if step.name]
    if len(set(names)) < len(names):
        yield "steps.name: no two steps may have the same"
    for step in steps:
        yield from _of_number("steps.samples", step.samples, least=1)
        yield from _of_number("steps.min_s", step.min_s)
        if step.name:
            yield from _of_name("steps.name", step.name)


def _of_gates(slower_by: float, alpha: float) -> Iterator[str]:
    yield from _of_number("slower_by", slower_by, least=1)
    if not 0 < alpha <= MAX_ALPHA:
        yield f"alpha must be above 0 and at most {MAX_ALPHA:g}"


def _of_shadow(rollout: Rollout) -> Iterator[str]:
    shadow, agreement = rollout.shadow, rollout.agreement
    if shadow is not None:
        if not 0 <= shadow.weight <= WHOLE or (shadow.samples and not shadow.weight):
            yield f"shadow.weight must be from 1 to {WHOLE}: requests of {WHOLE:,} that are copied; 0 where no samples are wanted"
        yield from _of_number("shadow.samples", shadow.samples)
        yield from _of_number("shadow.min_s", shadow.min_s)
    elif rollout.phase is Phase.SHADOW:
        yield "phase: there is no shadow"
    if agreement is not None:
        if not agreement.kind or not AGREEMENT.fullmatch(agreement.kind):
            yield "agreement.kind must be a word, such as same-space"
        yield from _of_number("agreement.limit", agreement.limit)
        if agreement.may_differ is not None and not 0 < agreement.may_differ < 1:
            yield "agreement.may_differ must be between 0 and 1"
        if len(agreement.output) > MAX_OUTPUT_CHARS:
            yield f"agreement.output must have {MAX_OUTPUT_CHARS} characters at most"


def _of_rollout_policy(policy: RolloutPolicy) -> Iterator[str]:
    yield from _of_name("name", policy.name)
    yield from _of_steps(policy.steps)
    yield from _of_gates(policy.gates.slower_by, policy.gates.alpha)
    if not AGREEMENT.fullmatch(policy.gates.agreement):
        yield "gates.agreement must be a kind of agreement, in small letters, digits and underscores, or empty"
    yield from _of_number("bake_s", policy.bake_s)


def _of_applied(applied: Applied) -> Iterator[str]:
    yield from _of_name("name", applied.name)
    if not _KIND.fullmatch(applied.kind):
        yield "kind must be a word, such as Route"
    if not OWNER.fullmatch(applied.owner):
        yield f"owner must be {OWNER_RULE}"


def _of_name(field: str, name: str) -> Iterator[str]:
    if not MODEL_NAME.fullmatch(name):
        yield f"{field} must be {NAME_RULE}"


def _of_number(field: str, number: float | None, *, above: float | None = None, least: float = 0) -> Iterator[str]:
    """Yield what is wrong with a number that must be greater than `above` and not less than `least`; None is
    always allowed.
    """
    if number is None:
        return
    if not math.isfinite(number):
        yield f"{field} must be a finite number"
    elif above is not None and number <= above:
        yield f"{field} must be above {above:g}"
    elif number < least:
        yield f"{field} must be at least {least:g}"


_RULES: Mapping[type[Any], Callable[[Any], Iterator[str]]] = {
    ApiKey: _of_key,
    Tenant: _of_tenant,
    Route: _of_route,
    Price: _of_price,
    Purge: _of_purge,
    Rollout: _of_rollout,
    RolloutPolicy: _of_rollout_policy,
    Applied: _of_applied,
    WebhookSecret: _of_webhook_secret,
}
