"""Processes of clients that stand for other machines'."""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def yielding(count: int) -> ProcessPoolExecutor:
    """Processes that take of the cores what the servers, and the caller who is measured, leave.

    Merely nice ones would run on for up to 3 ms where one of those wakes.
    """
    return ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_give_way)


def _give_way() -> None:
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
