"""Which of a model's configurations Triton is to prefer."""

from __future__ import annotations

AUTO = "auto"


def config_name_in_force(setting: str) -> str:
    """The `configs/<name>.pbtxt` that Triton is to prefer; empty for the plain `config.pbtxt`.

    What `auto` is, `models/adapters/profile` finds out at the start; where nobody has, it is the plain one.
    """
    return "" if setting == AUTO else setting
