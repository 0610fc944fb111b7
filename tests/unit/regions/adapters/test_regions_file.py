from __future__ import annotations

from pathlib import Path

import pytest

from control_plane.core.endpoints import TcpAddress, UpstreamCredentials
from control_plane.core.errors import StartupError
from control_plane.regions.adapters.regions_file import read_regions
from control_plane.regions.domain.region import Region


def read(tmp_path: Path, text: str, *, own: str = "here") -> list[Region]:
    path = tmp_path / "regions.yaml"
    path.write_text(text)
    return read_regions(path, own=own)


def test_what_is_not_given_has_a_default(tmp_path: Path) -> None:
    tls = UpstreamCredentials()
    assert read(tmp_path, "- {name: us, url: 'https://us.example'}") == [
        Region("us", TcpAddress("us.example", 8000, tls), TcpAddress("us.example", 8001, tls), 1.0)
    ]


def test_all_that_may_be_given(tmp_path: Path) -> None:
    text = """
- name: us
  url: https://us.example:443
  grpc_url: https://grpc.us.example:8443
  ca: /ca.pem
  certificate: /own.pem
  key: /own.key
  max_share: 0.25
"""
    tls = UpstreamCredentials(ca="/ca.pem", certificate="/own.pem", key="/own.key")
    assert read(tmp_path, text) == [Region("us", TcpAddress("us.example", 443, tls), TcpAddress("grpc.us.example", 8443, tls), 0.25)]


def test_a_regions_own_entry_is_left_out_so_that_all_can_have_one_file(tmp_path: Path) -> None:
    text = "- {name: here, url: 'https://h.example'}\n- {name: there, url: 'http://127.0.0.1:8000'}"
    assert [each.name for each in read(tmp_path, text)] == ["there"]
    assert [each.name for each in read(tmp_path, text, own="there")] == ["here"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("- {name: us, url: 'http://us.example:8000'}", "callers' keys go with", id="keys in clear"),
        pytest.param(
            "- {name: us, url: 'https://us.example', grpc_url: 'http://us.example:1'}", "region us: grpc_url", id="keys in clear over gRPC"
        ),
        pytest.param("- {name: us, url: 'https://user:secret@us.example'}", "without a user", id="a password"),
        pytest.param("- {name: us, url: 'https://us.example/path'}", "without a user, a path", id="a path"),
        pytest.param("- {name: us, url: 'https://us.example:99999'}", "expected https://HOST:PORT", id="no port"),
        pytest.param("- {name: us, url: 'ftp://us.example'}", "expected https://HOST:PORT", id="another scheme"),
        pytest.param("- {name: 'a b', url: 'https://us.example'}", "entry 1: name", id="a name that is none"),
        pytest.param("- {name: us}", "entry 1: url", id="no URL"),
        pytest.param("- {name: us, url: 'https://a', key_file: k}", "entry 1: key_file", id="an unknown key"),
        pytest.param("- {name: us, url: 'https://a', max_share: 2}", "entry 1: max_share", id="more than all"),
        pytest.param("- {name: us, url: 'https://a'}\n- {name: us, url: 'https://b'}", "two entries have the name us", id="twins"),
        pytest.param("name: us", "the file", id="no list"),
        pytest.param("- {name: [", "is no YAML", id="no YAML"),
        pytest.param("\n".join(f"- {{name: r{n}, url: 'https://a{n}'}}" for n in range(33)), "32 is the most", id="too many"),
        pytest.param("#" * 2**19, "is larger than", id="too large"),
    ],
)
def test_what_is_wrong_is_said_and_no_secret_with_it(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(StartupError, match="--regions-file") as caught:
        read(tmp_path, text)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


def test_one_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="cannot be read: No such file"):
        read_regions(tmp_path / "none", own="here")
