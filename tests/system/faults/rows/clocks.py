"""Rows: the wall clock of the broker and of a kernel is set, and the broker's clocks leap."""

from __future__ import annotations

import mmap
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_gpushare.broker.transport.clock import LONGEST_SECONDS
from jupyter_gpushare.wire.client import Client
from jupyter_gpushare.wire.messages import Account, Accounts

from ..matrix import row
from ..scene import Nursery, Scene, trainer

HOUR_SECONDS, DAY_SECONDS = 3600, 86_400
STEPS = (-HOUR_SECONDS, DAY_SECONDS, -7 * DAY_SECONDS, 0)

LEAPS, LEAP_SECONDS = 2, 10 * HOUR_SECONDS

# A program that asks for the time of day, or for the monotonic clock, is told one that is off by
# the value in $SET_CLOCK, a file.
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long seconds_off(int monotonic) {
  static volatile long* told;
  if (told == NULL) {
    const int file = open(getenv("SET_CLOCK"), O_RDONLY | O_CLOEXEC);
    told = mmap(NULL, 2 * sizeof *told, PROT_READ, MAP_SHARED, file, 0);
    close(file);
  }
  return told[monotonic];
}

int clock_gettime(clockid_t clock, struct timespec* time) {
  static int (*real)(clockid_t, struct timespec*);
  if (real == NULL) real = dlsym(RTLD_NEXT, "clock_gettime");
  const int failed = real(clock, time);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) time->tv_sec += seconds_off(0);
  if (clock == CLOCK_MONOTONIC) time->tv_sec += seconds_off(1);
  return failed;
}

int gettimeofday(struct timeval* time, void* zone) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  time->tv_sec = now.tv_sec;
  time->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t* result) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (result != NULL) *result = now.tv_sec;
  return now.tv_sec;
}
"""


class Clock:
    """Controls the clocks of programs with the environment in which it was made."""

    def __init__(self, file: Path) -> None:
        with open(file, "w+b") as told:
            told.truncate(16)
            self._told = memoryview(mmap.mmap(told.fileno(), 16)).cast("q")

    def set(self, seconds_off: int) -> None:
        """Set the wall clock."""
        self._told[0] = seconds_off

    def leap(self, seconds: int) -> None:
        """Let both clocks leap."""
        self._told[0] += seconds
        self._told[1] += seconds


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    shim = tmp_path / "clock.so"
    compile_it = [os.environ.get("CC", "cc"), "-shared", "-fPIC", "-O1", "-xc", "-"]
    subprocess.run([*compile_it, "-o", str(shim), "-ldl"], input=SHIM, text=True, check=True)
    clock = Clock(tmp_path / "off")
    monkeypatch.setenv("LD_PRELOAD", str(shim))
    monkeypatch.setenv("SET_CLOCK", str(tmp_path / "off"))
    yield clock
    clock.set(0)


@pytest.fixture
def late_nursery(clock: Clock) -> Iterator[Nursery]:
    """A nursery whose children use the controlled clock."""
    nursery = Nursery()
    yield nursery
    nursery.close()


@row(
    "the clock is set back by an hour, forward by a day, back by a week, and right again",
    is_quick=False,
)
def set_clock(scene: Scene, clock: Clock, late_nursery: Nursery) -> float:
    """The wall clocks of the broker and of one kernel are set. Each user is charged for exactly
    their use."""
    victim = scene.party(trainer("victim"), late_nursery)
    assert scene.is_right(victim)
    began, used_before = time.monotonic(), device_seconds(scene)
    for seconds_off in STEPS:
        clock.set(seconds_off)
        since = scene.await_turn()
        assert scene.is_right(victim)
        look = scene.look()
        assert abs(look.broker.started - time.time()) < HOUR_SECONDS
    used = device_seconds(scene) - used_before
    assert 0 < used <= time.monotonic() - began + 1.0
    return since


@row("all clocks of the broker leap by ten hours, twice", is_quick=False)
def clocks_leap(scene: Scene, clock: Clock) -> float:
    """Clocks leap when a virtual machine is moved. No user is charged for hours of use or
    waiting."""
    victim = scene.party(trainer("victim"))
    assert scene.is_right(victim)
    began, used_before, waited_before = time.monotonic(), device_seconds(scene), waited(scene)
    for _ in range(LEAPS):
        clock.leap(LEAP_SECONDS)
        since = scene.await_turn()
        assert scene.is_right(victim)
    most = time.monotonic() - began + LEAPS * LONGEST_SECONDS + 1.0
    assert 0 < device_seconds(scene) - used_before <= most
    assert waited(scene) - waited_before <= len(scene.look().devices[0].sessions) * most
    return since


def waited(scene: Scene) -> float:
    """Return the waiting seconds of all notebooks."""
    return sum(view.waited_seconds for view in scene.look().devices[0].sessions)


def device_seconds(scene: Scene) -> float:
    """Return the device seconds of all users, ever."""
    with Client.connect(scene.settings, "tests") as client:
        answer = client.ask(Account(0.0, time.time() + 8 * DAY_SECONDS))
        assert isinstance(answer, Accounts)
        assert all(row.persistent_byte_seconds >= 0 for row in answer.rows)
        return sum(row.device_seconds for row in answer.rows)
