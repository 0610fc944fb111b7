"""Access control: authentication and authorization of every call, for both frontends, the admin API and the
metrics port.

With authentication off, which is for loopback only, every caller is the anonymous principal `ANONYMOUS` and may
do everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence, Set
from hashlib import blake2b
from ipaddress import IPv4Network, IPv6Network

from control_plane.auth.authentication import Authentication
from control_plane.auth.domain.authorization import OVERRIDE_NEED, Need, refusal
from control_plane.auth.domain.client_address import client_address_of
from control_plane.core.errors import PermissionDenied
from control_plane.core.model import ModelOverride
from control_plane.core.principal import ANONYMOUS, Credentials, Identified, Principal
from control_plane.core.scope import Right
from control_plane.objects.domain.rollout import Rollout
from control_plane.objects.domain.route import Route
from control_plane.objects.mirror import ObjectMirror


class Access:
    """Facade of authentication and authorization for all ports of one process."""

    def __init__(
        self, mirror: ObjectMirror, authentication: Authentication | None, *, trusted_proxies: Sequence[IPv4Network | IPv6Network] = ()
    ) -> None:
        """`authentication` is None where authentication is off; X-Forwarded-For is believed of
        `trusted_proxies` only.
        """
        self._mirror = mirror
        self._authentication = authentication
        self.is_on = authentication is not None
        """Whether callers must authenticate."""
        self.trusted_proxies = trusted_proxies

    @property
    def generation(self) -> int:
        """Counter that changes whenever the known keys, tenants or routes do; what was decided before must be
        decided anew.
        """
        return self._mirror.generation

    @property
    def needs_model_name(self) -> bool:
        """Whether the model's name in a call matters here: for the caller's rights, or since it may be a
        route's.

        Where it does not, frontends need not parse a call for the name.
        """
        return self.is_on or bool(self._mirror.routes)

    def identify(self, *, authorization: str | None, api_key: str | None, peer: str, forwarded_for: str | None) -> Principal:
        """Authenticate a caller by these headers and the address `peer`. Raises Unauthenticated,
        LimitExceeded.
        """
        if self._authentication is None:
            return ANONYMOUS
        source = client_address_of(peer, forwarded_for, self.trusted_proxies) if self.trusted_proxies else peer
        return self._authentication.authenticate(Credentials(authorization, api_key, source))

    def still_holds(self, caller: Identified) -> bool:
        """Whether a caller that was identified before need not be identified again."""
        if self._authentication is None or caller.generation != self._mirror.generation:
            return False
        expires_s = caller.principal.expires_s
        return expires_s is None or self._authentication.now_s() < expires_s

    def reauthenticate(self, *, authorization: str | None, api_key: str | None, peer: str, forwarded_for: str | None) -> Principal:
        """Authenticate again a caller that these headers have authenticated before; a failure does not count
        as a guess.

        Raises Unauthenticated, LimitExceeded.
        """
        if self._authentication is None:
            return ANONYMOUS
        source = client_address_of(peer, forwarded_for, self.trusted_proxies) if self.trusted_proxies else peer
        return self._authentication.reauthenticate(Credentials(authorization, api_key, source))

    def require(self, principal: Principal, need: Need | None) -> None:
        """Raise PermissionDenied if `principal` lacks what a call needs; `need` is None for a call that needs
        no right.
        """
        if principal is ANONYMOUS:
            return
        reason = refusal(principal, need, route=self.route(need.name) if need is not None else None)
        if reason is not None:
            raise PermissionDenied(reason)

    def require_override(self, principal: Principal, override: ModelOverride | None) -> None:
        """Raise PermissionDenied if `principal` may not load a model with an `override` of its configuration
        or files.
        """
        if override is not None:
            self.require(principal, OVERRIDE_NEED)

    def require_inference(self, principal: Principal, name: str, route: Route | None) -> None:
        """Raise PermissionDenied if `principal` may not infer on `name`; `route` is the route of that name,
        if there is one.
        """
        # The fast path of every inference: the general check is only for what it does not settle.
        if principal.scopes.allow_inference(name) and (route is None or route.tenants is None):
            return
        reason = refusal(principal, Need(Right.INFER, name), route=route)
        if reason is not None:
            raise PermissionDenied(reason)

    def readable(self, principal: Principal, models: Iterable[str]) -> Set[str]:
        """Return those of the models that `principal` may call, by their own names or through a route."""
        if principal is ANONYMOUS or principal.scopes.allow(Right.ADMIN):
            return set(models)
        # A model whose name a route has taken over cannot be called by that name: it counts only through a
        # route.
        by_route = {model for route in self.routes if self._may_infer(principal, route.name) for model in route.models}
        return {model for model in models if model in by_route or (self.route(model) is None and self._may_infer(principal, model))}

    def _may_infer(self, principal: Principal, name: str) -> bool:
        return refusal(principal, Need(Right.INFER, name), route=self.route(name)) is None

    def sequence_key(self, principal: Principal) -> bytes:
        """Return the key that makes a tenant's sequence ids its own (`protocols/kserve/sequence_ids`): the same in all processes
        of the state store, and unknown to other tenants, who could else look for an id with the digest of one of this tenant's.
        """
        secret = self._mirror.secret_of(principal.tenant).encode()
        return blake2b(principal.tenant.encode(), key=secret, digest_size=32, person=b"sequence ids").digest()

    def weight_of(self, tenant: str) -> float:
        """A tenant's share, relative to other tenants' weights; 1 where it has no limits of its own."""
        return self._mirror.weight_of(tenant)

    @property
    def routes(self) -> Collection[Route]:
        """All routes."""
        return self._mirror.routes.values()

    def rollout(self, route: str) -> Rollout | None:
        """Return the rollout that is under way for a route; None if there is none."""
        found = self._mirror.rollouts.get(route)
        return found if found is not None and found.id == self._mirror.rollout_ids.get(route) else None

    def shadow(self, route: str) -> Rollout | None:
        """Return the rollout of a route whose next model gets copies of requests now; None if there is none."""
        return self._mirror.shadows.get(route)

    @property
    def shadow_ids(self) -> Set[str]:
        """Ids of the rollouts whose next models get copies of requests now."""
        return {each.id for each in self._mirror.shadows.values()}

    def route(self, name: str) -> Route | None:
        """Return the route of that name; None if the name stands for a model."""
        return self._mirror.routes.get(name)
