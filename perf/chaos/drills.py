"""Every drill there is: what is done to what, what callers are to see of it, and which test holds that.

The table in docs/operations/faults.md and the names in ARCHITECTURE.md are made of this list. A new drill is an entry here, and what it
does a function beside those of `faults`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from perf.chaos import overload
from perf.chaos.callers import DEADLINE_S
from perf.chaos.faults import processes, stores
from perf.chaos.scene import Act

_NOTHING = "nothing"
_CALLERS, _EACH_WAY, _STREAMS_EACH_WAY = 20, 10, 2
"""Of every way to ask two; half of them send what may be computed twice and is answered whole, six ask for streams."""
_E2E = "tests/e2e"
_QUICK = f"{_E2E}/perf/test_perf.py::test_scenario"
"""Carries out some drills by itself, each in a second."""


@dataclass(frozen=True, slots=True)
class Drill:
    """One row."""

    name: str
    site: str
    """A name of `sites.SITES`."""
    act: Act
    done: str
    """To what, in words."""
    seen: str
    """What callers are to see."""
    test: str
    """`PATH::NAME` of the one that holds it for each commit; empty where there is none."""
    lost: float = 0.0
    """Requests at most that fail though they could be repeated, and streams at most that fail before their first piece, or without a
    word; what is on a connection that breaks is lost to callers without retries."""
    failed: float = math.inf
    """Requests at most that fail at all, streams among them."""
    failed_share: float = math.inf
    """The same of those that are answered whole, of all of them."""
    refuses: bool = False
    """Whether those may be told when to come again who come meanwhile: where another gateway may have what is missing here."""
    streams_refused: float = 0.0
    """Streams at most that are told when to come again elsewhere: requests of ModelStreamInfer to decoupled models are not sent again, as
    nobody can tell what has come of them."""
    over_within_s: float = 5.0
    """From the fault to the last failure, at most."""
    slow_until_s: float = math.inf
    """From the fault until the last request is sent that takes longer than a second, at most."""
    longest_repeatable_s: float = math.inf
    """That an answer to a request takes that may be computed twice, at most."""
    callers: int = _CALLERS
    deadline_s: float = DEADLINE_S
    is_overload: bool = False

    @property
    def key(self) -> str:
        """In names of figures."""
        return "_".join("".join(each if each.isalnum() else " " for each in self.name.lower()).split())


_THIRD = "one of three servers"
_OVERLOAD = "3 times what a model can do for 60 s, both protocols"

DRILLS = {
    drill.name: drill
    for drill in (
        Drill(
            "Triton dies", "three servers", processes.kill_a_triton, f"kill -9 of {_THIRD}",
            "what may not be computed twice fails if it was there; no other request", f"{_E2E}/fleet/test_fleet_workers.py::"
            "test_when_a_triton_is_killed_the_other_serves_what_it_had",
        ),
        Drill(
            "Triton freezes", "three servers", processes.freeze_a_triton, f"SIGSTOP of {_THIRD} for 5 s",
            "a pause of about a second for the requests that were there; longer for what may not be computed twice", "",
            slow_until_s=1.0, longest_repeatable_s=2.0,
        ),
        Drill(
            "Triton freezes behind workers", "two workers", processes.freeze_a_triton, "SIGSTOP of one of two servers for 5 s",
            "the same with `--workers 2`", "", slow_until_s=1.0, longest_repeatable_s=2.0,
        ),
        Drill(
            "stub dies", "three servers", processes.kill_a_stub, "kill -9 of the Python process of one of three replicas",
            "what may not be computed twice fails if it was there; no other request", f"{_E2E}/triton/test_dead_stub.py::"
            "test_all_that_fits_is_loaded_at_the_start_and_a_stub_that_dies_is_replaced",
        ),
        Drill(
            "stub of a text model dies", "three servers", processes.kill_a_text_stub,
            "the same of a replica that `/v1/embeddings` asks", "nothing", f"{_E2E}/fleet/test_faults.py::"
            "test_embeddings_are_computed_by_another_replica_where_a_stub_or_a_triton_dies_under_them",
        ),
        Drill(
            "generative stub dies", "three servers", processes.kill_a_generative_stub,
            "the same of a replica that chats, `generate_stream` and ModelStreamInfer ask",
            "streams there end with an error after the pieces that came, and ModelStreamInfer is told when to come again where none had; "
            "no other request", "", streams_refused=_STREAMS_EACH_WAY,
        ),
        Drill(
            "generative stub freezes", "three servers", processes.freeze_a_generative_stub,
            "SIGSTOP of the Python process of one of three replicas for 12 s",
            "requests there wait until the replica is given up on, and streams end with an error, or ModelStreamInfer is told when to come "
            "again; no other request", "", over_within_s=DEADLINE_S + 2.5, streams_refused=_STREAMS_EACH_WAY,
        ),
        Drill(
            "stub freezes", "three servers", processes.freeze_a_stub, "SIGSTOP of the Python process of one of three replicas for 12 s",
            "requests there wait until the replica is given up on; no other request", "",
            over_within_s=DEADLINE_S, slow_until_s=5.0,
        ),
        Drill(
            "a load hangs", "three servers", processes.load_one_that_hangs, "a model is asked for whose `initialize` never ends",
            "who asks for it is told so after `TIDEGATE_LOAD_TIMEOUT_S`; nobody else anything", f"{_E2E}/fleet/test_fleet_failures.py::"
            "test_one_whose_load_triton_would_never_end_fails_and_is_loaded_once_it_is_mended", failed=0,
        ),
        Drill(
            "an artefact is corrupt", "three servers", processes.load_a_corrupt_one, "a model is asked for whose file is cut off",
            "who asks for it is told what is wrong with its file; nobody else anything", f"{_E2E}/fleet/test_fleet_failures.py::"
            "test_for_one_whose_files_cannot_be_loaded_nothing_goes_and_who_asks_is_told", failed=0,
        ),
        Drill(
            "a request is poison", "three servers", processes.send_poison,
            "a client sends one eight times that ends the process computing it",
            "who sends it is refused after two processes; of the others, who had a request in one of those", "",
            over_within_s=10.0,
        ),
        Drill(
            "a request is poison behind workers", "two workers", processes.send_poison, "the same with `--workers 2` and two replicas",
            "the same", "", over_within_s=10.0,
        ),
        Drill(
            "a request never ends", "three servers", processes.send_what_never_ends,
            "a client sends it eight times, with a deadline of 2 s",
            "who sends it is told that time is over, and is refused after two replicas; others wait until the replica is given up on", "",
            over_within_s=10.0,
        ),
        Drill(
            "a request never ends behind workers", "two workers", processes.send_what_never_ends,
            "the same with `--workers 2` and two replicas", "the same", "", over_within_s=10.0,
        ),
        Drill(
            "a model hoards memory", "three servers", processes.hoard_memory, "one that declares 24 MiB takes 500 MiB",
            "nothing; the log says which server is beyond its budget", "tests/unit/fleet/test_reconciler.py::"
            "test_a_server_beyond_its_budget_is_told_of_once_and_when_it_is_within_it_again", failed=0,
        ),
        Drill(
            "a crowd for cold models", "three servers", processes.ask_for_twenty_cold_models,
            "200 requests at once for 20 models that are loaded nowhere, with room for 9", "all wait for the loads, and are answered",
            f"{_E2E}/fleet/test_fleet.py::test_many_at_once_for_one_that_is_nowhere_are_one_load", failed=0,
        ),
        Drill(
            "node dies", "three nodes", processes.kill_a_node, "kill -9 of one of three nodes, and a start a second later",
            "its Triton ends with it: what may not be computed twice fails if it was there; no other request",
            f"{_E2E}/node/test_nodes.py::test_a_killed_node_leaves_no_process_and_is_used_again_once_it_is_back",
        ),
        Drill(
            "node freezes", "three nodes", processes.freeze_a_node, "SIGSTOP of one of three nodes for 5 s",
            "nothing: its Triton answers",
            f"{_E2E}/node/test_nodes.py::test_a_frozen_node_costs_only_its_hits_and_they_come_back", failed=0,
        ),
        Drill(
            "node is cut off", "three nodes", processes.hold_up_the_way_to_a_node,
            "nothing comes through between the gateway and one of three nodes for 5 s, and no connection is closed", _NOTHING,
            "tests/unit/node/test_contents.py::test_a_half_open_connection_is_known_within_two_seconds_and_made_anew", failed=0,
        ),
        Drill(
            "a node's Triton dies", "three nodes", processes.kill_a_triton, "kill -9 of the Triton of one of three nodes",
            "what may not be computed twice fails if it was there; no other request", "",
        ),
        Drill(
            "a node's Triton freezes", "three nodes", processes.freeze_a_triton, "SIGSTOP of the Triton of one of three nodes for 5 s",
            "a pause of about a second for the requests that were there; longer for what may not be computed twice", "",
            slow_until_s=1.0, longest_repeatable_s=2.0,
        ),
        Drill(
            "worker dies", "two workers", processes.kill_a_worker, "kill -9 of one of two",
            "connections to it break, with what was on them; new ones are accepted", f"{_E2E}/app/test_workers.py::"
            "test_a_worker_that_is_killed_costs_only_what_it_had_under_way", lost=_EACH_WAY, over_within_s=2.0,
        ),
        Drill(
            "worker freezes", "two workers", processes.freeze_a_worker, "SIGSTOP of one of two for 5 s",
            "requests there wait for it; new connections go to the other after 2 s", "",
            deadline_s=3.0, lost=2 * _EACH_WAY, over_within_s=6.0,
        ),
        Drill(
            "gateway dies", "two gateways", processes.kill_a_gateway, "kill -9 of one of two, and a start a second later",
            "connections to it break, with what was on them; callers go to the other", f"{_E2E}/app/test_life.py::"
            "test_kill_9_leaves_no_orphan_and_what_it_left_is_replaced", lost=_EACH_WAY, over_within_s=2.0,
        ),
        Drill(
            "gateway is told to stop", "two gateways", processes.tell_a_gateway_to_stop,
            "SIGTERM of one of two behind a balancer that asks whether it is ready, and a start once it has ended",
            "nothing: what is there is answered, streams to their end, and the other gets the rest", _QUICK, failed=0,
        ),
        Drill(
            "gateway freezes", "two gateways", processes.freeze_a_gateway, "SIGSTOP of one of two for 5 s",
            "requests there wait for it", _QUICK, failed=0,
        ),
        Drill(
            "leader dies", "two gateways", processes.kill_the_leader, "kill -9 of the gateway that loads, and a start a second later",
            "as with any gateway; who asks for a cold model waits for the other one, about 8 s", f"{_E2E}/fleet/test_two_gateways.py::"
            "test_when_the_leader_is_killed_the_other_takes_over", lost=_EACH_WAY, over_within_s=2.0,
        ),
        Drill(
            "leader freezes", "two gateways", processes.freeze_the_leader,
            "SIGSTOP of the gateway that loads for 10 s, longer than its lease",
            "requests there wait for it or for their deadline; the other one loads", f"{_E2E}/fleet/test_leaders.py::"
            "test_one_that_is_held_still_past_its_lease_does_no_harm", lost=_EACH_WAY, over_within_s=DEADLINE_S + 2.5,
        ),
        Drill(
            "a region dies", "two regions", processes.kill_a_region,
            "kill -9 of a region's gateway while another region's only Triton is frozen for 2.5 s more, and a start then",
            "what may not be computed twice fails if it was there; the rest waits for a Triton",
            _QUICK, callers=_EACH_WAY,
        ),
        Drill(
            "a region freezes", "two regions", processes.freeze_a_region,
            "SIGSTOP of a region's gateway for 5 s, while another region's only Triton is frozen for the first half",
            "requests there are given up on after two seconds: what may not be computed twice fails, the rest waits for a Triton",
            f"{_E2E}/regions/test_regions.py::test_requests_at_a_region_that_freezes_are_given_up_on", callers=_EACH_WAY,
        ),
        Drill(
            "Redis dies", "two gateways", stores.kill_redis, "kill -9 of the one with the state, and a start 6 s later",
            _NOTHING,
            "tests/contract/stores/test_redis.py::test_one_that_ends_is_unavailable_at_once_and_back_with_all_it_was_told", failed=0,
        ),
        Drill(
            "Redis freezes", "two gateways", stores.freeze_redis, "SIGSTOP of the one with the state for 6 s",
            _NOTHING, f"{_E2E}/auth/test_access.py::test_while_redis_hangs_they_go_on_with_what_they_know", failed=0,
        ),
        Drill(
            "Redis lies", "two gateways", stores.empty_redis, "FLUSHALL of the one with the state",
            "nothing: keys that are known stay valid, and the health page says so", f"{_E2E}/auth/test_access.py::"
            "test_an_emptied_redis_locks_nobody_out", failed=0,
        ),
        Drill(
            "Redis is slow", "two gateways", stores.slow_redis, "50 ms for each answer of the one with the state, for 6 s",
            _NOTHING, _QUICK, failed=0,
        ),
        Drill(
            "a client floods", "two gateways", processes.flood_by_a_client,
            "100 connections of one tenant, 50 requests on each at once, for 6 s",
            "other tenants' requests take longer, and none fails", _QUICK, failed=0,
        ),
        Drill(
            "the state disk is full", "small state disk", stores.fill_the_disk, "no byte can be written for 6 s",
            "nothing; who asks for a model that must be placed there is told why not",
            "tests/unit/metering/test_metering_whatever_happens.py::"
            "test_whatever_the_store_does_each_request_counts_once_on_its_day_or_as_dropped", failed=0,
        ),
        Drill(
            "the warm disk is full", "small warm disk", stores.fill_the_disk, "no byte can be written for 6 s",
            "nothing; who asks for a model that must be fetched is told so at once",
            "tests/unit/models/tiers/test_warm_tier_manager_faults.py::test_a_full_disk_is_told_and_nothing_half_made_stays", failed=0,
        ),
        Drill(
            "too much", "one server", overload.overload, _OVERLOAD, "answers in time as at the peak; the rest is refused at once",
            f"{_E2E}/admission/test_overload.py::test_thrice_the_capacity_leaves_nine_tenths_of_the_peak", callers=0, is_overload=True,
        ),
        Drill(
            "too much, with keys", "one server with keys", overload.overload, f"{_OVERLOAD}, with authentication", "the same",
            f"{_E2E}/admission/test_overload.py::test_thrice_the_capacity_leaves_nine_tenths_of_the_peak", callers=0, is_overload=True,
        ),
        Drill(
            "too much, and callers leave", "one server", overload.overload_by_leavers,
            f"{_OVERLOAD}; every second caller leaves after 150 ms", "the same for those who stay", "", callers=0, is_overload=True,
        ),
        Drill(
            "too much, and nobody says how long he waits", "one server", overload.overload_untold,
            f"{_OVERLOAD}; callers leave after 0.9 s, their deadlines are 27 s", "the same",
            f"{_E2E}/admission/test_overload.py::test_callers_that_leave_without_having_said_when_are_answered_while_they_are_there",
            callers=0, is_overload=True,
        ),
        Drill(
            "the only Triton dies", "one server", processes.kill_a_triton, "kill -9 of a Triton that has no other one beside it",
            "what may not be computed twice fails if it was there, and streams end with an error; the rest of what was there waits for "
            "the next Triton; who comes meanwhile is told when to come again", f"{_E2E}/app/test_life.py::"
            "test_triton_that_dies_comes_back_with_its_models", refuses=True, over_within_s=10.0,
        ),
        Drill(
            "the only Triton freezes", "one server", processes.freeze_a_triton, "SIGSTOP of it for 5 s",
            "requests wait for it", "", failed=0,
        ),
        Drill(
            "the only stub dies", "one server", processes.kill_a_stub, "kill -9 of the Python process of a model that has no other one",
            "requests wait until the model is loaded anew", f"{_E2E}/triton/test_dead_stub.py::"
            "test_one_server_has_it_back_in_seconds_whatever_the_deadlines",
        ),
        Drill(
            "the only stub freezes", "one server", processes.freeze_a_stub_until_it_is_ended, "SIGSTOP of it, until the gateway ends it",
            "requests there may end at their deadline, 3 s; it is ended within two seconds, and the rest waits until the model is loaded "
            "anew, or is told when to come again",
            f"{_E2E}/triton/test_dead_stub.py::test_one_server_has_it_back_in_seconds_whatever_the_deadlines",
            deadline_s=3.0, lost=_EACH_WAY, refuses=True, over_within_s=8.0,
        ),
        Drill(
            "the only generative stub dies", "one server", processes.kill_a_generative_stub,
            "kill -9 of the Python process of one that generates text",
            "streams that had begun end with an error, and what else was there is told when to come again; the rest waits until the "
            "model is loaded anew", _QUICK, refuses=True,
        ),
        Drill(
            "a request is poison to the only stub", "one server", processes.send_poison,
            "a client sends one eight times that ends the process computing it",
            "who sends it is refused after two processes; others wait until the model is loaded anew", f"{_E2E}/triton/test_dead_stub.py::"
            "test_one_server_has_it_back_in_seconds_whatever_the_deadlines", failed_share=0.01, over_within_s=10.0,
        ),
        Drill(
            "an only Triton fails a load", "one server", processes.have_one_loaded_that_is_corrupt,
            "an administrator has a model loaded whose file is cut off",
            "who asks for the load is told what is wrong with the file; nobody else anything", "", failed=0,
        ),
        Drill(
            "an only Triton hangs in a load", "one server", processes.have_one_loaded_that_hangs,
            "an administrator has a model loaded whose `initialize` never ends",
            "who asks for the load is told so after `TIDEGATE_LOAD_TIMEOUT_S`; nobody else anything", "", failed=0,
        ),
    )
}  # fmt: skip
