"""A real S3 server for a test (moto's, over HTTP), with a bucket; and what a process needs to find it."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager

BUCKET = "models"
SECRET = "s3-secret-that-nobody-may-see"


class S3Server:
    """`environment` is the provider's own chain: there is no other way to give credentials."""

    def __init__(self, port: int) -> None:
        import boto3  # not where each of several processes that share the tests would import it, for seconds

        self.port = port
        self.client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            aws_access_key_id="test",
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
        )

    def environment(self, *, port: int | None = None) -> dict[str, str]:
        """`port` is that of a proxy before it."""
        return {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port or self.port}",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def put(self, key: str, content: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=key, Body=io.BytesIO(content))

    def delete(self, key: str) -> None:
        self.client.delete_object(Bucket=BUCKET, Key=key)

    def empty(self) -> None:
        for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            for entry in page.get("Contents", ()):
                self.delete(entry["Key"])


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """In a thread of its own."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # a line per request
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    try:
        server = S3Server(running.get_host_and_port()[1])
        server.client.create_bucket(Bucket=BUCKET)
        yield server
        server.empty()  # all servers of a process have the same buckets
        server.client.close()
    finally:
        running.stop()
