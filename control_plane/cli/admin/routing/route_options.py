"""Options of `tidegate routes set`, with their help."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from control_plane.cli.common.changing import limit_option, number_option


class Caching(StrEnum):
    """Values of `--cache`, whether a route's responses are cached: yes, no, or as the model's configuration says (`model`)."""

    ON = "on"
    OFF = "off"
    MODEL = "model"


class Hedging(StrEnum):
    """Values of `--hedging`, whether a route's late requests go to a second server: yes, no, or as the gateway's setting says
    (`gateway`)."""

    ON = "on"
    OFF = "off"
    GATEWAY = "gateway"


NameArgument = Annotated[str, typer.Argument(help="The name that callers use.")]

ModelOption = Annotated[str | None, typer.Option(help="The model behind the route.")]
VersionOption = Annotated[str | None, typer.Option(help="The model's version; none: its version policy chooses.")]
DeadlineOption = Annotated[float | None, limit_option("Deadline of requests that name none; none: the gateway's.")]
TenantsOption = Annotated[list[str] | None, typer.Option(help="Tenant that may call it; repeatable. none: all whose keys allow it.")]
RepeatableOption = Annotated[
    bool | None,
    typer.Option(
        "--repeatable/--not-repeatable",
        help="Whether requests may be computed twice: then the route's own model stands in for a target that fails.",
    ),
]
LatencyBudgetOption = Annotated[
    float | None, limit_option("Latency budget of requests that name none; none: those may take as long as it takes.")
]
CostBudgetOption = Annotated[
    float | None, limit_option("Cost budget, in compute units, of requests that name none; none: those may cost what it costs.")
]

# The response cache

CacheOption = Annotated[Caching | None, typer.Option(help="Whether responses are cached; `model`: as its configuration says.")]
CacheTtlOption = Annotated[float | None, limit_option("Seconds that responses are cached; none: the gateway's setting.")]
CachePrivateOption = Annotated[
    bool | None, typer.Option("--cache-private/--cache-shared", help="Whether each tenant has cached responses of its own.")
]
CacheMinCostOption = Annotated[float | None, number_option("Cache only responses that cost at least this.", metavar="UNITS")]

# Servers of a fleet

PoolOption = Annotated[str | None, typer.Option(help="Fleet: pool that serves it; none: chosen by the kind of each request.")]
HedgingOption = Annotated[Hedging | None, typer.Option(help="Fleet: whether late requests go to a second server, too.")]
TwiceFromOption = Annotated[float | None, limit_option("Fleet: send requests to two servers that take so long; none: never.")]

# Other models

TargetsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL[:VERSION]=PERCENT", help="Model that gets a part of the requests; repeatable. none: the route's own gets all."
    ),
]
StickyOption = Annotated[
    str | None,
    typer.Option(help="What keeps a caller at one model: tenant, key, sequence or header:NAME; none: the request's contents."),
]
SaltOption = Annotated[str | None, typer.Option(help="Text of which another one draws anew who goes where; none: the route's name.")]
FasterOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="MODEL[:VERSION]",
        help="Faster and cheaper model that answers where the route's own would exceed a budget; repeatable, the most accurate first. "
        "none: no such model.",
    ),
]
MirrorOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL[:VERSION]", help="Model that gets copies of requests, whose answers nobody waits for. none: no such model."
    ),
]
MirrorPercentOption = Annotated[
    float | None, number_option("Part of the requests that is copied to the mirror; of a new one 10.", metavar="PERCENT")
]
