"""Secrets of an installation that nobody has to choose: passwords between the gateways and their Redis, the Redis
of events and RabbitMQ, and what gateways and nodes know each other by.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from base64 import b64encode
from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path

OURS = (
    frozenset(("tidegate-redis", "tidegate-state")),
    frozenset(("tidegate-events-redis", "tidegate-events")),
    frozenset(("tidegate-rabbitmq", "tidegate-jobs")),
    frozenset(("tidegate-node",)),
)
"""Names of the Secrets that can be made, in sets that belong together."""

_USER = "tidegate"

_OF_COMPOSE = {"": ("tidegate-redis", "tidegate-state", "tidegate-node"), "events": ("tidegate-events-redis", "tidegate-events")}
"""Secrets of `compose.yaml`, and of what is added to it (`compose.events.yaml`)."""
_OF_REDIS = "users.acl"
_NAMES = {"tidegate-node": "node-secret", "tidegate-events-redis": f"events-{_OF_REDIS}"}
"""Names of files in one folder for those Secrets whose own say too little beside others."""
_ANYBODY = "user default on nopass resetkeys resetchannels -@all +ping\n"
_STREAMS = ("usage", "audit", "requests", "gateway")
_READS = "+xread +xreadgroup +xack +xpending +xclaim +xautoclaim +xrange +xrevrange +xlen +xinfo +xgroup +ping +hello +client|setname"
"""What a subscriber may do: read and acknowledge, alone or in a group, and say hello."""


def make_secrets(password: Callable[[], str] = lambda: secrets.token_urlsafe(32)) -> Mapping[str, Mapping[str, str]]:
    """Return the Secrets by name, as file -> content, with new passwords.

    Each Redis gets digests only. Everybody may ping, which its probe does; the gateways' user may do everything but
    administer the server, of which it needs to read the configuration. In the Redis of events it has the events
    only, and a second user subscribes.
    """
    chosen, published, subscribed = password(), password(), password()
    publisher = _user(_USER, published, "~tidegate:events:* +@all -@admin -@dangerous +info")
    subscriber = _user("subscriber", subscribed, f"{' '.join(f'~tidegate:events:{each}' for each in _STREAMS)} {_READS}")
    return {
        "tidegate-redis": {_OF_REDIS: _ANYBODY + _user(_USER, chosen, "~* &* +@all -@admin +config|get")},
        "tidegate-state": {"state-url": f"redis://{_USER}:{chosen}@redis:6379/0"},
        "tidegate-events-redis": {_OF_REDIS: _ANYBODY + publisher + subscriber},
        "tidegate-events": {
            "events-url": f"redis://{_USER}:{published}@events:6379/0",
            "subscriber-url": f"redis://subscriber:{subscribed}@events.tidegate:6379/0",
        },
        "tidegate-rabbitmq": {"definitions.json": _definitions(queue := password())},
        "tidegate-jobs": {"jobs-url": f"amqp://{_USER}:{queue}@rabbitmq:5672/"},
        "tidegate-node": {"secret": password()},
    }


def _user(name: str, password: str, rights: str) -> str:
    """A line of Redis' file of users, with the digest of a password."""
    return f"user {name} on #{sha256(password.encode()).hexdigest()} {rights}\n"


def _definitions(password: str) -> str:
    """Definitions with one user, who may use the gateways' own queues; RabbitMQ gets a salted digest only
    (rabbit_password_hashing_sha256)."""
    salt = secrets.token_bytes(4)
    digest = b64encode(salt + sha256(salt + password.encode()).digest()).decode()
    user = {"name": _USER, "password_hash": digest, "hashing_algorithm": "rabbit_password_hashing_sha256", "tags": []}
    # `write` is asked of the exchange that publishes to queues by name, and of queues for their dead letters.
    rights = {"user": _USER, "vhost": "/", "configure": r"^tidegate\.", "write": r"^(amq\.default$|tidegate\.)", "read": r"^tidegate\."}
    return json.dumps({"users": [user], "vhosts": [{"name": "/"}], "permissions": [rights]}) + "\n"


def write_secrets(folder: Path, added: str = "") -> list[Path]:
    """Write the files of `compose.yaml`'s Secrets into a folder, or those of what is `added` to it, readable for their owner only;
    for the group, too, what Redis reads, which runs as the owner of its image's folder: there is a digest in it, and no password.

    Raises FileExistsError: one of them is there; a new password beside an old one would lock the gateway out.
    """
    made = make_secrets()
    files = {folder / _NAMES.get(secret, name): content for secret in _OF_COMPOSE[added] for name, content in made[secret].items()}
    if there := [path for path in files if path.exists()]:
        raise FileExistsError(f"{there[0]} is there already; both sides need the same password")
    for path, content in files.items():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        if path.name.endswith(_OF_REDIS):
            os.fchmod(descriptor, 0o640)
        with os.fdopen(descriptor, "w") as file:
            file.write(content if content.endswith("\n") else f"{content}\n")
    return list(files)


def main(words: list[str]) -> int:
    """Write the secrets of `compose.yaml`, or with `events` those of `compose.events.yaml`, into the folder that is named; 0 if
    they are written, 1 if not."""
    folder, added = (*words, "", "")[:2]
    if not 1 <= len(words) <= 2 or added not in _OF_COMPOSE:
        print("usage: python -m deploy.secrets FOLDER [events]", file=sys.stderr)
        return 1
    try:
        written = write_secrets(Path(folder), added)
    except OSError as exc:
        print(f"error: {exc}", file=sys.stderr)
        return 1
    print("\n".join(map(str, written)))
    print("the containers read them as user and group 1000: chown 1000:1000 them where that is not you")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
