"""Callers are identified once for a head that their connection repeats, for as long as that holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from control_plane.auth.access import Access
from control_plane.auth.authentication import Authentication
from control_plane.auth.domain.auth_backoff import AuthBackoff
from control_plane.core.errors import Unauthenticated
from control_plane.core.principal import ANONYMOUS, Principal
from control_plane.frontends.common.caller import identify
from control_plane.objects.domain.tenant import Tenant
from control_plane.objects.mirror import ObjectMirror
from control_plane.protocols.http1 import HttpRequest
from tests.fakes.governance import api_key, key_text, known_state


class Counted(Access):
    """Access that counts how often it was asked."""

    def __init__(self, known: ObjectMirror, *, is_known: bool = True, now_s: float = 0.0) -> None:
        self.time_s = now_s
        super().__init__(known, Authentication(known, None, attempts=AuthBackoff(), now_s=lambda: self.time_s))
        self.asked = 0
        self._is_known = is_known

    def identify(self, **shown: Any) -> Principal:
        self.asked += 1
        return replace(super().identify(**shown), is_known=self._is_known)


def state(*, expires_s: float | None = None) -> ObjectMirror:
    return known_state(keys=(api_key(1, "infer:*", expires_s=expires_s),), tenants=(Tenant("team"),))


def request(number: int = 1) -> HttpRequest:
    return HttpRequest(b"POST", b"/v2/models/m/infer", [(b"X-Api-Key", key_text(number).encode())])


def test_the_requests_of_one_head_are_identified_once() -> None:
    access, first = Counted(state()), request()
    callers = {identify(access, each) for each in (first, first.with_body(b"1"), first.with_body(b"2"))}
    assert [caller.tenant for caller in callers] == ["team"]
    assert access.asked == 1


def test_another_head_is_identified_by_itself() -> None:
    access = Counted(state())
    identify(access, request())
    with pytest.raises(Unauthenticated):
        identify(access, request(2))


def test_a_key_that_was_revoked_since_is_refused() -> None:
    known = state()
    access, first = Counted(known), request()
    identify(access, first)
    known.keys, known.generation = {}, known.generation + 1
    with pytest.raises(Unauthenticated):
        identify(access, first.with_body(b"2"))


def test_a_key_that_has_expired_since_is_refused() -> None:
    access, first = Counted(state(expires_s=10.0)), request()
    access.time_s = 9.9
    identify(access, first)
    access.time_s = 10.0
    with pytest.raises(Unauthenticated):
        identify(access, first.with_body(b"2"))


def test_a_caller_who_may_be_refused_at_any_time_is_identified_each_time() -> None:
    access, first = Counted(state(), is_known=False), request()
    for _ in range(3):
        identify(access, first)
    assert access.asked == 3


def test_without_authentication_nobody_is_asked() -> None:
    assert identify(Access(state(), None), request()) is ANONYMOUS
