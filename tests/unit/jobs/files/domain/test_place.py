"""Which files callers may name: those below what is allowed, and by no other way of writing them any others."""

from __future__ import annotations

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.jobs.files.domain.place import Place, Prefix, place_of, read_prefixes

PREFIXES = read_prefixes(["s3://bucket/jobs", "/data/jobs/", "s3://each/{tenant}/in", "/of/{tenant}", "s3://whole"])
S3, FOLDER, EACH, OWN, WHOLE = PREFIXES


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("s3://bucket/jobs/a.json", Place(S3, ("a.json",))),
        ("s3://bucket/jobs/größe/名前.json", Place(S3, ("größe", "名前.json"))),
        ("/data/jobs/a/b", Place(FOLDER, ("a", "b"))),
        ("/data/jobs/100%/a%20b..", Place(FOLDER, ("100%", "a%20b.."))),
        ("s3://each/acme/in/a", Place(Prefix("s3://each", ()), ("acme", "in", "a"))),
        ("/of/acme/a", Place(Prefix("", ("of",)), ("acme", "a"))),
        ("s3://whole/a", Place(WHOLE, ("a",))),
    ],
)
def test_places_below_a_prefix(url: str, place: Place) -> None:
    assert place_of(PREFIXES, "acme", url) == place


@pytest.mark.parametrize(
    "url",
    [
        *("s3://bucket/jobs", "s3://bucket/jobs/", "s3://bucket/jobs2/a", "s3://bucket/other/a", "s3://other/jobs/a", "s3://bucket/Jobs/a"),
        *("s3://bucket/jobs/../other/a", "s3://bucket/jobs/./a", "s3://bucket/jobs//a", "s3://bucket//jobs/a", "s3://bucket/jobs/a/.."),
        *(
            "/data/jobs/../../etc/passwd",
            "/etc/passwd",
            "data/jobs/a",
            "//data/jobs/a",
            "/data/jobs/a\x00",
            "/data/jobs/a\nb",
            "/data/jobs/a b",
        ),
        *("file:///data/jobs/a", "file://host/data/jobs/a", "s3a://bucket/jobs/a", "https://bucket/jobs/a", "S3://bucket/jobs/a"),
        *("s3://bucket@evil/jobs/a", "s3://user:key@bucket/jobs/a", "s3://bucket/jobs/a?versionId=1", "s3://bucket/jobs/a#b"),
        *("s3://bucket/jobs/*", "s3://bucket/jobs/[a]", "s3://bucket\\jobs/a", "/data\\jobs\\a", "simplecache::s3://bucket/jobs/a", ""),
        *(
            "s3://bucket/jobs/%2e%2e/other/a",
            "s3://bucket/jobs/.%2E/a",
            "s3://bucket/jobs/%2e",
            "s3://bucket/jobs/a%2f..%2Fb",
            "/of/acme/%2e%2e/a",
        ),
        *("s3://each/other/in/a", "s3://each/{tenant}/in/a", "/of/other/a", "/of/a", "s3://bucket/jobs/" + "a" * 1024),
    ],
)
def test_places_that_are_not(url: str) -> None:
    with pytest.raises(InvalidRequest):
        place_of(PREFIXES, "acme", url)


@pytest.mark.parametrize("tenant", ["", "..", ".", "a/b", "{tenant}"])
def test_a_tenant_without_a_plain_name_has_no_place_of_its_own(tenant: str) -> None:
    for url in ("/of/acme/a", "/of//a", f"/of/{tenant}/a", "/of/../a"):
        with pytest.raises(InvalidRequest):
            place_of(PREFIXES, tenant, url)
    assert place_of(PREFIXES, tenant, "/data/jobs/a") == Place(FOLDER, ("a",))


@pytest.mark.parametrize("text", ["", "/", "data", "s3://", "s3://user:key@bucket/jobs", "/a/../b", "file:///a", "s3://bucket/a//b"])
def test_prefixes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is no absolute folder"):
        read_prefixes([text])


def test_a_caller_without_a_key_is_told_why_it_has_no_place_of_its_own() -> None:
    with pytest.raises(InvalidRequest, match=r"TIDEGATE_JOBS_STORES\); without a key only below one without \{tenant\}"):
        place_of(PREFIXES, "", "/of/acme/a")
