"""Fixtures that several files share: the embedded voice, speaking, loaded once a session."""

import faulthandler
import os
from collections.abc import Iterator
from math import inf

import pytest

# One thread an operation, as the engine runs: two that wait for each other on a busy machine take ten times as long.
os.environ["OMP_NUM_THREADS"] = "1"

from engine.messages import RuntimeConfig
from engine.runtime import Runtime

ENDS_WITHIN = 60
"""Seconds from the last test to the end of the process."""


def pytest_unconfigure() -> None:
    """A thread that a test left behind keeps a process alive for ever: then all stacks are shown, and the run fails."""
    faulthandler.dump_traceback_later(ENDS_WITHIN, exit=True)


@pytest.fixture(scope="session")
def runtime() -> Iterator[Runtime]:
    """The embedded voice in its own process, as users run it, but nobody is refused on a busy machine, and its steps
    are recorded."""
    with Runtime.start(RuntimeConfig(device="cpu", max_wait=inf, record=True)) as started:
        yield started
