"""One tenant against all others: what he sends neither rolls a good version back nor takes a bad one forward by itself."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from control_plane.inference.domain.observation import Observation, Pair
from control_plane.objects.domain.rollout import Agreement, Rollout
from control_plane.rollout.domain.evidence import Evidence
from control_plane.rollout.domain.findings import DISAGREEMENT, ENOUGH_OTHERS, FAULTS, SLOW, SLOWER, added
from control_plane.rollout.domain.gate import Gate
from control_plane.rollout.domain.strata import STRATA, StratifiedGate, stratum_of
from tests.fakes.rollout_steps import steps_of

ROLLOUT = Rollout("r", "5" * 32, "v2", "v1", steps_of([1, 50], samples=100, min_s=1.0))
OTHERS = [f"tenant-{number}" for number in range(20)]
LOUD = "loud"


class Traffic:
    """Requests of many tenants, 0.3 of which the next model gets; `loud` sends what a test says beside them."""

    def __init__(self, *, seed: int = 1, rollout: Rollout = ROLLOUT, tenants: list[str] = OTHERS) -> None:
        self.evidence = Evidence(rollout)
        self._drawn, self._tenants, self._number = random.Random(seed), tenants, 0

    def serve(self, count: int, *, canary_faults: float = 0.0, stable_faults: float = 0.0, canary_times: float = 1.0) -> None:
        for _ in range(count):
            is_stable = self._drawn.random() >= 0.3
            took_s = 0.01 * self._drawn.lognormvariate(0, 0.3) * (1.0 if is_stable else canary_times)
            is_fault = self._drawn.random() < (stable_faults if is_stable else canary_faults)
            self.send(self._drawn.choice(self._tenants), is_stable=is_stable, is_fault=is_fault, took_s=took_s)

    def send(self, tenant: str, *, is_stable: bool, is_fault: bool = False, took_s: float = 0.01) -> None:
        self._number += 1
        self.evidence.add(Observation("r", "id", is_stable, self._number, is_fault, took_s, tenant=tenant))
        if self._number % 50 == 0:
            self.evidence.tick()

    def attack(self, count: int = 200, *, took_s: float | None = None) -> None:
        """A tenant who knows which of his places go to the next model fails there, and is well served elsewhere."""
        for _ in range(count):
            self.send(LOUD, is_stable=False, is_fault=took_s is None, took_s=took_s or 0.01)
            self.send(LOUD, is_stable=True)

    @property
    def verdict(self) -> tuple[str, bool]:
        found = self.evidence.findings
        return found.failed, bool(found.doubt)


def test_what_one_tenant_fails_where_he_likes_rolls_nothing_back_and_is_told() -> None:
    traffic = Traffic()
    traffic.serve(2_000)
    traffic.attack()
    traffic.serve(2_000)
    assert traffic.verdict == ("", True)
    told = traffic.evidence.findings.doubt
    assert told.startswith("faults: 200 of ")
    assert "one tenant's requests" in told


def test_nor_does_what_he_has_answered_slowly() -> None:
    traffic = Traffic()
    traffic.serve(2_000)
    traffic.attack(took_s=1.0)
    assert traffic.verdict == ("", True)
    assert traffic.evidence.findings.doubt.startswith(SLOW)


def test_nor_do_answers_to_his_copies_that_differ() -> None:
    traffic = Traffic(rollout=replace(ROLLOUT, agreement=Agreement("exact")))
    for number in range(2_000):
        tenant = LOUD if number % 5 == 0 else OTHERS[number % 20]
        traffic.evidence.add(Observation("r", "id", False, number, False, 0.01, pair=Pair(False, tenant == LOUD), tenant=tenant))
    assert traffic.verdict == ("", True)
    assert traffic.evidence.findings.doubt.startswith(DISAGREEMENT)


@pytest.mark.parametrize(
    ("how", "failed"),
    [
        pytest.param({"canary_faults": 0.2}, {FAULTS}, id="fails"),
        pytest.param({"canary_times": 1.5}, {SLOWER, SLOW}, id="slower"),
    ],
)
def test_a_version_that_is_worse_for_all_is_found_about_as_soon_as_with_one_tenant(how: dict[str, float], failed: set[str]) -> None:
    def needed(tenants: list[str], seed: int) -> int:
        traffic = Traffic(seed=seed, tenants=tenants)
        traffic.serve(600)  # by which it is known what is slow
        for count in range(0, 4_000, 50):
            traffic.serve(50, **how)
            if traffic.verdict[0]:
                assert traffic.verdict[0] in failed
                return count
        raise AssertionError("it is not found")

    alone, many = [sorted(needed(tenants, seed) for seed in range(9))[4] for tenants in ([LOUD], OTHERS)]
    assert many <= 2 * alone + 100


def test_a_tenant_beside_whom_there_is_hardly_anybody_decides() -> None:
    traffic = Traffic(tenants=["a"])
    traffic.attack(50)
    assert traffic.verdict == (FAULTS, False), "he is alone"
    assert stratum_of(ROLLOUT.id, "a") != stratum_of(ROLLOUT.id, LOUD)
    traffic.serve(4)
    assert traffic.verdict == (FAULTS, False)
    traffic.serve(4)
    assert traffic.verdict == ("", True), "not yet: others have just begun"
    traffic.attack(1_000)
    assert traffic.verdict == (FAULTS, False), "hardly anybody else is there"
    traffic.serve(ENOUGH_OTHERS)
    traffic.attack(5_000)
    assert traffic.verdict == ("", True), "others are there, however much he sends"


def test_whose_requests_alone_speak_against_it_waits_for_others_to_bear_it_out() -> None:
    traffic = Traffic()
    traffic.serve(1_000)
    traffic.attack()
    assert traffic.verdict == ("", True)
    traffic.serve(1_000, canary_faults=0.3)
    assert traffic.verdict == (FAULTS, False)


def test_one_who_makes_a_bad_version_look_good_takes_it_no_step_forward() -> None:
    traffic = Traffic()
    for _ in range(40):
        for _ in range(50):
            traffic.send(LOUD, is_stable=True, is_fault=True)
            traffic.send(LOUD, is_stable=False)
        traffic.serve(50, canary_faults=0.3)
    assert any(traffic.verdict)


def test_a_version_that_is_no_worse_is_doubted_no_more_often_than_it_may_be_rolled_back() -> None:
    """Looked at twenty times each; a chance of 0.01 is shared by three gates, of which one has anything to judge here."""
    doubted = 0
    for seed in range(60):
        traffic = Traffic(seed=seed)
        for _ in range(20):
            traffic.serve(100, canary_faults=0.1, stable_faults=0.1)
            if any(traffic.verdict):
                doubted += 1
                break
    assert doubted <= 2


def test_memory_is_bounded_and_processes_agree_without_names() -> None:
    sent = [(f"t{number}", number % 3 > 0, number % 7 == 0) for number in range(3_000)]
    one, other, both = Traffic(), Traffic(), Traffic()
    for number, (tenant, is_stable, is_fault) in enumerate(sent):
        for traffic in ((one, other)[number % 2], both):
            traffic.send(tenant, is_stable=is_stable, is_fault=is_fault)
    for traffic in (one, other, both):
        traffic.evidence.tick()
    parts = [each.evidence.sums(ROLLOUT.stage) for each in (one, other)]
    assert all(len(part.gates[FAULTS]) == STRATA for part in parts)
    found = added(parts, ROLLOUT)
    assert found.heard == both.evidence.findings.heard
    whole = found.gates[FAULTS].whole
    judged = [each.evidence.gates[FAULTS].whole for each in (one, other)]
    assert whole.canary_bad == sum(each.canary_bad for each in judged) > 0
    assert whole.canary + whole.stable == sum(each.canary + each.stable for each in judged) > 2_900


def test_a_tenants_stratum_is_another_one_in_each_rollout() -> None:
    assert len({stratum_of(f"{number}", "a") for number in range(200)}) == STRATA


def test_without_each_is_the_gate_of_the_others() -> None:
    gate = StratifiedGate()
    for number, bad in ((0, 4), (3, 1), (9, 8)):
        gate.stratum(number).add_block(8, bad, 40, 2)
    rest = Gate()
    rest.add_block(8, 4, 40, 2)
    rest.add_block(8, 8, 40, 2)
    assert gate.without_each()[3] == pytest.approx(rest.log_evidence)
    assert gate.without_each()[5] == pytest.approx(gate.whole.log_evidence)
    assert StratifiedGate().log_evidence == 0.0


def test_samples_of_one_arm_alone_do_not_pile_up_until_they_cannot_be_judged() -> None:
    gate = Gate()
    for number in range(99_999):
        gate.add(is_stable=True, is_bad=number % 2 == 0)
    gate.add(is_stable=False, is_bad=True)
    gate.close_block()
    assert 0 < gate.stable < 4_000
