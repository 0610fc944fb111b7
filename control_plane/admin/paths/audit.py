"""Path of the admin API for the audit log."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from control_plane.admin.errors import error_responses
from control_plane.admin.paging import Continue, Paging
from control_plane.admin.schema.described import Described, DescribedDataclass
from control_plane.audit.domain.entry import Change, Entry
from control_plane.audit.trail import AuditTrail
from control_plane.core.errors import ErrorCode

MAX_PAGE = 200
"""Entries in one answer: with the largest objects some 25 MiB, usually a hundredth of that."""


class AuditQuery(BaseModel):
    """Which page of the audit log."""

    model_config = ConfigDict(extra="forbid")

    after: int = Field(0, ge=0, le=2**53, description="Number of the entry after which the page begins; 0: at the first.")
    limit: int = Field(100, ge=1, le=MAX_PAGE, description="Most entries in the answer.")
    continue_: Continue = Field("", alias="continue")


class AuditPageView(Described):
    """A page of the audit log, oldest entry first."""

    entries: list[Annotated[Entry, DescribedDataclass(Entry, change=Change)]]
    newest: int
    """Number of the newest entry of the whole log; 0: it is empty."""


def add_audit_path(app: FastAPI, trail: AuditTrail) -> None:
    """Add `/audit`."""

    @app.get("/audit", tags=["audit"], responses=error_responses(ErrorCode.INVALID_ARGUMENT, ErrorCode.STORE_UNAVAILABLE))
    async def read_audit_log(query: Annotated[AuditQuery, Query()], request: Request, response: Response) -> AuditPageView:
        """Who changed what, when and why. Each entry's hash covers it and all before it; API keys and tokens are
        never in it.
        """
        paging = Paging(request, response, query.limit, query.continue_)
        entries = paging.cut(await trail.log.page(paging.after(int) or query.after, limit=query.limit + 1), key=lambda entry: entry.number)
        return AuditPageView(entries=entries, newest=max(await trail.log.newest(), entries[-1].number if entries else 0))
