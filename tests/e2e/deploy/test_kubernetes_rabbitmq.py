"""RabbitMQ as the component `jobs` runs it: its configuration, and the user that `make deploy` makes, in a real one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import aio_pika
import pytest
from aio_pika.exceptions import AMQPError
from pydantic import SecretStr

from control_plane.core.errors import StoreUnavailable
from control_plane.jobs.adapters.rabbitmq_tickets import RabbitmqTickets
from deploy.secrets import make_secrets
from perf.servers.rabbitmq import RabbitmqServer, rabbitmq_server
from tests.unit.deploy.rendered import Case, containers, env, named, pod_spec, render

OBJECTS = render(Case("gpu", ("jobs",)))
SECRETS = make_secrets(lambda: "a-password")
URL = SECRETS["tidegate-jobs"]["jobs-url"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitmqServer]:
    folder = tmp_path_factory.mktemp("rabbitmq")
    (container,) = containers(named(OBJECTS, "StatefulSet", "rabbitmq"))
    volumes = {each["name"]: each for each in pod_spec(named(OBJECTS, "StatefulSet", "rabbitmq"))["volumes"]}
    mounts = {each["name"]: each["mountPath"] for each in container["volumeMounts"]}
    config = named(OBJECTS, "ConfigMap", volumes["config"]["configMap"]["name"])["data"]["rabbitmq.conf"]
    assert env(container)["RABBITMQ_CONFIG_FILE"] == f"{mounts['config']}/rabbitmq.conf"
    ((key, text),) = SECRETS[volumes["users"]["secret"]["secretName"]].items()
    assert f"{mounts['users']}/{key}" in config
    (folder / key).write_text(text)
    own = config.replace(f"{mounts['users']}/", f"{folder}/").replace("tcp.default = 5672", "tcp.1 = 127.0.0.1:PORT")
    assert "PORT" in own
    with rabbitmq_server(folder, own) as server:
        yield server


def connecting(broker: RabbitmqServer, url: str = URL) -> str:
    assert "@rabbitmq:5672/" in url
    return url.replace("@rabbitmq:5672", f"@127.0.0.1:{broker.port}")


async def test_gateways_use_it_with_what_the_secrets_say(broker: RabbitmqServer) -> None:
    tickets = RabbitmqTickets(SecretStr(connecting(broker)))
    keeping = asyncio.get_running_loop().create_task(tickets.run())
    try:
        async with asyncio.timeout(60.0):
            await _published(tickets)
            (ticket,) = await tickets.take()
            await ticket.ack()
            assert await tickets.depth() == 0
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        await tickets.close()


async def _published(tickets: RabbitmqTickets) -> None:
    """Publish one, as soon as there is a connection."""
    while True:
        try:
            await tickets.publish()
        except StoreUnavailable:
            await asyncio.sleep(0.1)
        else:
            return


@pytest.mark.parametrize("user", ["guest:guest", "tidegate:another", "tidegate:"])
async def test_nobody_else_does(broker: RabbitmqServer, user: str) -> None:
    with pytest.raises(AMQPError):
        await aio_pika.connect(connecting(broker, URL.replace("tidegate:a-password", user)), timeout=20.0)


async def test_the_gateways_user_has_their_queues_only(broker: RabbitmqServer) -> None:
    connection = await aio_pika.connect(connecting(broker), timeout=20.0)
    async with connection:
        for forbidden in ("other", "tidegatex"):
            channel = await connection.channel()
            with pytest.raises(AMQPError, match=r"403|ACCESS_REFUSED"):
                await channel.declare_queue(forbidden)


def test_it_never_sees_the_password() -> None:
    (text,) = SECRETS["tidegate-rabbitmq"].values()
    assert "a-password" not in text
    assert [user["tags"] for user in json.loads(text)["users"]] == [[]], "it administers nothing"


def test_the_probe_asks_the_port_that_it_listens_on() -> None:
    (container,) = containers(named(OBJECTS, "StatefulSet", "rabbitmq"))
    (port,) = container["ports"]
    config = named(OBJECTS, "ConfigMap", pod_spec(named(OBJECTS, "StatefulSet", "rabbitmq"))["volumes"][1]["configMap"]["name"])
    assert f"listeners.tcp.default = {port['containerPort']}" in config["data"]["rabbitmq.conf"]
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[name]["tcpSocket"] == {"port": port["name"]}
