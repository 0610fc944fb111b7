"""Options of `tidegate rollouts start`, with their help."""

from __future__ import annotations

from typing import Annotated

import typer

from control_plane.cli.common.changing import finite

DEFAULT_STEPS = "1,5,25,50"
BLUE_GREEN_PERCENT = 99.0
"""Weight of the next model in a blue-green rollout: what stays is what it is compared with."""
SHADOW_PERCENT = 10.0
"""Requests that are copied to the next model before it gets any."""

ToOption = Annotated[
    str, typer.Option("--to", metavar="MODEL[@VERSION]", help="The next model, or version of the present one. It must be loaded.")
]
PolicyOption = Annotated[str, typer.Option(metavar="NAME", help="RolloutPolicy that has the steps, the gates and whatever no option says.")]
StepsOption = Annotated[
    str | None, typer.Option(metavar="PERCENT,...", help=f"Percent of the requests that it gets, step by step. \\[{DEFAULT_STEPS}]")
]
SamplesOption = Annotated[int | None, typer.Option(min=1, help="Requests that it must have computed before the next step. \\[500]")]
SecondsOption = Annotated[float | None, typer.Option(min=0.0, callback=finite, help="Shortest time of a step. \\[60]")]
BlueGreenOption = Annotated[
    bool, typer.Option("--blue-green", help=f"One step: {BLUE_GREEN_PERCENT:g} % at once, the rest is what it is compared with.")
]
ShadowOption = Annotated[
    bool,
    typer.Option("--shadow/--no-shadow", help="Copy requests to the next model before it gets any, where they may be computed twice."),
]
ShadowPercentOption = Annotated[float, typer.Option(min=0.0, max=100.0, metavar="PERCENT", help="Percent of the requests that are copied.")]
ShadowSamplesOption = Annotated[int, typer.Option(min=1, help="Copies that it must have answered before the first step.")]
AgreementOption = Annotated[
    str | None,
    typer.Option(
        metavar="KIND[:LIMIT]",
        help="How answers to copies must agree: exact, tolerance, classes, same-space, another-space or edit-distance.",
    ),
]
TensorOption = Annotated[str, typer.Option(metavar="NAME", help="Output tensor that is compared; none: all of them.")]
MayDifferOption = Annotated[
    float | None,
    typer.Option(callback=finite, metavar="PERCENT", help="Percent of the answers that may differ; by default 1, or 20 in another space."),
]
BakeOption = Annotated[
    float | None,
    typer.Option(
        min=0.0, callback=finite, metavar="SECONDS", help="How long the present model keeps its copies after the last step. \\[0]"
    ),
]
SlowerByOption = Annotated[
    float | None, typer.Option(min=1.0, callback=finite, help="How many times slower it may be, and 2 ms more. \\[1.1]")
]
AlphaOption = Annotated[float | None, typer.Option(callback=finite, help="Chance that it is rolled back though it is no worse. \\[0.01]")]
