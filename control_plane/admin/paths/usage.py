"""Path of the admin API for usage reports: what was used and what it costs."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic.json_schema import SkipJsonSchema

from control_plane.admin.errors import error_responses
from control_plane.admin.paging import Continue, Limit, Paging
from control_plane.admin.schema.described import Described
from control_plane.admin.schema.rules import DAY, DIMENSIONS
from control_plane.admin.schema.views import NAME_OR_NONE
from control_plane.core.errors import ErrorCode
from control_plane.core.model import MODEL_NAME, UNKNOWN_MODEL
from control_plane.metering.domain.usage_report import Dimension
from control_plane.metering.domain.usage_table import parse_day, parse_dimensions, to_csv, to_json_text
from control_plane.metering.reports import UsageService

_NameText = Annotated[str, Field(pattern=NAME_OR_NONE)]
_ModelText = Annotated[str, Field(pattern=f"^({MODEL_NAME.pattern}|{re.escape(UNKNOWN_MODEL)})?$")]


class UsageQuery(BaseModel):
    """Parameters of a usage report."""

    model_config = ConfigDict(extra="forbid")

    by: str = Field(
        "tenant,day",
        pattern=DIMENSIONS,
        description="Columns to group by: any of tenant, model, day, each at most once; empty: everything in one row.",
    )
    since: str = Field("7d", pattern=DAY, description="First day (UTC): a date, `today`, or `7d` for seven days ago.")
    until: str = Field("today", pattern=DAY, description="Last day, included.")
    tenant: _NameText | SkipJsonSchema[None] = Field(None, description="Only this tenant's usage; empty: that of callers without a tenant.")
    model: _ModelText | SkipJsonSchema[None] = Field(
        None, description="Only this model's usage; `(unknown)`: that of names that no model has."
    )
    format: Literal["json", "csv"] = "json"
    limit: Limit = None
    continue_: Continue = Field("", alias="continue")


class UsageRowView(Described):
    """Sums of usage; has those of the columns tenant, model and day that were asked for."""

    tenant: str = ""
    model: str = ""
    day: str = ""
    requests: int
    """Requests answered with success."""
    failed: int
    """Requests that failed in the model or server, or that the caller abandoned."""
    refused: int
    """Requests not sent to a model: invalid, not allowed, or beyond a limit."""
    rows: int
    elements: int
    compute_units: float
    cache_hits: int
    input_tokens: int
    """Tokens that generative models read, of those that count them."""
    output_tokens: int
    """Tokens that they generated."""
    unpriced_units: float
    """Compute units that no price covers; they are in no cost."""
    costs: dict[str, float]
    """Currency -> cost."""


class UsageView(BaseModel):
    """A usage report."""

    by: list[Dimension]
    since: str
    until: str
    rows: list[UsageRowView]


_ERRORS = error_responses(ErrorCode.INVALID_ARGUMENT, ErrorCode.STORE_UNAVAILABLE)
_AS_CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}


def add_usage_path(app: FastAPI, usage: UsageService) -> None:
    """Add `/usage`."""

    @app.get("/usage", tags=["usage"], responses=_ERRORS | _AS_CSV, response_model=UsageView)
    async def get_usage(query: Annotated[UsageQuery, Query()], request: Request, response: Response) -> Response:
        """Report what was used, and what it costs at the present prices, including prices made after the
        usage.
        """
        today = datetime.now(UTC).date()
        report = await usage.report(
            by=parse_dimensions(query.by),
            since_day=parse_day(query.since, today=today),
            until_day=parse_day(query.until, today=today),
            tenant=query.tenant,
            model=query.model,
        )
        paging = Paging(request, response, query.limit, query.continue_)
        report = replace(report, rows=tuple(paging.page_by_columns(report.rows, key=lambda row: row.group)))
        render, kind = (to_json_text, "application/json") if query.format == "json" else (to_csv, "text/csv")
        # In a thread: thousands of tenants have tens of thousands of rows.
        return Response(await asyncio.to_thread(render, report), media_type=kind, headers=dict(response.headers))
