"""Makes of one recording what is reported of it, in processes of their own: calls that are going on are not to notice.

It does not know how calls are made, or what is made of many outcomes.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from agent.probe.dialect import claims
from agent.probe.ear import Ear, level_db
from agent.probe.outcome import Checked, Found, Mark, Outcome, Picture, peaks
from agent.probe.recording import RATE, Heard, Pcm, Recording
from agent.probe.scenario import Expectation, Scenario

if TYPE_CHECKING:
    from agent.probe.judge import Verdict
    from agent.probe.measure import Measures, Pacing

NICE = 15
FRAME = RATE // 50
"""Samples of what an Ear takes at once."""
LISTENED_AFTER = 0.5
"""Seconds after the call's end: what its last packets hold comes out of the buffer until then."""

LIMIT_SECONDS = 120
"""What one recording may take: a call of ten minutes takes a tenth of it."""

T = TypeVar("T")


class JudgingError(Exception):
    """A process that judges has died; the text says what to do."""


class Judges:
    """A few niced processes. To be closed."""

    def __init__(self, count: int | None = None) -> None:
        """count: of processes; None leaves one core to the calls."""
        count = max(1, (os.cpu_count() or 1) - 1) if count is None else count
        self._pool = ProcessPoolExecutor(count, mp_context=get_context("spawn"), initializer=_behave)

    async def run(self, work: Callable[..., T], *what: Any) -> T:
        """The function's result. Raises JudgingError, after LIMIT_SECONDS TimeoutError, and what the function does."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, _limited, LIMIT_SECONDS, work, *what)
        except BrokenProcessPool:
            raise JudgingError("a process that judges what was heard has died: is there memory left?") from None

    def close(self) -> None:
        """Ends the processes; what waits for them is given up."""
        self._pool.shutdown(cancel_futures=True)


def _behave() -> None:
    """Behind the calls, and the end is left to the parent."""
    os.nice(NICE)
    for number in (signal.SIGINT, signal.SIGTERM):  # these reach whole groups
        signal.signal(number, signal.SIG_IGN)


def _limited(seconds: float, work: Callable[..., T], *what: Any) -> T:
    """In a process that judges: what a stranger has sent is not to keep it for ever. Raises TimeoutError."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"it took longer than {seconds:g} s")

    signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return work(*what)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


# ---- one recording ------------------------------------------------------------------------------------------------


def heard_of(recording: Recording) -> Heard:
    """What a listener heard, from dialling to a little after the end."""
    from agent.probe.neteq import listen

    return listen(recording.packets, recording.dialled_at, recording.ended_at + LISTENED_AFTER)


def reply_seconds(recording: Recording) -> float | None:
    """Of a rehearsal: from the beginning of the agent's last reply, as the prompter takes it, to its end; None where it
    said nothing after the user's last sound."""
    since = recording.said[-1].ends_at if recording.said else recording.connected_at
    if since is None:
        return None
    ear, began_at = Ear(), None
    for at, level in levels(heard_of(recording)):
        if at >= since:
            ear.push(level, at)
            began_at = began_at or ear.began_at
    return None if began_at is None or ear.last_at is None else ear.last_at - began_at


def levels(heard: Heard) -> list[tuple[float, float]]:
    """Of each 20 ms, when the last sample came out, and the level in dB."""
    frames = heard.samples[: heard.samples.size // FRAME * FRAME].reshape(-1, FRAME)
    return [(heard.at((n + 1) * FRAME), level_db(frame)) for n, frame in enumerate(frames)]


def audible_at(recording: Recording) -> list[tuple[float, float]]:
    """Stretches in which the agent was audible, each from its beginning to its end."""
    ear, found = Ear(), list[tuple[float, float]]()
    for at, level in levels(heard_of(recording)):
        ear.push(level, at)
        if ear.began_at is not None and ear.last_at is not None:
            if not found or found[-1][0] != ear.began_at:
                found.append((ear.began_at, ear.last_at))
            found[-1] = (ear.began_at, ear.last_at)
    return found


# ---- an outcome ---------------------------------------------------------------------------------------------------


def unpacked(packed: bytes, scenario: Scenario, reference: Pcm | None) -> Outcome:
    """A pickled Recording as it is reported."""
    return judged(pickle.loads(packed), scenario, reference)


def judged(recording: Recording, scenario: Scenario, reference: Pcm | None) -> Outcome:
    """The recording as it is reported."""
    from agent.probe.judge import judge
    from agent.probe.measure import measure

    heard = heard_of(recording)
    measures = measure(recording, heard, scenario)
    verdict = judge(recording, heard, measures, scenario, reference, claims(recording.told))
    base = heard.begins_at
    return Outcome(
        recording.scenario,
        recording.trial,
        recording.seed,
        recording.protocol,
        recording.ended_at - recording.dialled_at,
        figures=figures(measures, verdict, scenario),
        takeovers=takeovers(measures, scenario),
        checks=tuple(Checked(expects(one.expectation), one.held, one.text, one.assumed) for one in verdict.held),
        findings=tuple(
            Found(one.name, one.text, None if one.at is None else one.at - base, one.network, one.size, one.unit)
            for one in verdict.findings
        ),
        missed=tuple(recording.missed),
        failure=recording.failure,
        picture=picture(recording, heard, measures, scenario),
    )


def figures(measures: Measures, verdict: Verdict, scenario: Scenario) -> dict[str, tuple[float, ...]]:
    """By name, each as often as it was measured: stops and answers only of steps that are to be stopped for, or
    answered."""
    named = {(one.kind, one.of) for one in scenario.expect}
    found = dict[str, list[float | None]]()
    for step in measures.steps:
        if ("stops", step.step) in named:
            found.setdefault("stop_ms", []).append(step.stop_ms)
            found.setdefault("after_stop_ms", []).append(step.after_stop_ms if step.stop_ms is not None else None)
        if ("answers", step.step) in named:
            found.setdefault("response_ms", []).append(step.response_ms)
    for held in verdict.held:
        if name := GOT.get(held.expectation.kind):
            found.setdefault(name, []).append(held.got_ms)
    found |= {name: [getattr(measures, name)] for name in OF_A_CALL}
    if measures.pacing.packets:
        found |= {name: [value] for name, value in of_its_packets(measures.pacing).items()}
    for kind, name in (("concealed", "concealed_ms"), ("zeros", "padded_ms")):
        found[name] = [gap.ms for gap in measures.gaps if gap.kind == kind and not gap.lost]
    found["claimed_over_ms"] = [*verdict.claimed_over_ms]
    known = {name: tuple(value for value in values if value is not None) for name, values in found.items()}
    return {name: values for name, values in known.items() if values}


def of_its_packets(pacing: Pacing) -> dict[str, float | None]:
    """A call's figures of when its packets came and of what they say of it."""
    return {
        "packet_ms": pacing.packet_ms,
        "timestamp_ms": pacing.timestamp_ms,
        "between_p99_ms": pacing.between_p99_ms,
        "between_max_ms": pacing.between_max_ms,
        "spread_ms": pacing.spread_ms,
        "rate_percent": None if pacing.rate is None else 100 * pacing.rate,
        "drift_ppm": None if pacing.drift is None else pacing.drift.ppm,
        "wrongly_stamped_packets": float(pacing.wrong_timestamps),
        "lost_packets": float(pacing.lost),
        "reordered_packets": float(pacing.reordered),
    }


def takeovers(measures: Measures, scenario: Scenario) -> dict[str, bool]:
    """By step, whether the agent took the turn after it: of steps that are to be answered, or waited for."""
    turns = {one.of for one in scenario.expect if one.kind in ("answers", "waits")}
    return {step.step: step.takeover for step in measures.steps if step.step in turns}


OF_A_CALL = ("answered_ms", "connected_ms", "first_packet_ms", "first_audio_ms", "buffer_ms")
GOT = {"resumes": "resumed_ms", "continues": "silent_ms", "waits": "audible_ms"}
"""What within_ms is compared with, by the kind of expectation."""


def expects(one: Expectation) -> str:
    """In words, the same in every trial."""
    step, within = one.of.replace("_", " "), f"within {one.within_ms:.0f} ms"
    match one.kind:
        case "answers":
            return f"answers {step} {within}" if step else f"speaks {within} of the call's being up"
        case "stops":
            return f"falls silent for {step} {within}"
        case "continues":
            return f"goes on through {step}, silent for {one.within_ms:.0f} ms at most"
        case "resumes":
            return f"goes on after {step} {within}"
        case "waits":
            return f"waits from {step} to the next sound, audible for {one.within_ms:.0f} ms at most"
    return "nothing is wrong" if one.absent == "any" else f"no {one.absent.replace('_', ' ')}"


def picture(recording: Recording, heard: Heard, measures: Measures, scenario: Scenario) -> Picture:
    """User and agent on one time axis, which begins when the call was dialled."""
    base = heard.begins_at
    user = np.zeros(heard.samples.size, np.int16)
    for said in recording.said:
        first = round((said.begins_at - base) * RATE)
        part = said.samples[max(0, -first) :][: max(0, user.size - max(0, first))]
        user[max(0, first) :][: part.size] = np.maximum(np.abs(user[max(0, first) :][: part.size]), np.abs(part))
    shown = [Mark(kind, at - base, says) for kind, at, says in marks(recording, measures, scenario)]
    gaps = tuple((gap.at - base, gap.at - base + gap.ms / 1000) for gap in measures.gaps)
    return Picture(peaks(user, RATE), peaks(heard.samples, RATE), tuple(shown), gaps)


def marks(recording: Recording, measures: Measures, scenario: Scenario) -> Iterator[tuple[str, float, str]]:
    """kind, instant and words of each."""
    stopping = {one.of for one in scenario.expect if one.kind == "stops"}
    for said in recording.said:
        yield "onset", said.begins_at, said.step.replace("_", " ")
        yield "end", said.ends_at, ""
    for step in measures.steps:
        if step.stopped_at is not None and step.stop_ms is not None and step.step in stopping:
            yield "stop", step.stopped_at, f"{step.stop_ms:+.0f} ms"
        if step.response_at is not None and step.response_ms is not None:
            yield "response", step.response_at, f"{step.response_ms:+.0f} ms"
    for claim in claims(recording.told):
        if claim.kind != "heard":
            yield "claim", claim.at, claim.kind
