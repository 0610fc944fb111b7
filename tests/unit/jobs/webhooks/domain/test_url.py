"""Where a webhook may go: forms of URLs, and addresses that stand for something else."""

from __future__ import annotations

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.jobs.webhooks.domain.url import UrlRules, WebhookUrl, read_networks

RULES = UrlRules()

REFUSED = [
    *("10.1.2.3", "172.16.0.1", "192.168.1.1", "127.0.0.1", "127.8.8.8", "0.0.0.0", "169.254.169.254", "100.64.0.1", "100.100.100.200"),
    *(
        "192.0.0.170",
        "192.0.2.1",
        "198.18.0.1",
        "198.51.100.1",
        "203.0.113.9",
        "224.0.0.1",
        "239.255.255.250",
        "240.0.0.1",
        "255.255.255.255",
    ),
    *("168.63.129.16", "192.88.99.1"),
    *("::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "ff0e::1", "2001:db8::1", "3fff::1"),
    *("::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "::8.8.8.8", "::ffff:0:127.0.0.1"),
    *("64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::a00:1", "2002:7f00:1::1", "2002:0808:0808::1", "2001:0:4136:e378::1", "5f00::1"),
    *("not an address", "", "127.1"),
]
"""Addresses that are not of a host on the public Internet, and forms in which some others come."""


@pytest.mark.parametrize("address", REFUSED)
def test_addresses_that_lead_inside(address: str) -> None:
    assert not RULES.allow(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:4700::6810:84e5", "2a00:1450:4001::200e", "2001:4860:4860::8888"])
def test_addresses_of_the_public_internet(address: str) -> None:
    assert RULES.allow(address)


def test_networks_that_are_allowed_in_spite() -> None:
    rules = UrlRules(networks=read_networks(["127.0.0.0/8", "fd00::/8"]))
    assert [rules.allow(each) for each in ("127.0.0.1", "fd00::5", "10.0.0.1", "::1", "::ffff:127.0.0.1", "8.8.8.8")] == [
        *(True, True),
        *(False, False, False),
        True,
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("https://a.example/hook?x=1&y", WebhookUrl("a.example", 443, "/hook?x=1&y", True, "a.example")),
        ("https://A.Example:8443", WebhookUrl("a.example", 8443, "/", True, "A.Example:8443")),
        ("https://[2606:4700::1]:443/", WebhookUrl("2606:4700::1", 443, "/", True, "[2606:4700::1]:443")),
        ("https://8.8.8.8/a%20b", WebhookUrl("8.8.8.8", 443, "/a%20b", True, "8.8.8.8")),
        ("https://under_score.example/?", WebhookUrl("under_score.example", 443, "/", True, "under_score.example")),
    ],
)
def test_what_is_read_of_a_url(text: str, expected: WebhookUrl) -> None:
    assert RULES.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "a.example/hook", "//a.example", "http://a.example/", "ftp://a.example/", "file:///etc/passwd", "gopher://a.example/"),
        *(
            "https://user:password@a.example/",
            "https://@a.example/",
            "https://a.example/#f",
            "https://a.example#",
            "https:///x",
            "https://",
        ),
        *("https://a.example:0/", "https://a.example:65536/", "https://a.example:/", "https://a.example:8x/", "https://a.example:-1/"),
        *(
            "https://a.example/\r\nx: y",
            "https://a.example/ b",
            "https://a.example\\@b.example/",
            "https://ä.example/",
            "https://a.example/\0",
        ),
        *("https://127.1/", "https://0x7f.1/", "https://0x7f000001/", "https://2130706433/", "https://0177.0.0.1/", "https://a.example./"),
        *(
            "https://[::1]/",
            "https://[fe80::1%25eth0]/",
            "https://[::ffff:127.0.0.1]/",
            "https://10.0.0.1/",
            "https://[1.2.3.4]/",
            "https://::1/",
        ),
        *(
            "https://169.254.169.254/latest/meta-data/",
            "https://-a.example/",
            "https://a..example/",
            "https://%6c/",
            "https://a.example/" + "x" * 2048,
        ),
    ],
)
def test_urls_that_are_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        RULES.parse(text)
    assert "password" not in str(refused.value)


def test_plaintext_is_for_those_who_allow_it() -> None:
    assert UrlRules(plaintext=True).parse("http://a.example/") == WebhookUrl("a.example", 80, "/", False, "a.example")
