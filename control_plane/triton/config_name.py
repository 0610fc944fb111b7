"""Name of the model configurations that Triton prefers (`--model-config-name`)."""

from __future__ import annotations

AUTO = "auto"


def config_name_in_force(setting: str) -> str:
    """Return the name of the preferred `configs/<name>.pbtxt`; empty for the plain `config.pbtxt`.

    At start `models/adapters/profile` replaces `auto` by what it finds; where that was not done, `auto` is
    the plain one.
    """
    return "" if setting == AUTO else setting
