"""URLs that webhooks may be sent to, and the addresses that they may lead to (against server-side request forgery).

A caller chooses the URL, and the gateway stands where callers do not: inside the network. So a name is judged by each
address that it resolves to, and the connection goes to the very address that was judged (`adapters/guarded_post`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from urllib.parse import urlsplit

from control_plane.core.errors import InvalidRequest

Network = IPv4Network | IPv6Network

_MAX_URL_CHARS = 2048
_VISIBLE = re.compile(r"[\x21-\x7e]+")
_NAME = re.compile(r"(?=.{1,253}\Z)([a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z][a-z0-9-]{0,62}", re.IGNORECASE)
"""A host name. Its last label begins with a letter: `127.1` and `0x7f000001` are other spellings of addresses."""
_PORTS = {"https": 443, "http": 80}
_SCHEME = "a webhook's URL must begin with https://"

_GLOBAL_V6 = IPv6Network("2000::/3")
"""All that IANA has given out as global unicast addresses."""
_NEVER = tuple(
    map(
        ip_network,
        (
            "2001::/23",  # IETF protocol assignments, Teredo among them, which leads to an IPv4 address
            "2002::/16",  # 6to4, as well
            "2001:db8::/32",
            "3fff::/20",
            "192.88.99.0/24",  # relays of 6to4
            "168.63.129.16/32",  # Azure's host, which serves metadata and credentials at a public address
        ),
    )
)
"""Networks that are not another's host, beside those that `ipaddress` knows (IANA's special-purpose registries)."""


@dataclass(frozen=True, slots=True)
class WebhookUrl:
    """A URL's parts. Its text may hold a secret of the receiver, so it is not shown."""

    host: str
    """Host name or address, without brackets."""
    port: int
    target: str
    """Path and query."""
    is_tls: bool
    authority: str
    """Host and port as the URL writes them."""


@dataclass(frozen=True, slots=True)
class UrlRules:
    """Rules by which webhook URLs are judged: the defaults, and what administrators allow beyond them."""

    plaintext: bool = False
    """Whether http:// will do."""
    networks: tuple[Network, ...] = ()
    """Networks that may be reached although they are not of the public Internet."""

    def parse(self, text: str) -> WebhookUrl:
        """Parse a URL. Raises InvalidRequest: nothing may be sent there; the text does not repeat the URL."""
        url = _parse(text)
        if not (url.is_tls or self.plaintext):
            raise InvalidRequest(f"{_SCHEME}; http:// where an administrator allows it (TIDEGATE_JOBS_WEBHOOK_PLAINTEXT)")
        try:
            address = ip_address(url.host)
        except ValueError:
            return url
        if not self.allow(str(address)):
            raise InvalidRequest(
                "a webhook's URL must lead to the public Internet, or where an administrator allows it (TIDEGATE_JOBS_WEBHOOK_NETWORKS)"
            )
        return url

    def allow(self, address: str) -> bool:
        """Whether a connection may go to this address."""
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self.networks) or _is_public(found)


def read_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Read networks in CIDR notation. Raises ValueError."""
    return tuple(ip_network(text) for text in texts)


def _is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether it is a host's on the public Internet. An IPv6 address that stands for an IPv4 address (mapped, compatible,
    NAT64) is none: it is not of the global unicast addresses.
    """
    if isinstance(address, IPv6Address) and (address not in _GLOBAL_V6 or address.scope_id is not None):
        return False
    return address.is_global and not address.is_multicast and not any(address in network for network in _NEVER)


def _parse(text: str) -> WebhookUrl:
    if len(text) > _MAX_URL_CHARS or not _VISIBLE.fullmatch(text) or "\\" in text:
        raise InvalidRequest(f"a webhook's URL has {_MAX_URL_CHARS} visible ASCII characters at most, and no backslash")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise InvalidRequest("a webhook's URL cannot be read; expected https://HOST[:PORT]/PATH") from None
    if parts.scheme not in _PORTS:
        raise InvalidRequest(_SCHEME)
    if "@" in parts.netloc or "#" in text:
        raise InvalidRequest("a webhook's URL has no user and no fragment; its receiver knows by the signature who calls")
    if port == 0 or parts.netloc.endswith(":") or not _is_host(host, parts.netloc):
        raise InvalidRequest("a webhook's URL names no host that could be reached")
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return WebhookUrl(host, port or _PORTS[parts.scheme], target, parts.scheme == "https", parts.netloc)


def _is_host(host: str, netloc: str) -> bool:
    if netloc.startswith("["):
        return ":" in host and "%" not in host and _is_address(host)
    return bool(_NAME.fullmatch(host)) or (":" not in host and _is_address(host))


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
