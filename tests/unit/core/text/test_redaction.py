"""Redaction leaves of a URL what holds no secret."""

from __future__ import annotations

import pytest

from control_plane.core.text.redaction import without_secrets, without_user


@pytest.mark.parametrize("text", ["http://h:1,http://h:11", "me@work", "//" * 100_000])
def test_a_text_without_a_user_is_shown_whole(text: str) -> None:
    assert without_user(text) == text


def test_a_query_may_be_a_signature() -> None:
    assert without_secrets("GET http://h/m?X-Amz-Signature=s3cret: 403") == "GET http://h/m?... 403"
    assert without_secrets("403 for https://h/m?sv=1&spr=https,http&sig=s3cret") == "403 for https://h/m?..."
    assert without_secrets("http://h?a=1,https://i?b=2") == "http://h?...,https://i?..."
