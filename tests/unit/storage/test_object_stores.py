"""What is shown of a store's client, which may repeat an endpoint with its password (`AWS_ENDPOINT_URL`)."""

from __future__ import annotations

import pytest

from control_plane.storage.object_stores import text_of_error


@pytest.mark.parametrize("password", ["s3cret", "s3cret/s3cret", "s3cret@s3cret", "s3cret@a/s3cret"])
def test_a_clients_error_is_shown_without_the_password_of_its_endpoint(password: str) -> None:
    error = OSError(f'Could not connect\nto the endpoint URL: "http://user:{password}@minio:9000/models?list-type=2&token=s3cret"')
    assert text_of_error(error) == 'OSError: Could not connect to the endpoint URL: "http://...@minio:9000/models?..."'
