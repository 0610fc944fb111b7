"""Both tenants ask with their own keys, and only the loud one's callers change."""

from __future__ import annotations

import argparse

from perf.tenants.__main__ import QUIET, _loud_callers, _request
from perf.tenants.report import FLOOD, MODELS, SHARE


def test_only_the_loud_tenants_load_changes() -> None:
    arguments = argparse.Namespace(callers=8, flood=50)
    assert [_loud_callers(load, arguments) for load in (SHARE, FLOOD)] == [8, 400]


def test_requests_show_their_tenants_key_once_and_name_their_model() -> None:
    for name, model in MODELS.items():
        head, _, body = _request(name, f"tg_{QUIET}").partition(b"\r\n\r\n")
        assert head.count(b"\r\nx-api-key: tg_quiet\r\n") == 1
        assert head.startswith(f"POST /v2/models/{model.model}/infer HTTP/1.1\r\n".encode())
        assert f"Content-Length: {len(body)}".encode() in head
