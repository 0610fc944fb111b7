"""Users' trace files: what is accepted, and the errors for what is not."""

from __future__ import annotations

import pytest

from control_plane.core.errors import InvalidRequest
from control_plane.fleet.simulation.traces import parse_costs, parse_requests
from control_plane.fleet.simulation.workload import ModelCost, Request


def parsed(text: str) -> list[Request]:
    return parse_requests(text.splitlines(), 0.010)


@pytest.mark.parametrize(
    ("text", "requests"),
    [
        pytest.param("seconds,model\n0,a\n0.5,b\n", [(0, "a", 0.010), (0.5, "b", 0.010)], id="two columns"),
        pytest.param("model,service_ms,seconds\na,20,7\na,,8\n", [(0, "a", 0.020), (1, "a", 0.010)], id="any order of columns, a gap"),
        pytest.param("seconds,model\n1700000003,b\n1700000001,a\n", [(0, "a", 0.010), (2, "b", 0.010)], id="seconds since 1970, any order"),
        pytest.param("seconds,model,tenant\n-1,a,x\n", [(0, "a", 0.010)], id="other columns"),
        pytest.param("seconds,model\n 0 , a \n\n1,b\n", [(0, "a", 0.010), (1, "b", 0.010)], id="spaces, an empty line"),
    ],
)
def test_traces(text: str, requests: list[tuple[float, str, float]]) -> None:
    assert parsed(text) == [Request(*each) for each in requests]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        pytest.param("", "line 1: there is no column seconds and no model", id="empty"),
        pytest.param("0,a\n1,b\n", "there is no column seconds and no model", id="no header"),
        pytest.param("seconds,name\n1,b\n", "no column model; the first line is a header such as seconds,model", id="another header"),
        pytest.param("seconds,model\n", "the trace has no requests", id="a header only"),
        pytest.param("seconds,model\n0,a\nsoon,b\n", "line 3: seconds is 'soon'; write a number$", id="no number"),
        pytest.param("seconds,model\n0\n", "line 2: '' is no name of a model", id="half a line"),
        pytest.param("seconds,model\n,a\n", "line 2: seconds is ''", id="no time"),
        pytest.param("seconds,model\nnan,a\n", "line 2: seconds is 'nan'", id="nan"),
        pytest.param("seconds,model\n-inf,a\n", "line 2: seconds is '-inf'", id="infinite"),
        pytest.param("seconds,model\n0,../a\n", "line 2: '../a' is no name of a model", id="no model"),
        pytest.param("seconds,model,service_ms\n0,a,-3\n", "service_ms is '-3'; write a number of 0 or more", id="negative"),
        pytest.param('seconds,model\n0,"a\n1,b\n', "line 3: 'a1,b' is no name of a model", id="an open quote"),
        pytest.param("seconds,model\n0,a\x00b\n", "line 2: ", id="NUL"),
        pytest.param("seconds,model\n0," + "a" * 200_000 + "\n", "line 2: it is no CSV: field larger", id="endless"),
    ],
)
def test_bad_traces(text: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        parsed(text)


def test_costs() -> None:
    usual = ModelCost(1000, 2.0)
    assert parse_costs("model,bytes,load_ms\na,5,100\nb,,\nc,7,\n".splitlines(), usual) == {
        "a": ModelCost(5, 0.1),
        "b": usual,
        "c": ModelCost(7, 2.0),
    }
    assert parse_costs(["model,load_ms", "a,0"], usual) == {"a": ModelCost(1000, 0.0)}
    with pytest.raises(InvalidRequest, match="line 2: bytes is '0'; write a number of 1 or more"):
        parse_costs(["model,bytes", "a,0"], usual)
