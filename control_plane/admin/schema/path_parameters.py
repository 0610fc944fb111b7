"""Parameters in paths of the admin API. Apart from `views`, which commands import that never need FastAPI."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from control_plane.admin.schema.views import NAME
from control_plane.core.model import NAME_RULE
from control_plane.objects.domain.validation import KEY_ID

Name = Annotated[str, Path(pattern=NAME, description=f"{NAME_RULE[0].upper()}{NAME_RULE[1:]}.")]
KeyId = Annotated[str, Path(pattern=f"^{KEY_ID.pattern}$", description="The part of a key between `tg_` and the secret.")]
