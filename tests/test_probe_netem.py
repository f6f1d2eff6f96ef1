"""The probe in a network namespace, with trouble in the kernel between it and the agent: does it see delay and loss?

As agent/probe/network.py says that it is done. Needs root, `ip`, `tc` and the kernel's sch_netem, which is not
everywhere: what is missing is said, and the test skipped, with CI set, too (but for a missing `ip`). The agent is
tests/faulty_agent.py's without a fault.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from faulty_agent import PERFECT
from test_netns import CLIENT, SERVER, ip, lacking, namespace

ROOT = Path(__file__).parent.parent
PORT = 8080
DELAY_MS = 40
"""One way; on loopback an answer takes some 10 ms."""
LOSS = 5
"""Of a hundred of the agent's packets: that none of the 200 of a reply is lost happens once in 28,000 calls."""
WITHIN = 90.0
"""Seconds after which a probe has failed."""


@contextmanager
def network() -> Iterator[tuple[str, str]]:
    """Two namespaces, the agent's and the probe's, and a cable between them: in each a device of its name."""
    with ExitStack() as stack:
        home, away = [stack.enter_context(namespace(f"brt{os.getpid()}{end}")) for end in "cd"]
        ip("-n", home, "link", "add", home, "type", "veth", "peer", "name", away, "netns", away)
        for space, address in ((home, SERVER), (away, CLIENT)):
            ip("-n", space, "addr", "add", f"{address}/24", "dev", space)
            for device in ("lo", space):
                ip("-n", space, "link", "set", device, "up")
        yield home, away


def netem(space: str, *trouble: str) -> None:
    """From now on what leaves this namespace has that trouble."""
    command = ["tc", "qdisc", "add", "dev", space, "root", "netem", *trouble]
    subprocess.run(["ip", "netns", "exec", space, *command], check=True, capture_output=True, text=True)


@pytest.fixture
def spaces() -> Iterator[tuple[str, str]]:
    """The agent's and the probe's, with trouble between them."""
    if reason := lacking():
        pytest.skip(reason)  # justified: not everybody is root
    if shutil.which("tc") is None:
        pytest.skip("netem needs the command tc: install iproute2")  # justified: it is the very thing that is tested
    with ExitStack() as stack:
        try:
            home, away = stack.enter_context(network())
            netem(home, "delay", f"{DELAY_MS}ms", "loss", f"{LOSS}%")
            netem(away, "delay", f"{DELAY_MS}ms")
        except subprocess.CalledProcessError as error:
            # justified: a module of the kernel can be installed by nobody here
            pytest.skip(f"this kernel has no veth or no netem: {error.stderr.strip()}")
        yield home, away


@contextmanager
def serving(space: str) -> Iterator[str]:
    """The agent's address, while it is served there."""
    command = ["ip", "netns", "exec", space, sys.executable, str(Path(__file__).with_name("faulty_agent.py"))]
    command += [SERVER, str(PORT)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == f"{PORT}\n"
            yield f"http://{SERVER}:{PORT}/{PERFECT}/netem/offer"
        finally:
            process.kill()


def probed(space: str, url: str) -> dict[str, Any]:
    """What the command says of one question, asked from there."""
    options = ["--scenario", "question", "--trials", "1", "--quiet", "--json", "-"]
    command = ["ip", "netns", "exec", space, sys.executable, "-m", "agent", "probe", url, *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=WITHIN, check=False)
    assert done.returncode in (0, 1), done.stderr
    (trial,) = json.loads(done.stdout)["trials"]
    return dict(trial)


def test_delay_and_loss_of_the_kernel_are_in_the_figures(spaces: tuple[str, str]) -> None:
    home, away = spaces
    with serving(home) as url:
        trial = probed(away, url)
    assert "failure" not in trial and "missed" not in trial, trial
    assert trial["figures"]["answered_ms"][0] >= 2 * DELAY_MS
    blamed = [found for found in trial.get("network", []) if found["name"] == "gap"]
    assert any("the network lost" in found["says"] for found in blamed), trial
