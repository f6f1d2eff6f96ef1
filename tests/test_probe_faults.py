"""Agents with one fault each, and one with none: is what the probe finds what is wrong, as large as it is, and no more?

The agents are tests/faulty_agent.py's. One trial each; the agent without a fault has one of every scenario here, and as
many as wanted by hand (no finding is to be left in 200):

    python tests/test_probe_faults.py 200 --json probe-perfect.json
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from faulty_agent import PERFECT, Agent, Probing, Trial, Truth, Wanted, hurried, perfect, serving, trials, voice
from test_probe_truth import stop_errors_ms

from agent.leftovers import Leftovers
from agent.probe.command import machine, shown
from agent.probe.dialect import claims
from agent.probe.judging import Judges
from agent.probe.recording import Recording
from agent.probe.scenario import Scenario
from engine.machine import check_writable, write_json
from engine.options import positive

SHARE = 0.2
"""By which a size may be off."""
LENGTH_MS = 1000 * voice(0)[1].size / 48_000
"""Of the first reply."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What one fault is to look like."""

    agent: str
    scenario: str
    finding: str = ""
    """None where a fault shows in what was expected only."""
    size: Callable[[Trial], float] | None = None
    """None where it is the time for which was waited."""
    also: frozenset[str] = frozenset()
    """Findings that are as true: the same fault as the listener's buffer has it."""
    broken: frozenset[str] = frozenset()
    """Expectations of the scenario that do not hold."""

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.agent, self.scenario)


def fault(
    agent: str,
    scenario: str,
    finding: str = "",
    size: float | Callable[[Trial], float] | None = None,
    also: str = "",
    broken: str = "",
) -> Fault:
    known = size if size is None or callable(size) else lambda trial: float(size)
    names = (frozenset(filter(None, each.split(", "))) for each in (also, broken))
    return Fault(agent, scenario, finding, known, *names)


def half_of_the_packets(trial: Trial) -> float:
    return len(trial.recording.packets) / 2


def what_was_not_heard(trial: Trial) -> float:
    """Of the first reply, by what the agent sent of it, in ms."""
    onset = min(at for at in trial.truth.onsets if at > trial.recording.said[1].begins_at)
    return LENGTH_MS - 20 * sum(one.reply == 0 and one.at < onset for one in trial.truth.sent)


def until_it_hung_up(trial: Trial) -> float:
    assert trial.truth.ended_at is not None
    return trial.truth.ended_at - trial.recording.dialled_at


FAULTS = (
    fault("pads_ms=60,pads=3", "question", "zero_padding", 180),
    fault("pads_ms=100,pads=2", "question", "zero_padding", 200),
    fault("packet_ms=40", "question", "long_packets", 40),
    # Of two packets with one timestamp a listener's buffer drops one, and guesses for as long: the gaps are real.
    fault("twins=True", "question", "wrong_timestamps", half_of_the_packets, also="gap"),
    fault("talks_on_ms=300", "interruption", "late_stop", 300),
    fault("stale_ms=400", "interruption", "stale_audio", 400),
    fault("drift=0.005", "question", "clock_drift", -5000),
    fault("drift=-0.005", "question", "clock_drift", 5000),
    fault("cuts_ms=180", "question", "cut_start", 180),
    # How much of a gap is heard is up to the listener's buffer.
    fault("gap_ms=200,gaps=2", "question", "gap"),
    # All that follows a stall comes later by that, so the buffer has to grow, too.
    fault("gap_ms=200,gaps=2,gap_jumps=False", "question", "gap", also="irregular_pacing"),
    # The first of five waits 80 ms for the last. Until the buffer has grown, it runs dry.
    fault("burst=5", "question", "irregular_pacing", 80, also="gap"),
    fault("claims_all=True", "interruption", "overclaimed_heard", what_was_not_heard),
    fault("answers=False", "question", "no_answer", broken="answers question"),
    fault("hangs_up_ms=1500", "question", "lost_call", until_it_hung_up),
    fault("stops=False", "interruption", broken="stops interruption, answers interruption"),
    fault("resumes=False", "cough", broken="resumes cough"),
    fault("skips_ms=-60000", "cough", broken="resumes cough"),
    # What it leaves out it counts as heard: its own claim is too much by that.
    fault("skips_ms=1000", "cough", also="overclaimed_heard", broken="resumes cough"),
    fault("turn_end_ms=250", "hesitation", broken="waits begin"),
    fault("threshold=300", "echo", broken="continues echo"),
    fault("threshold=300", "side_talk", broken="resumes aside"),
    # Who hears everything falls silent for what is behind the user, which has an RMS of 200 to 250.
    fault("threshold=100", "background_noise", broken="continues more_babble"),
    fault("threshold=100", "background_voice", broken="continues other"),
)
CASES = pytest.mark.parametrize("case", FAULTS, ids=lambda case: f"{case.agent}@{case.scenario}")
REALTIME = Wanted(PERFECT, "interruption", protocol="openai")


@pytest.fixture(scope="module")
def told() -> dict[Wanted, Trial]:
    return trials((*(case.wanted for case in FAULTS), REALTIME))


@CASES
def test_a_fault_is_found_as_large_as_it_is(told: dict[Wanted, Trial], case: Fault) -> None:
    trial = told[case.wanted]
    if case.finding:
        assert case.finding in trial.findings, trial.says
    if case.size is not None:
        assert trial.findings[case.finding] == pytest.approx(case.size(trial), rel=SHARE), trial.says
    assert trial.broken == case.broken, trial.says


@CASES
def test_nothing_else_is_found(told: dict[Wanted, Trial], case: Fault) -> None:
    trial = told[case.wanted]
    assert trial.findings.keys() - {case.finding} <= case.also, trial.says


@pytest.mark.parametrize("name", [wanted.scenario for wanted in perfect()])
def test_an_agent_without_a_fault_passes(name: str) -> None:
    trial = trials(perfect())[Wanted(PERFECT, name)]
    assert not trial.findings and not trial.broken, trial.says


def test_an_agent_without_a_fault_passes_in_the_other_protocol(told: dict[Wanted, Trial]) -> None:
    trial = told[REALTIME]
    assert not trial.findings and not trial.broken, trial.says
    kinds = [claim.kind for claim in claims(trial.recording.told)]
    assert kinds[:2] == ["started", "stopped"], "it speaks of its own speech, too"


# ---- the agents are what they say -----------------------------------------------------------------------------------


def test_every_case_is_an_agent_of_its_own() -> None:
    assert len({case.wanted for case in FAULTS}) == len(FAULTS)
    used = {part.partition("=")[0] for case in FAULTS for part in case.agent.split(",")}
    assert used <= set(Agent.__dataclass_fields__)


def test_what_an_agent_writes_down_is_its_fault(told: dict[Wanted, Trial]) -> None:
    """The faults are there at all, by the agent's own notes: no finding can be right by chance."""
    by_agent = {wanted.agent: trial.truth for wanted, trial in told.items()}

    def steps(agent: str) -> set[int]:
        stamps = [one.timestamp for one in by_agent[agent].sent]
        return {int(step) for step in np.diff(stamps) % 2**32}

    def pauses(agent: str) -> int:
        at = np.diff([one.at for one in by_agent[agent].sent])
        return int(np.count_nonzero(at > 0.15))

    assert steps("packet_ms=40") == {1920}
    assert steps("twins=True") == {0, 1920}
    assert steps("gap_ms=200,gaps=2") == {960, 11 * 960} and pauses("gap_ms=200,gaps=2") == 2
    assert steps("gap_ms=200,gaps=2,gap_jumps=False") == {960} and pauses("gap_ms=200,gaps=2,gap_jumps=False") == 2
    fast, slow = (by_agent[f"drift={drift}"].sent for drift in ("0.005", "-0.005"))
    rates = [(len(sent) - 1) * 0.02 / (sent[-1].at - sent[0].at) for sent in (fast, slow)]
    assert rates == pytest.approx([1.005, 0.995], abs=0.001)


@dataclass(frozen=True, slots=True)
class Told:
    """What is left of a trial: a recording of each would be more than is gone through in a packet's time."""

    faulty: bool
    calm: bool
    errors_ms: tuple[float, ...]
    says: str

    @classmethod
    def of(cls, trial: Trial) -> Told:
        errors = tuple(abs(error) for _, error in stop_errors_ms(trial))
        return cls(bool(trial.findings or trial.broken), trial.calm, errors, trial.says)


class Counting(Probing):
    """Also counts the calls that were needed, and those that were made; what they leave is freed after each."""

    needed = made = 0
    ended: Callable[[], None]

    async def _called(
        self, wanted: Wanted, scenario: Scenario, lengths: dict[str, float]
    ) -> tuple[Recording, Truth, bool]:
        self.needed += 1
        return await super()._called(wanted, scenario, lengths)

    async def _turn(self) -> None:
        self.made += 1
        self.ended()
        await super()._turn()


async def called(wanted: Iterable[Wanted], parallel: int, base: str, judges: Judges) -> tuple[list[Told], int]:
    """All trials, and how many calls were made again because the machine had disturbed them."""
    probing, leftovers = Counting(base, judges, parallel), Leftovers()
    probing.ended = leftovers.free_soon

    async def told(one: Wanted) -> Told:
        return Told.of(await probing.tried(one))

    found = await asyncio.gather(*map(told, wanted))
    leftovers.close()
    return found, probing.made - probing.needed


def figures(told: Sequence[Told]) -> dict[str, Any]:
    """As JSON data."""
    errors = [error for trial in told for error in trial.errors_ms]
    return {
        "trials": len(told),
        "found": sum(trial.faulty for trial in told),
        "disturbed": sum(not trial.calm for trial in told),
        "stops": len(errors),
        "stop_error_ms": quantiles(errors) if errors else None,
    }


def quantiles(values: Sequence[float]) -> dict[str, float]:
    return {name: round(float(np.quantile(values, q)), 2) for name, q in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))}


def main(argv: Sequence[str] | None = None) -> int:
    """So many trials of the agent without a fault, scenario by scenario in turn: what was found, how long it took, how
    far stops were off, and how often the machine did not leave calls alone. 0: nothing was found."""
    words = list(sys.argv[1:] if argv is None else argv)
    p = argparse.ArgumentParser(description="Probes an agent without a fault.", allow_abbrev=False)
    p.add_argument("trials", type=positive, metavar="N", help="so many")
    p.add_argument("parallel", type=positive, nargs="?", default=8, metavar="K", help="at once (default: %(default)s)")
    p.add_argument("--json", metavar="OUT", help="write the figures there; - is standard output")
    args = p.parse_args(words)
    if args.json:
        check_writable(args.json)
    made_on = {"command": " ".join(("python tests/test_probe_faults.py", *map(shown, words))), "machine": machine()}
    rounds = -(-args.trials // len(perfect()))
    wanted = tuple(one for number in range(rounds) for one in perfect(number))[: args.trials]
    judges, began_at = Judges(1), time.monotonic()
    try:
        with hurried(), serving() as base:
            told, again = asyncio.run(called(wanted, args.parallel, base, judges))
    finally:
        judges.close()
    seconds, found = round(time.monotonic() - began_at, 1), figures(told)
    for trial in told:
        if trial.faulty:
            print(trial.says, file=sys.stderr)
    says = f"{len(told)} trials in {seconds / 60:.1f} minutes, {found['found']} with a finding or an expectation that "
    says += f"did not hold, {found['disturbed']} disturbed, {again} calls made again; {found['stops']} stops, off by "
    print(f"{says}{found['stop_error_ms']} ms", file=sys.stderr)
    if args.json:
        write_json(args.json, {**made_on, "seconds": seconds, "parallel": args.parallel, "made_again": again, **found})
    return int(bool(found["found"]))


if __name__ == "__main__":
    sys.exit(main())
