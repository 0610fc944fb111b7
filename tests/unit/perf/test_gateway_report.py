"""What a peer adds is told round by round, and targets are judged by the right peer."""

from __future__ import annotations

import pytest

from perf.gateway_report import Case, Run, added_p50_us, print_targets, size_of


def results(door: str = "http", **p50_ms: list[float]) -> dict[Case, list[Run]]:
    """By peer, `_` for `-`: the p50 of each round; a peer answers 1000 / p50 requests/s."""
    return {
        Case(door, 1536, 1, peer.replace("_", "-")): [Run(1000 / each, each, each, 10.0, 0) for each in rounds]
        for peer, rounds in p50_ms.items()
    }


def verdicts(measured: dict[Case, list[Run]], capsys: pytest.CaptureFixture[str]) -> list[tuple[str, bool]]:
    print_targets(measured)
    lines = [line.strip() for line in capsys.readouterr().out.splitlines() if line.rstrip().endswith("met")]
    return [(line.partition("  ")[0], not line.endswith("not met")) for line in lines]


def test_added_is_the_median_of_each_rounds_difference() -> None:
    measured = results(straight=[1.0, 5.0, 2.0], nginx=[1.1, 5.2, 2.3])
    assert added_p50_us(measured, Case("http", 1536, 1, "nginx")) == pytest.approx(200)


def test_http_targets(capsys: pytest.CaptureFixture[str]) -> None:
    measured = results(straight=[1.0], nginx=[1.1], tidegate=[1.2], starlette_aiohttp=[7.0])
    assert verdicts(measured, capsys) == [
        ("throughput / nginx's", True),
        ("added p50 / nginx's", False),
        ("throughput / starlette-aiohttp's", True),
    ]


def test_grpc_targets(capsys: pytest.CaptureFixture[str]) -> None:
    measured = results("grpc", straight=[1.0], tidegate=[1.14], grpc_aio=[1.3])
    assert verdicts(measured, capsys) == [("added p50 us", True), ("added p50 / grpc-aio's", False)]


def test_no_ratio_to_a_peer_that_seems_to_add_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    measured = results(straight=[1.0], nginx=[0.9], tidegate=[1.2])
    assert verdicts(measured, capsys) == [("throughput / nginx's", True)]


@pytest.mark.parametrize(("tensor_bytes", "text"), [(1536, "1.5 KB"), (1 << 20, "1 MB"), (3 << 19, "1.5 MB")])
def test_sizes(tensor_bytes: int, text: str) -> None:
    assert size_of(tensor_bytes) == text
