"""Only who handles the two signals, and no other real-time one, is told of a copy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from runtime_guest import residents


def status(*numbers: int) -> str:
    return f"Name:\tx\nSigIgn:\t0000000000000000\nSigCgt:\t{sum(1 << (n - 1) for n in numbers):016x}\n"


@pytest.mark.parametrize(
    ("numbers", "wants"),
    [
        ((residents.SIGNAL, residents.MARK), True),
        ((2, 17, residents.SIGNAL, residents.MARK), True),  # signals that are no real-time ones say nothing
        ((32, 33, residents.SIGNAL, residents.MARK), True),  # nor do the C library's own
        ((residents.SIGNAL,), False),
        ((residents.SIGNAL, residents.MARK, 40), False),
        ((), False),
        (tuple(range(1, 65)), False),
    ],
)
def test_asking_is_handling_two_real_time_signals_and_no_other(numbers: tuple[int, ...], wants: bool) -> None:
    assert residents.wants(status(*numbers)) is wants


def test_a_status_without_signals_asks_for_nothing() -> None:
    assert not residents.wants("Name:\tx\n")


def test_one_that_asks_is_told_one_that_does_not_lives_on_and_one_that_is_gone_is_no_matter() -> None:
    say = "import _signal, sys, time; [_signal.signal(n, lambda *_: sys.exit(7)) for n in (53, 61)]; print(flush=True)"
    with subprocess.Popen([sys.executable, "-c", f"{say}; time.sleep(60)"], stdout=subprocess.PIPE) as asks:
        with subprocess.Popen(["sleep", "60"]) as deaf:
            assert asks.stdout is not None and asks.stdout.readline() == b"\n"
            gone = subprocess.Popen(["true"])
            gone.wait()

            told = residents.tell([gone.pid, deaf.pid, asks.pid])

            assert (told, asks.wait(30), deaf.poll()) == (1, 7, None)
            os.kill(deaf.pid, signal.SIGKILL)
