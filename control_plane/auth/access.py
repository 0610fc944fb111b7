"""Who calls, and whether it may: what both doors, the admin API and the metrics port ask before anything else.

Without authentication, which is for loopback only, everybody is `NOBODY` and may do everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from ipaddress import IPv4Network, IPv6Network

from control_plane.auth.authentication import Authentication
from control_plane.auth.domain.authorization import OVERRIDE_NEED, Need, refusal
from control_plane.auth.domain.client_address import source_of
from control_plane.core.errors import PermissionDenied
from control_plane.core.model import ModelOverride
from control_plane.core.principal import NOBODY, Credentials, Principal
from control_plane.core.scope import Right
from control_plane.objects.domain.route import Route
from control_plane.objects.mirror import KnownState


class Access:
    """Authenticates callers and checks their rights, for all ports of one process."""

    def __init__(
        self, known: KnownState, authentication: Authentication | None, *, trusted_proxies: Sequence[IPv4Network | IPv6Network] = ()
    ) -> None:
        """`authentication` is None where it is off."""
        self._known = known
        self._authentication = authentication
        self.trusted_proxies = trusted_proxies

    @property
    def is_on(self) -> bool:
        """Whether callers must say who they are."""
        return self._authentication is not None

    @property
    def generation(self) -> int:
        """Changes with whatever is known of callers and routes."""
        return self._known.generation

    @property
    def names_matter(self) -> bool:
        """Whether a call must be looked into for the model that it names; else it means what it says, and is anybody's."""
        return self.is_on or bool(self._known.routes)

    def identify(self, *, authorization: str | None, api_key: str | None, peer: str, forwarded_for: str | None) -> Principal:
        """Who shows these headers from address `peer`. Raises Unauthenticated, LimitExceeded."""
        if self._authentication is None:
            return NOBODY
        source = source_of(peer, forwarded_for, self.trusted_proxies) if self.trusted_proxies else peer
        return self._authentication.authenticate(Credentials(authorization, api_key, source))

    def confirm(self, *, authorization: str | None, api_key: str | None, peer: str, forwarded_for: str | None) -> Principal:
        """The same of a caller that was let in with these before: a failure is no guess. Raises Unauthenticated, LimitExceeded."""
        if self._authentication is None:
            return NOBODY
        source = source_of(peer, forwarded_for, self.trusted_proxies) if self.trusted_proxies else peer
        return self._authentication.confirm(Credentials(authorization, api_key, source))

    def require(self, principal: Principal, need: Need | None) -> None:
        """Raises PermissionDenied: `principal` may not make a call that needs that."""
        if principal is NOBODY:
            return
        reason = refusal(principal, need, route=self.route(need.name) if need is not None else None)
        if reason is not None:
            raise PermissionDenied(reason)

    def require_override(self, principal: Principal, override: ModelOverride | None) -> None:
        """Raises PermissionDenied: `principal` may not load with an `override`."""
        if override is not None:
            self.require(principal, OVERRIDE_NEED)

    def require_inference(self, principal: Principal, name: str, route: Route | None) -> None:
        """The same of an inference of `name`, which `route` is if it is one."""
        if principal.scopes.allow_inference(name) and (route is None or route.tenants is None):
            return
        reason = refusal(principal, Need(Right.INFER, name), route=route)
        if reason is not None:
            raise PermissionDenied(reason)

    def readable(self, principal: Principal, models: Iterable[str]) -> Set[str]:
        """Those of the models that `principal` may call, by their own names or by a route's."""
        if principal is NOBODY or principal.scopes.allow(Right.ADMIN):
            return set(models)
        by_route = {route.model for route in self.routes if self._may_infer(principal, route.name)}
        return {model for model in models if model in by_route or (self.route(model) is None and self._may_infer(principal, model))}

    def _may_infer(self, principal: Principal, name: str) -> bool:
        return refusal(principal, Need(Right.INFER, name), route=self.route(name)) is None

    @property
    def routes(self) -> Collection[Route]:
        """All that there are."""
        return self._known.routes.values()

    def route(self, name: str) -> Route | None:
        """The route that callers mean by `name`; None: a model, if there is one."""
        return self._known.routes.get(name)
