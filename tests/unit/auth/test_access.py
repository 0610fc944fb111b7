from __future__ import annotations

from dataclasses import replace
from ipaddress import ip_network

import pytest

from control_plane.auth.access import Access
from control_plane.auth.authentication import Authentication
from control_plane.auth.domain.auth_backoff import AuthBackoff
from control_plane.auth.domain.authorization import Need
from control_plane.core.errors import LimitExceeded, PermissionDenied, Unauthenticated
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.core.scope import EVERYTHING, Right
from control_plane.objects.domain.api_key import ApiKey
from control_plane.objects.domain.route import Route
from control_plane.objects.domain.tenant import Tenant
from tests.fakes.governance import api_key, key_text, known_state

KNOWN = known_state(keys=(api_key(1, "infer:a*"),), tenants=(Tenant("team"),), routes=(Route("alias", "model", tenants=("others",)),))


def access() -> Access:
    authentication = Authentication(KNOWN, None, attempts=AuthBackoff())
    return Access(KNOWN, authentication, trusted_proxies=[ip_network("10.0.0.0/8")])


def test_without_authentication_everybody_is_nobody_and_may_do_everything() -> None:
    open_to_all = Access(KNOWN, None)

    caller = open_to_all.identify(authorization="nonsense", api_key=None, peer="1.2.3.4", forwarded_for=None)

    assert caller is ANONYMOUS
    assert not open_to_all.is_on
    open_to_all.require(caller, Need(Right.ADMIN))
    open_to_all.require(caller, Need(Right.INFER, "alias"))


@pytest.mark.parametrize(
    ("need", "is_allowed"),
    [
        (None, True),
        (Need(Right.INFER, "abc"), True),
        (Need(Right.INFER, "b"), False),
        (Need(Right.INFER, "alias"), False),  # its scope fits the route, but it is not of the route's tenants
        (Need(Right.ADMIN), False),
    ],
)
def test_a_caller_may_what_its_scopes_and_the_route_allow(need: Need | None, is_allowed: bool) -> None:
    caller = access().identify(authorization=f"Bearer {key_text(1)}", api_key=None, peer="", forwarded_for=None)

    if is_allowed:
        access().require(caller, need)
    else:
        with pytest.raises(PermissionDenied):
            access().require(caller, need)


def test_who_fails_too_often_is_slowed_by_the_address_that_a_trusted_proxy_tells() -> None:
    guarded = access()

    def attempt(forwarded_for: str) -> None:
        guarded.identify(authorization=None, api_key=key_text(99), peer="10.0.0.1", forwarded_for=forwarded_for)

    for _ in range(10):
        with pytest.raises(Unauthenticated):
            attempt("203.0.113.5")

    with pytest.raises(LimitExceeded):
        attempt("203.0.113.5")
    with pytest.raises(Unauthenticated):
        attempt("203.0.113.6")


@pytest.mark.parametrize(("known", "is_on", "matter"), [(KNOWN, False, True), (known_state(), False, False), (known_state(), True, True)])
def test_names_matter_where_there_are_routes_or_rights(known: object, is_on: bool, matter: bool) -> None:
    authentication = Authentication(KNOWN, None, attempts=AuthBackoff()) if is_on else None

    assert Access(known, authentication).needs_model_name is matter  # type: ignore[arg-type]


def keyed(*keys: ApiKey) -> Access:
    return Access(known_state(keys=keys, tenants=(Tenant("a"), Tenant("b"), Tenant("tokens"))), None)


def of(tenant: str) -> Principal:
    return Principal(tenant, "", EVERYTHING)


FIRST, NEXT, OF_B = replace(api_key(1, tenant="a"), created_s=5.0), replace(api_key(2, tenant="a"), created_s=6.0), api_key(3, tenant="b")


def test_a_tenants_sequence_key_is_its_own_and_stays_when_it_gets_other_keys() -> None:
    access = keyed(FIRST, OF_B)
    assert len({access.sequence_key(of(tenant)) for tenant in ("a", "b", "tokens")}) == 3
    assert access.sequence_key(of("a")) == access.sequence_key(of("a")) == keyed(NEXT, FIRST).sequence_key(of("a"))


def test_a_tenants_sequence_key_needs_what_other_tenants_do_not_know() -> None:
    assert keyed(FIRST).sequence_key(of("a")) != keyed(NEXT).sequence_key(of("a"))


def test_without_keys_of_its_own_a_tenants_sequence_key_is_by_the_stores_first_one() -> None:
    keys = {keyed(*each).sequence_key(of("tokens")) for each in ((OF_B, FIRST), (OF_B, NEXT), (FIRST, NEXT), ())}
    assert len(keys) == 3


def test_a_tenants_first_key_is_known_as_soon_as_it_is_mirrored() -> None:
    known = known_state(keys=(OF_B,))
    access = Access(known, None)
    before = access.sequence_key(of("a"))
    known.keys = {FIRST.id: FIRST, OF_B.id: OF_B}
    assert access.sequence_key(of("a")) == keyed(FIRST).sequence_key(of("a")) != before
