"""Secrets of an installation that nobody has to choose: the password between the gateways and their Redis."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

OURS = frozenset(("tidegate-redis", "tidegate-state"))
"""Names of the Secrets that can be made; they belong together."""

_USER = "tidegate"


def make_secrets(password: Callable[[], str] = lambda: secrets.token_urlsafe(32)) -> Mapping[str, Mapping[str, str]]:
    """Return the Secrets by name, as file -> content, around one new password.

    Redis gets the digest only. Everybody may ping, which its probe does; the gateways' user may do everything but
    administer the server, of which it needs to read the configuration.
    """
    chosen = password()
    users = (
        "user default on nopass resetkeys resetchannels -@all +ping\n"
        f"user {_USER} on #{sha256(chosen.encode()).hexdigest()} ~* &* +@all -@admin +config|get\n"
    )
    return {
        "tidegate-redis": {"users.acl": users},
        "tidegate-state": {"state-url": f"redis://{_USER}:{chosen}@redis:6379/0"},
    }


def write_secrets(folder: Path) -> list[Path]:
    """Write the files of all Secrets into a folder, for `compose.yaml`, readable for their owner only.

    Raises FileExistsError: one of them is there; a new password beside an old one would lock the gateway out.
    """
    files = {folder / name: content for secret in make_secrets().values() for name, content in secret.items()}
    if there := [path for path in files if path.exists()]:
        raise FileExistsError(f"{there[0]} is there already; both sides need the same password")
    for path, content in files.items():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(content if content.endswith("\n") else f"{content}\n")
    return list(files)


def main(words: list[str]) -> int:
    """Write the secrets of `compose.yaml` into the folder that is named; 0 if they are written, 1 if not."""
    if len(words) != 1:
        print("usage: python -m deploy.secrets FOLDER", file=sys.stderr)
        return 1
    try:
        written = write_secrets(Path(words[0]))
    except OSError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    print("\n".join(map(str, written)))
    print("the containers read them as uid 1000: chown 1000 them where that is not you")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
