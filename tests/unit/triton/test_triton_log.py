"""Explanations of failed loads, from answers and logs of a real Triton 24.10."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane.triton.triton_log import LogLine, StubEnd, brief, load_failure, read_lines, without_frames

_FRAMES = "\\n\\nAt:\\n  /s/triton/repository/m/1/model.py(4): initialize\\n"
_RAISED = "\n\nAt:\n  /s/triton/repository/m/1/model.py(4): initialize\n"
_ANSWER = "load failed for model 'm': version 1 is at UNAVAILABLE state: "
_POLLED = "failed to load 'm', failed to poll from model repository"


def iso(source: str, text: str, severity: str = "E") -> str:
    return f'2026-11-22T15:55:28Z {severity} 1484 {source}:642] "{text}"\n'


def stub(text: str) -> str:
    return f"I1122 15:56:05.023213 2202 pb_stub.cc:2105]  {text}\n\n"


def of(*models: str, answer: str, log: str = "", ends: tuple[StubEnd, ...] = (), is_alone: bool = True) -> str:
    return load_failure(answer, models or ("m",), read_lines(log.encode()), ends=ends, is_alone=is_alone)


_BAD_PROTO = (
    "[libprotobuf ERROR /tmp/text_format.cc:337] Error parsing text-format inference.ModelConfig: 6:1: Expected identifier, got: \n"
)
_NOT_READ = iso("model_repository_manager.cc", "Poll failed for model directory 'm': failed to read text proto from /s/m/config.pbtxt")
_ENSEMBLE = iso("model_repository_manager.cc", "Invalid argument: ensemble 'e' depends on 'm' which has no loaded version. pv\ufffd~")


@pytest.mark.parametrize(
    ("answer", "log", "reason"),
    [
        pytest.param(f"{_ANSWER}Internal: ValueError: no weights;\n", "", f"{_ANSWER}Internal: ValueError: no weights", id="as it is"),
        pytest.param(
            f"{_ANSWER}Internal: ValueError: one\ntwo{_RAISED};\n",
            iso("pb_stub.cc", f"Failed to initialize Python stub: ValueError: one\\ntwo{_FRAMES}", "I")
            + iso("backend_model.cc", f"ERROR: Failed to create instance: ValueError: one\\ntwo{_FRAMES}")
            + iso("model_lifecycle.cc", f"failed to load 'm' version 1: Internal: ValueError: one\\ntwo{_FRAMES}")
            + iso("model_lifecycle.cc", "failed to load 'm'", "I"),
            f"{_ANSWER}Internal: ValueError: one\ntwo",
            id="an exception, once and without frames",
        ),
        pytest.param(
            _POLLED,
            iso("model_repository_manager.cc", "Poll failed for model directory 'm': unexpected directory name 'm' for model 'n'"),
            "failed to load 'm': unexpected directory name 'm' for model 'n'",
            id="polled: the log says why",
        ),
        pytest.param(
            _POLLED,
            _BAD_PROTO + _NOT_READ,
            "failed to load 'm': failed to read text proto from /s/m/config.pbtxt: 6:1: Expected identifier, got:",
            id="polled: protobuf says why",
        ),
        pytest.param(_POLLED, "", _POLLED, id="polled: the log says nothing"),
        pytest.param(
            f"{_ANSWER}at least one version must be available",
            iso("model_lifecycle.cc", "version 7 is specified for model 'm', but the version directory is not present"),
            f"{_ANSWER}at least one version must be available; "
            "version 7 is specified for model 'm', but the version directory is not present",
            id="the log says more",
        ),
        pytest.param(f"{_ANSWER}no", _ENSEMBLE, f"{_ANSWER}no", id="an ensemble that failed before is not this one's"),
        pytest.param(
            f"{_ANSWER}no",
            iso("model_lifecycle.cc", "failed to load 'other' version 1: Internal: ValueError: its own")
            + iso("x.cc", "cannot read /s/triton/repository/other/1/model.plan"),
            f"{_ANSWER}no",
            id="what is another's",
        ),
        pytest.param(
            f"{_ANSWER}Internal: unable to load plan file",
            iso("logging.cc", "IRuntime::deserializeCudaEngine: the engine was built for another device"),
            f"{_ANSWER}Internal: unable to load plan file; IRuntime::deserializeCudaEngine: the engine was built for another device",
            id="a backend's own line that names no model",
        ),
    ],
)
def test_it_is_the_answer_and_what_the_log_says_beyond_it(answer: str, log: str, reason: str) -> None:
    assert of(answer=answer, log=log) == reason


def test_what_names_no_model_is_nobodys_while_several_load() -> None:
    log = iso("logging.cc", "the engine was built for another device")
    assert of(answer=f"{_ANSWER}no", log=log, is_alone=False) == f"{_ANSWER}no"


def test_what_an_ensembles_step_says_is_the_ensembles() -> None:
    log = iso("model_lifecycle.cc", "failed to load 'step' version 1: Internal: no engine")
    assert of("m", "step", answer=f"{_ANSWER}a step failed", log=log).endswith("a step failed; Internal: no engine")


class TestDeadStubs:
    UNANSWERED = f"{_ANSWER}Internal: Received unexpected response from Python backend stub: m;\n"
    UNHEALTHY = f"{_ANSWER}Internal: Stub process 'm_0' is not healthy.;\n"

    @pytest.mark.parametrize(
        ("answer", "ends", "said"),
        [
            pytest.param(UNANSWERED, (StubEnd("m", "ended with exit status 3"),), "ended with exit status 3", id="while it is completed"),
            pytest.param(UNHEALTHY, (StubEnd("m_0", "was killed by SIGSEGV"),), "was killed by SIGSEGV", id="of an instance"),
            pytest.param(UNHEALTHY, (StubEnd("", "was killed by SIGSEGV"),), "was killed by SIGSEGV", id="that nobody saw living"),
            pytest.param(UNHEALTHY, (StubEnd("n_0", "was killed by SIGSEGV"),), "ended", id="another's end is not its"),
            pytest.param(UNHEALTHY, (StubEnd("", "ended with exit status 1"), StubEnd("", "was killed by SIGSEGV")), "ended", id="which?"),
            pytest.param(UNHEALTHY, (), "ended", id="nobody knows"),
        ],
    )
    def test_how_it_ended_stands_for_that_it_does_not_answer(self, answer: str, ends: tuple[StubEnd, ...], said: str) -> None:
        log = iso("backend_model.cc", "ERROR: Failed to create instance: Stub process 'm_0' is not healthy.")
        assert of(answer=answer, log=log, ends=ends) == f"{_ANSWER}Internal: its Python process {said} before the model was ready"

    def test_of_a_kill_it_is_said_who_may_have_done_it(self) -> None:
        assert "when memory runs out" in of(answer=self.UNHEALTHY, ends=(StubEnd("m_0", "was killed by SIGKILL"),))

    def test_what_it_has_said_itself_is_told(self) -> None:
        log = stub("Failed to preinitialize Python stub: Python model file not found in '/s/triton/repository/m/1/model.py'")
        found = of(answer=self.UNANSWERED, log=log, ends=(StubEnd("m", "ended with exit status 1"),))
        assert found.endswith("before the model was ready; Python model file not found in '/s/triton/repository/m/1/model.py'")

    def test_if_it_said_nothing_what_was_printed_last_is(self) -> None:
        log = "\n".join(["loading", "one", "two", "Fatal Python error: Aborted", ""])
        found = of(answer=self.UNANSWERED, log=log, ends=(StubEnd("m", "was killed by SIGABRT"),))
        assert found.endswith("; what it and others printed last: one / two / Fatal Python error: Aborted")
        assert "printed" not in of(answer=self.UNANSWERED, log=log, is_alone=False)


def test_lines_are_told_apart_by_their_heads() -> None:
    log = iso("a.cc", "one\\ntwo", "I") + stub("said\nand more") + "printed\n" + _BAD_PROTO + 'cut off] "x\n'
    assert read_lines(log.encode()) == [
        LogLine("I", "a.cc", "one\ntwo"),
        LogLine("I", "pb_stub.cc", "said\nand more\n\nprinted"),
        LogLine("E", "libprotobuf", "Error parsing text-format inference.ModelConfig: 6:1: Expected identifier, got: "),
        LogLine("", "", 'cut off] "x'),
        LogLine("", "", ""),
    ]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("ValueError: x\n\nAt:\n  a(1): f\n  b(2): g\n", "ValueError: x"),
        ("ValueError: x\n\nAt:\n  a(1): f\n;version 2 is at UNAVAILABLE state: y;\n", "ValueError: x;version 2 is at UNAVAILABLE state: y"),
        ("ValueError: look At:\n home", "ValueError: look At:\n home"),
        ("no frames", "no frames"),
        pytest.param("ValueError: x\n; \n;", "ValueError: x", id="what is left between and after versions"),
    ],
)
def test_frames_go_and_the_exception_stays(text: str, left: str) -> None:
    assert without_frames(text) == left


def test_a_long_text_of_blanks_takes_no_time_to_speak_of() -> None:
    assert without_frames("x" + " \n" * 200_000 + "At:\n" + "  a(1): f\n" * 200_000) == "x"


@pytest.mark.parametrize(
    ("failure", "left"),
    [
        (f"{_ANSWER}Internal: x", "Internal: x"),
        ("failed to load 'm': x", "x"),
        ("load failed for model 'm': ensemble 'm' depends on 'n'", "ensemble 'm' depends on 'n'"),
        ("model 'm' has no version folder", "model 'm' has no version folder"),
    ],
)
def test_beside_the_models_name_the_rest_is_enough(failure: str, left: str) -> None:
    assert brief(failure) == left


@given(st.binary(max_size=2000), st.text(max_size=200))
def test_whatever_stands_in_the_log_there_is_a_reason_of_bounded_length(log: bytes, answer: str) -> None:
    found = load_failure(answer, ["m"], read_lines(log), is_alone=True)
    assert len(found) <= max(1000, len(answer))
