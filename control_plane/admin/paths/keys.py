"""Paths of the admin API for API keys."""

from __future__ import annotations

import time

from fastapi import FastAPI

from control_plane.admin.actor import By
from control_plane.admin.errors import CHANGE_ERRORS, LIST_ERRORS, MAKE_ERRORS
from control_plane.admin.idempotency.middleware import Once
from control_plane.admin.paging import Paged
from control_plane.admin.schema.path_parameters import KeyId
from control_plane.admin.schema.views import KeySpec, KeyView, NewKeyView, RotationSpec
from control_plane.auth.keys import Keys

_ROTATE_ERRORS = MAKE_ERRORS | CHANGE_ERRORS


def add_key_paths(app: FastAPI, keys: Keys) -> None:
    """Add `/keys` and the paths below it."""

    @app.get("/keys", tags=["keys"], responses=LIST_ERRORS)
    async def list_keys(paging: Paged) -> list[KeyView]:
        """List every key by id, also those that are no longer valid."""
        return [KeyView.of(key) for key in paging.cut(await keys.list_all(paging.part), key=lambda key: key.id)]

    @app.post("/keys", tags=["keys"], status_code=201, responses=MAKE_ERRORS, dependencies=[Once])
    async def create_key(spec: KeySpec, by: By) -> NewKeyView:
        """Make a key. Its text is in this response and nowhere else."""
        expires_s = None if spec.lifetime_s is None else time.time() + spec.lifetime_s
        key, text = await keys.by(by).create(spec.tenant, spec.parsed_scopes(), expires_s=expires_s, description=spec.description)
        return NewKeyView.of(key, text=text)

    @app.post("/keys/{id}/rotate", tags=["keys"], status_code=201, responses=_ROTATE_ERRORS, dependencies=[Once])
    async def rotate_key(id: KeyId, by: By, spec: RotationSpec | None = None) -> NewKeyView:  # noqa: A002
        """Make a new key with the same tenant, scopes, lifetime and description; the old one stays valid for
        the overlap.
        """
        key, text = await keys.by(by).rotate(id, overlap_s=(spec or RotationSpec()).overlap_s)
        return NewKeyView.of(key, text=text)

    @app.delete("/keys/{id}", tags=["keys"], responses=CHANGE_ERRORS)
    async def revoke_key(id: KeyId, by: By) -> KeyView:  # noqa: A002
        """Revoke a key: within a second no gateway accepts it. It stays in the list."""
        return KeyView.of(await keys.by(by).revoke(id))
