"""`tidegate models validate` and `tidegate models init`: models' folders, without a running tidegate."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from control_plane.cli.common.output import Shape, ShapeOption, print_found
from control_plane.cli.common.printing import printable, remark
from control_plane.core.errors import InvalidRequest
from control_plane.settings import load_settings
from control_plane.triton.config_name import config_name_in_force


class Like(StrEnum):
    """Kind of model that a skeleton is of."""

    PYTHON = "python"
    ONNX = "onnx"
    ENSEMBLE = "ensemble"


def validate(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A model's folder, or a repository of such.")],
    output: ShapeOption = Shape.TABLE,
) -> None:
    """Check models' folders as far as that needs no Triton; exit status 1 if something is wrong."""
    from control_plane.models.adapters.validation import models_in, validate_model

    settings = load_settings()
    config_name = config_name_in_force(settings.triton.model_config_name)
    folders = models_in(folder.resolve())
    if not folders:
        raise InvalidRequest(f"{folder} has no models: a model is a folder with config.pbtxt or a version folder, such as {folder}/m/1")
    repositories = [Path(each).resolve() for each in settings.triton.model_repository]
    found = [each for model in folders for each in validate_model(model, config_name, repositories=repositories)]
    told = [{"file": str(each.file), "line": each.line, "text": each.text} for each in found]
    print_found(told, output, lambda: typer.echo("".join(f"{printable(str(each))}\n" for each in found), nl=False))
    names = ", ".join(model.name for model in folders)
    if found:
        remark(f"{len(found)} mistake{'s' if len(found) > 1 else ''} in {len({each.file for each in found})} files of: {names}")
        raise typer.Exit(1)
    remark(f"nothing wrong with {names}; whether the code runs only Triton can say: `tidegate models load {folders[0].name}`")


def init(
    name: Annotated[str, typer.Argument(help="The new model's name.")],
    like: Annotated[Like, typer.Option(help="What the model is of.")] = Like.PYTHON,
    repository: Annotated[Path, typer.Option("--repository", "-r", metavar="DIR", help="The repository that it goes to.")] = Path("."),
) -> None:
    """Write a model that loads as it is and answers with its input, to be filled in."""
    from control_plane.models.adapters.skeletons import write_skeleton

    for file in write_skeleton(name, like.value, repository):
        typer.echo(str(file))
    remark(
        f"check it with `tidegate models validate {repository}`; where a tidegate serves that folder "
        f"(`--model-repository {repository}`), load it with `tidegate models load {name}`"
    )
