from __future__ import annotations

from dataclasses import replace

import pytest

from control_plane.core.principal import Credentials
from control_plane.objects.domain.api_key import ApiKey

KEY = ApiKey(id="0123456789ab", tenant="acme", scopes=(), secret_sha256="0" * 64, created_s=0.0)


@pytest.mark.parametrize(
    ("expires_s", "revoked_s", "valid"),
    [
        pytest.param(None, None, True, id="for ever"),
        pytest.param(101.0, None, True, id="not expired yet"),
        pytest.param(100.0, None, False, id="expires this moment"),
        pytest.param(99.0, None, False, id="expired"),
        pytest.param(None, 101.0, True, id="will be revoked"),
        pytest.param(None, 100.0, False, id="revoked this moment"),
        pytest.param(200.0, 99.0, False, id="revoked before it expires"),
        pytest.param(99.0, 200.0, False, id="expired before it is revoked"),
    ],
)
def test_is_valid(expires_s: float | None, revoked_s: float | None, valid: bool) -> None:
    assert replace(KEY, expires_s=expires_s, revoked_s=revoked_s).is_valid_at(100.0) is valid


def test_credentials_do_not_show_what_they_hold() -> None:
    shown = Credentials(authorization="Bearer secret", api_key="secret", source="192.0.2.1")
    assert "secret" not in f"{shown} {shown!r} {[shown]}"
    assert "192.0.2.1" in repr(shown)
