from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.protocols.header_forwarding import BACKGROUND_MARK, HOP_FIELD, NO_FORWARDING, GatewayForwarding, HeaderForwarding

TENANT = HeaderForwarding.of("^x-(tenant|locale)$")
ALL = HeaderForwarding.of(".*")


@pytest.mark.parametrize(
    ("name", "by_none", "by_tenant", "by_all"),
    [
        pytest.param(b"accept-encoding", True, True, True, id="what Triton reads"),
        pytest.param(b"inference-header-content-length", True, True, True, id="what frames"),
        pytest.param(b"traceparent", True, True, True, id="what tells requests apart"),
        pytest.param(b"triton-grpc-protocol-key", True, True, True, id="what opens a restricted protocol"),
        pytest.param(b"x-tenant", False, True, True, id="what is named"),
        pytest.param(b"x-tenants", False, False, True, id="a longer name"),
        pytest.param(b"user-agent", False, False, True, id="what nobody asked for"),
        pytest.param(b"x-" + b"a" * 300, False, False, False, id="a name that is none"),
        pytest.param(b"x-tenant-bin", False, False, False, id="what is no text once it is decoded"),
        pytest.param(b"grpc-trace-bin", True, True, True, id="what is no text and no parameter"),
        *(
            pytest.param(name, False, False, False, id=name.decode())
            for name in (
                b"authorization",
                b"x-api-key",
                b"cookie",
                b"set-cookie",
                b"proxy-authorization",
                b"connection",
                b"content-length",
                b"transfer-encoding",
                b"host",
                b"te",
                b"upgrade",
                b"expect",
                b"tidegate-background",
                b"tidegate-control",
                b"tidegate-cost-budget-units",
                b"tidegate-latency-budget-ms",
                b"tidegate-target",
                b"tidegate-time-left-ms",
                b"tidegate-timing",
                b"triton-grpc-protocol-tidegate-control",
                b"priority",
                b"timeout",
                b"sequence_id",
                b"triton_enable_empty_final_response",
                b"triton_grpc_error",
            )
        ),
    ],
)
def test_what_goes_on(name: bytes, by_none: bool, by_tenant: bool, by_all: bool) -> None:
    assert [each.passes(name, b"v") for each in (NO_FORWARDING, TENANT, ALL)] == [by_none, by_tenant, by_all]


def test_what_yields_goes_on_with_the_mark_of_this_process_alone() -> None:
    name, secret = BACKGROUND_MARK
    assert [each.passes(name, secret) for each in (NO_FORWARDING, TENANT, ALL)] == [True, True, True]
    assert not ALL.passes(name, b"1")


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"a\nb", b"a\0", "\xfc".encode("latin-1")])
def test_nothing_that_would_be_another_line_or_no_text(value: bytes) -> None:
    assert not TENANT.passes(b"x-tenant", value)
    assert TENANT.matched([(b"x-tenant", value)]) == b""


def test_text_that_is_not_ascii_goes_on_and_what_is_no_text_does_not_by_any_name() -> None:
    """Triton makes parameters also of fields that it reads itself, where its pattern matches them."""
    assert TENANT.passes(b"x-tenant", "M\xfcller".encode())
    assert not ALL.passes(b"x-request-id", "M\xfcller".encode("latin-1"))


def test_what_is_forwarded_by_the_pattern_is_told_for_a_key() -> None:
    fields = [(b"X-Tenant", b"a"), (b"x-other", b"b"), (b"x-tenant", b"c"), (b"Authorization", b"d")]
    assert NO_FORWARDING.matched(fields) == b""
    assert TENANT.matched(fields) == b"8:X-Tenant1:a8:x-tenant1:c"
    assert TENANT.matched(fields[1:]) != TENANT.matched(fields)
    assert TENANT.matched([(b"x-other", b"b")]) == b""


_FIELDS = st.lists(st.tuples(st.sampled_from([b"x-tenant", b"x-locale", b"X-TENANT"]), st.binary(max_size=4)), max_size=3)


@given(one=_FIELDS, another=_FIELDS)
def test_different_fields_make_different_keys(one: list[tuple[bytes, bytes]], another: list[tuple[bytes, bytes]]) -> None:
    sent = [[field for field in each if TENANT.passes(field[0].lower(), field[1])] for each in (one, another)]
    assert (TENANT.matched(one) == TENANT.matched(another)) == (sent[0] == sent[1])


def test_that_a_request_yields_is_no_part_of_a_key() -> None:
    assert ALL.matched([(b"Tidegate-Background", b"1")]) == b""


@pytest.mark.parametrize(
    ("name", "goes_on"),
    [
        pytest.param(b"authorization", True, id="its caller's token"),
        pytest.param(b"x-api-key", True, id="its caller's key"),
        pytest.param(b"tidegate-timeout-ms", True, id="its time"),
        pytest.param(b"tidegate-target", True, id="its target"),
        pytest.param(b"tidegate-latency-budget-ms", True, id="how long its answer should take"),
        pytest.param(b"tidegate-cost-budget-units", True, id="what its answer should cost"),
        pytest.param(b"accept", True, id="what Triton reads"),
        pytest.param(b"x-tenant", True, id="what models see"),
        pytest.param(b"x-other", False, id="what they do not"),
        pytest.param(HOP_FIELD, False, id="a hop that the caller claims"),
        pytest.param(b"x-forwarded-for", False, id="an address that the caller claims"),
        pytest.param(b"tidegate-control", False, id="a secret of the gateway's"),
        pytest.param(b"tidegate-background", False, id="a mark that holds here only"),
        pytest.param(b"cookie", False, id="what is for one host"),
        pytest.param(b"connection", False, id="what is for one connection"),
    ],
)
def test_what_goes_on_to_another_regions_gateway(name: bytes, goes_on: bool) -> None:
    assert GatewayForwarding(TENANT.pattern).passes(name, BACKGROUND_MARK[1]) is goes_on


def test_a_hop_is_never_told_to_triton_whatever_the_pattern() -> None:
    assert not ALL.passes(HOP_FIELD, b"us")
    assert ALL.matched([(HOP_FIELD, b"us")]) == NO_FORWARDING.matched([])
