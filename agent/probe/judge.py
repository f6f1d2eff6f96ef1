"""What was wrong with the agent's audio in one trial, and whether what was expected of it held.

It does not know how calls are made. What a server says of its own speech is used against it only: where it claims that
something was so which was heard to be otherwise. With one exception: sound after a stop is no longer the old reply's
once the server says that it starts another, for without a reference no waveform tells the two apart. A reference finds
it all the same, and `stops` counts whatever is audible under the user's sound, old or new.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Protocol

import numpy as np

from agent.probe.audible import (
    ALIKE,
    AUDIBLE,
    BLOCK,
    BLOCK_SECONDS,
    JOIN_SECONDS,
    Match,
    Span,
    audible,
    match,
    missing_samples,
    same_for,
    spans,
)
from agent.probe.measure import EARLY_SECONDS, STILL_SECONDS, Measures, StepMeasures
from agent.probe.recording import RATE, Heard, Pcm, Recording
from agent.probe.scenario import QUIET_SECONDS, Expectation, Scenario

LATE_MS = 60.0
"""Three packets: what is on its way when a message leaves, and how much one may overtake the other."""
CUT_MS = 15.0
DRIFT_PPM = 500.0
SPREAD_MS = 40.0
"""What libwebrtc's buffer holds anyway (32 to 35 ms, measured at its output on a steady network), and a little."""
RATE_OFF = 0.05
OVERCLAIMED_MS = 250.0
"""A server counts the silence at both ends of what it says."""
WRONG_SHARE = 0.01
CLAIM_SECONDS = 0.15
"""A message comes so much before or after the sound that it speaks of."""
REACTION_SECONDS = 1.0
DUE_SECONDS = 0.1
"""Nobody knows earlier after a user's end that it was one."""
MATCH_SAMPLES = RATE
"""The first second of a reply is looked for in the reference; where it is not there whole, its first 0.4 s."""
SHORT_MATCH_SAMPLES = round(0.4 * RATE)
MOST_CUT_SECONDS = 2.0
SAME_PLACE_SECONDS = 0.5
"""A reply that goes on does so that near to where it stood still: a fade, and a word that is said once more."""
STALE_PLACE_SECONDS = 0.5
"""What was left of a reply begins that near to where it was stopped."""
DRIFT_GAP_SHARE = 1.5
"""Gaps of up to so much of what drifted away are the drift's."""


class Claim(Protocol):
    """What the server says of its own speech. kind: started, stopped, heard."""

    @property
    def at(self) -> float: ...
    @property
    def kind(self) -> str: ...
    @property
    def heard_ms(self) -> float | None: ...
    @property
    def text(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was wrong. at: an instant of the recording, where it was; step: around which step, where one has
    to do with it; network: it was not the server's doing, as far as can be seen from here."""

    name: str
    size: float
    unit: str
    at: float | None
    step: str
    text: str
    network: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    """Whether an expectation held; None where that could not be judged, and the text says why. got_ms is what its
    within_ms is compared with."""

    expectation: Expectation
    held: bool | None
    got_ms: float | None
    text: str
    assumed: bool = False
    """It holds if the agent went on with the same reply, which could not be checked."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Of one trial."""

    findings: tuple[Finding, ...]
    held: tuple[Held, ...]
    claimed_over_ms: tuple[float, ...]
    """Of each time that the server says how much of its speech was heard: how much more that is than what came out."""


def judge(
    recording: Recording,
    heard: Heard,
    measures: Measures,
    scenario: Scenario,
    reference: Pcm | None = None,
    claims: Sequence[Claim] = (),
) -> Verdict:
    """reference: what the agent is known to answer first, from its first sample on, int16 [samples] at 48 kHz; claims:
    in the order in which they came."""
    trial = Trial(recording, heard, measures, scenario, reference, claims)
    findings = tuple(trial.findings())
    held = tuple(trial.held(each, findings) for each in scenario.expect)
    return Verdict(findings, held, tuple(said - came for _, said, came, _ in trial.claimed()))


class Trial:
    """All that is known of one."""

    def __init__(
        self,
        recording: Recording,
        heard: Heard,
        measures: Measures,
        scenario: Scenario,
        reference: Pcm | None,
        claims: Sequence[Claim],
    ) -> None:
        self.recording, self.heard, self.measures, self.scenario = recording, heard, measures, scenario
        self.reference, self.claims = reference, claims
        self.voice = measures.voice
        self._flags, self._at = audible(self.voice.samples), self.voice.block_at
        self.sent = spans(self._flags, self._at)
        """Audible stretches by when their packets came."""
        self.reply_at, self.reply = self._find_reply()

    # ---- findings -----------------------------------------------------------------------------------------------

    def findings(self) -> Iterator[Finding]:
        yield from self._lost_call()
        yield from self._no_answer()
        yield from self._padding()
        yield from self._gaps()
        yield from self._packets()
        yield from self._timing()
        yield from self._stops()
        yield from self._stale()
        yield from self._cut()
        yield from self._overclaimed()

    def _lost_call(self) -> Iterator[Finding]:
        recording = self.recording
        if recording.failure is not None:
            seconds = recording.ended_at - recording.dialled_at
            text = f"the call was lost after {seconds:.1f} s: {recording.failure}"
            yield Finding("lost_call", seconds, "s", recording.ended_at, "", text)

    def _no_answer(self) -> Iterator[Finding]:
        if self.recording.failure is not None:
            return
        for expected in self.scenario.expect:
            if expected.kind != "answers" or self._why_not(expected):
                continue
            end, first = self._answered(expected)
            if first is None and not self._went_on(expected.of):
                waited = 1000 * (self._until(expected.of) - end)
                text = f"nothing was audible in {waited:.0f} ms after {expected.of or 'the call was up'}"
                yield Finding("no_answer", waited, "ms", end, expected.of, text)

    def _padding(self) -> Iterator[Finding]:
        found = [gap for gap in self.measures.gaps if gap.kind == "zeros"]
        if found:
            total = sum(gap.ms for gap in found)
            text = f"{total:.0f} ms of digital silence in the midst of speech, {len(found)} times"
            yield Finding("zero_padding", total, "ms", found[0].at, "", text)

    def _gaps(self) -> Iterator[Finding]:
        found = [gap for gap in self.measures.gaps if gap.kind == "concealed"]
        late = [gap for gap in found if not gap.lost]
        if late and not self._drifted_away(sum(gap.ms for gap in late)):
            total = sum(gap.ms for gap in late)
            text = f"{total:.0f} ms were missing in the midst of speech, {len(late)} times: packets came too late"
            yield Finding("gap", total, "ms", late[0].at, "", text, network=self.recording.delayed)
        lost = [gap for gap in found if gap.lost]
        if lost:
            total, packets = sum(gap.ms for gap in lost), sum(gap.lost for gap in lost)
            text = f"{total:.0f} ms were missing in the midst of speech: the network lost {packets} packets there"
            yield Finding("gap", total, "ms", lost[0].at, "", text, network=True)

    def _drifted_away(self, ms: float) -> bool:
        drift, packets = self.measures.pacing.drift, self.recording.packets
        if drift is None or not _certain(drift.least, drift.most):
            return False
        return ms <= DRIFT_GAP_SHARE * 1e-3 * abs(drift.ppm) * (packets[-1].at - packets[0].at) + 30.0

    def _packets(self) -> Iterator[Finding]:
        pacing, begun = self.measures.pacing, self.recording.packets[0].at if self.recording.packets else None
        if pacing.long_packets:
            text = f"{pacing.long_packets} of {pacing.packets} packets are longer than 20 ms"
            yield Finding("long_packets", pacing.longest_ms, "ms", begun, "", text)
        if pacing.wrong_timestamps > max(1, WRONG_SHARE * pacing.packets):
            text = f"{pacing.wrong_timestamps} of {pacing.packets} timestamps are not the one before and its length"
            yield Finding("wrong_timestamps", float(pacing.wrong_timestamps), "packets", begun, "", text)

    def _timing(self) -> Iterator[Finding]:
        pacing, begun = self.measures.pacing, self.recording.packets[0].at if self.recording.packets else None
        drift = pacing.drift
        if drift and _certain(drift.least, drift.most):
            way = "slower" if drift.ppm > 0 else "faster"
            text = f"packets come {abs(drift.ppm):.0f} ppm {way} than their timestamps say, "
            text += f"between {abs(drift.least):.0f} and {abs(drift.most):.0f}"
            yield Finding("clock_drift", drift.ppm, "ppm", begun, "", text)
        rate, spread = pacing.rate, pacing.spread_ms
        if rate is not None and abs(rate - 1) > RATE_OFF:
            text = f"{rate:.2f} s of sound come in a second: the sender does not pace them"
            yield Finding("irregular_pacing", spread or 0.0, "ms", begun, "", text)
        elif spread is not None and spread > SPREAD_MS:
            text = f"packets come up to {spread:.0f} ms later than the earliest do"
            shuffled = pacing.reordered > 0
            text += "; the network brought some out of order" if shuffled else "; the network's share is not known"
            blamed = shuffled or self.recording.delayed
            yield Finding("irregular_pacing", spread, "ms", begun, "", text, network=blamed)

    def _stops(self) -> Iterator[Finding]:
        """By what the server says, of each stop; where it says nothing, by what was expected."""
        stops = [claim for claim in self.claims if claim.kind == "stopped"]
        for claim in self._own_stops():
            last = self._last_before_silence(claim.at)
            if last is not None and 1000 * (last - claim.at) > LATE_MS:
                late = 1000 * (last - claim.at)
                text = f"audible packets came until {late:.0f} ms after the server said that it had stopped"
                yield Finding("late_stop", late, "ms", claim.at, self._step_at(claim.at), text)
        for expected in self.scenario.expect:
            step = self.measures.of(expected.of)
            if expected.kind != "stops" or stops or step is None or not step.speaking:
                continue
            deadline = step.begins_at + expected.within_ms / 1000
            known = [each for each in (step.stopped_at, self._stopped(step)) if each is not None]
            late = 1000 * (min(known, default=self._until(step.step)) - deadline)
            if late > LATE_MS:
                text = f"audible until {late:.0f} ms after the {expected.within_ms:.0f} ms in which it was to stop"
                yield Finding("late_stop", late, "ms", deadline, step.step, text)

    def _own_stops(self) -> Iterator[Claim]:
        """Those behind which the agent is said to be silent: one of two utterances may end while the next goes on."""
        speaking = 0
        for claim in self.claims:
            if claim.kind == "started":
                speaking += 1
            elif claim.kind == "stopped":
                speaking = max(0, speaking - 1)
                if not speaking:
                    yield claim

    def _last_before_silence(self, since: float) -> float | None:
        """When the last audible packet came of the sound that goes on at that instant; None where it is silent."""
        until = min((claim.at for claim in self.claims if claim.kind == "started" and claim.at > since), default=inf)
        span = next(
            (each for each in self.sent if each.begins_at < since + JOIN_SECONDS and each.ends_at > since), None
        )
        if span is None or span.begins_at >= until - CLAIM_SECONDS:
            return None
        come = [each for each in self._audible_packets() if since < each <= span.ends_at and each < until]
        return max(come, default=None)

    def _audible_packets(self) -> list[float]:
        """Arrivals of packets with something audible in them."""
        blocks = np.flatnonzero(self._flags)
        packets = np.unique(np.searchsorted(self.voice.starts, BLOCK * blocks, side="right") - 1)
        return [self.voice.packets[int(packet)].at for packet in packets]

    def _step_at(self, instant: float) -> str:
        before = [said.step for said in self.recording.said if said.begins_at <= instant]
        return before[-1] if before else ""

    def _stale(self) -> Iterator[Finding]:
        for expected in self.scenario.expect:
            step = self.measures.of(expected.of)
            if expected.kind != "stops" or step is None or step.stopped_at is None:
                continue
            stale = list(self._after_stop(step))
            total = 1000 * sum(span.seconds for span in stale)
            if total >= 20.0:
                text = f"{total:.0f} ms of sound between the agent's stop and the time when it could answer"
                yield Finding("stale_audio", total, "ms", stale[0].begins_at, step.step, text)
            else:
                yield from self._stale_by_sound(step)

    def _after_stop(self, step: StepMeasures) -> Iterator[Span]:
        """Sound that came after a stop, and before an answer could come."""
        stopped = self._stopped(step)
        if stopped is None:
            return
        due = self._due(step, stopped)
        for span in self.sent:
            if stopped <= span.begins_at < due:
                yield Span(span.begins_at, min(span.ends_at, due))

    def _stopped(self, step: StepMeasures) -> float | None:
        """When the packets of the reply ended, for the first time, by the server's word or by a silence that lasts."""
        said = [claim.at for claim in self.claims if claim.kind == "stopped" and claim.at >= step.begins_at]
        if said and said[0] < step.ends_at + QUIET_SECONDS:
            last = self._last_before_silence(said[0])
            return max(said[0], last + BLOCK_SECONDS if last is not None else said[0])
        ends = [
            one.ends_at
            for one, other in zip(self.sent, [*self.sent[1:], Span(inf, inf)], strict=True)
            if one.ends_at >= step.begins_at - STILL_SECONDS and other.begins_at - one.ends_at >= QUIET_SECONDS
        ]
        return ends[0] if ends else None

    def _due(self, step: StepMeasures, stopped: float) -> float:
        """From when on sound is an answer: when the server says that it starts, if it ever says so. That excuses sound
        under the user's own, which may be a new answer, too early; what is old in it only a reference can tell."""
        if any(claim.kind == "started" for claim in self.claims):
            started = [claim.at for claim in self.claims if claim.kind == "started" and claim.at >= stopped]
            return min(started, default=inf) - CLAIM_SECONDS
        return step.ends_at + DUE_SECONDS

    def _stale_by_sound(self, step: StepMeasures) -> Iterator[Finding]:
        """The answer begins with what the reference says next."""
        if self.reference is None or step.response_at is None:
            return
        stopped = self._stopped(step)
        after = [span for span in self.sent if stopped is not None and span.begins_at > stopped]
        place = self._place(step.begins_at)
        if not after or stopped is None or place is None:
            return
        place += round((stopped - step.begins_at) * RATE)
        sound = self.voice.samples[self._sample_at(after[0].begins_at) :]
        found = match(sound[:SHORT_MATCH_SAMPLES], self.reference)
        if found.alike < ALIKE or abs(found.place - place) > STALE_PLACE_SECONDS * RATE:
            return
        total = 1000 * same_for(sound, self.reference, max(0, found.place)) / RATE
        text = f"the answer begins with {total:.0f} ms of the reply that the user had interrupted"
        yield Finding("stale_audio", total, "ms", after[0].begins_at, step.step, text)

    def _find_reply(self) -> tuple[float | None, Match]:
        """When the first packet came of the reply that the reference has, and which place of it that is: the answer to
        the first sound, or what the agent says first of all; not alike where it is neither."""
        said, none = self.recording.said, Match(0, 0.0)
        since = said[0].ends_at - EARLY_SECONDS if said else -inf
        begins = [span.begins_at for span in self.sent]
        answer = next((begin for begin in begins if begin >= since), None)
        if self.reference is None:
            return answer, none
        found = [(begin, self._match(begin)) for begin in dict.fromkeys([answer, *begins[:1]]) if begin is not None]
        alike = [each for each in found if each[1].alike >= ALIKE]
        if alike:
            return min(alike, key=lambda each: each[1].place)
        return answer, none

    def _match(self, begin: float) -> Match:
        """Of the first second of what came then, or of less."""
        assert self.reference is not None, "asked for where there is one only"
        sample = self._sample_at(begin)
        whole = match(self.voice.samples[sample : sample + MATCH_SAMPLES], self.reference)
        short = match(self.voice.samples[sample : sample + SHORT_MATCH_SAMPLES], self.reference)
        return whole if whole.alike >= ALIKE else short

    def _sample_at(self, instant: float) -> int:
        """Of the voice: the beginning of the block that came then."""
        return BLOCK * int(np.searchsorted(self._at, instant - 1e-9)) if self._at.size else 0

    def _cut(self) -> Iterator[Finding]:
        if self.reference is None or self.reply_at is None or self.reply.alike < ALIKE:
            return
        sound = self.voice.samples[self._sample_at(self.reply_at) :]
        missing = 1000 * missing_samples(sound, self.reference, self.reply.place) / RATE
        if CUT_MS < missing <= 1000 * MOST_CUT_SECONDS:
            text = f"the reply begins {missing:.0f} ms behind the reference's beginning"
            yield Finding("cut_start", missing, "ms", self.reply_at, "", text)

    def _overclaimed(self) -> Iterator[Finding]:
        for at, said, came, elapsed in self.claimed():
            if said - came > OVERCLAIMED_MS and said > elapsed + OVERCLAIMED_MS:
                text = f"the server says that {said:.0f} ms were heard, {came:.0f} ms came out"
                yield Finding("overclaimed_heard", said - came, "ms", at, self._step_at(at), text)

    def claimed(self) -> Iterator[tuple[float, float, float, float]]:
        """When the server says how much was heard: that instant, its ms, those that came out, and those since it began
        to speak."""
        for claim in self.claims:
            if claim.kind == "started" or claim.heard_ms is None:
                continue
            started = [each.at for each in self.claims if _begins(each) and each.at <= claim.at]
            yield claim.at, claim.heard_ms, *self._came_out(self._utterance_at(started, claim.at), claim.at)

    def _utterance_at(self, started: Sequence[float], until: float) -> float:
        """When what was last said began: by the server's word, or behind the last silence that lasts. The next one may
        have begun before the end of one is told."""
        if started:
            following = len(started) > 1 and until - started[-1] < QUIET_SECONDS
            return started[-2 if following else -1] - CLAIM_SECONDS
        begin = -inf
        for one, other in zip([Span(-inf, -inf), *self.measures.spans], self.measures.spans, strict=False):
            if other.begins_at <= until and other.begins_at - one.ends_at >= QUIET_SECONDS:
                begin = other.begins_at
        return begin

    def _came_out(self, since: float, until: float) -> tuple[float, float]:
        """ms from the first audible sample to the last one, and to the claim."""
        own = [span for span in self.measures.spans if span.ends_at > since and span.begins_at <= until + CLAIM_SECONDS]
        if not own:
            return 0.0, 0.0
        begin = own[0].begins_at
        end = min(own[-1].ends_at, until + 2 * CLAIM_SECONDS)
        return 1000 * (end - begin), 1000 * (until - begin)

    # ---- expectations -------------------------------------------------------------------------------------------

    def held(self, expected: Expectation, findings: Sequence[Finding]) -> Held:
        if expected.kind == "absent":
            return _absent(expected, findings)
        if why := self._why_not(expected):
            return Held(expected, None, None, why)
        if expected.kind == "answers":
            return self._held_answers(expected)
        if expected.kind == "waits":
            return self._held_waits(expected)
        if expected.kind == "continues":
            return self._held_continues(expected)
        step = self.measures.of(expected.of)
        assert step is not None, f"a step that was said has its measures: {expected.of}"
        return self._held_stops(expected, step) if expected.kind == "stops" else self._held_resumes(expected, step)

    def _why_not(self, expected: Expectation) -> str:
        """Why an expectation cannot be judged; empty where it can."""
        echo = any(step.name == expected.of and step.echo_db is not None for step in self.scenario.steps)
        if expected.of in self.recording.missed:
            return f"{expected.of} was never said: what it waits for did not happen in time"
        if expected.of and not echo and self.measures.of(expected.of) is None:
            return f"{expected.of} was never said: {self.recording.failure or 'the call was over before'}"
        if self.recording.connected_at is None:
            return f"there was no call: {self.recording.failure or 'it was never up'}"
        return ""

    def _answered(self, expected: Expectation) -> tuple[float, float | None]:
        """From when on an answer was waited for, and when it came."""
        if expected.of:
            step = self.measures.of(expected.of)
            assert step is not None, f"a step that was said has its measures: {expected.of}"
            return step.ends_at, step.response_at
        connected = self.recording.connected_at
        assert connected is not None, "without a call there is nothing to judge"
        return connected, self.measures.spans[0].begins_at if self.measures.spans else None

    def _until(self, step: str) -> float:
        """The beginning of the next step behind this one, or the call's end."""
        own = self.measures.of(step)
        later = [said.begins_at for said in self.recording.said if own and said.begins_at >= own.ends_at]
        return min([*later, self.recording.ended_at])

    def _held_answers(self, expected: Expectation) -> Held:
        end, first = self._answered(expected)
        if first is None:
            went_on = self._went_on(expected.of)
            return Held(expected, False, None, "it never stopped" if went_on else "no answer came")
        got = 1000 * (first - end)
        return Held(expected, got <= expected.within_ms, got, f"audible {got:.0f} ms after the end")

    def _owed(self, step: StepMeasures) -> bool:
        """What was said before had no answer yet: there was one to be held back."""
        before = [each for each in self.measures.steps if each.begins_at < step.begins_at]
        return bool(before) and (before[-1].response_at is None or before[-1].response_at > step.begins_at)

    def _went_on(self, step: str) -> bool:
        """The agent spoke through the step, and did not stop for it."""
        measured = self.measures.of(step)
        if measured is None or not measured.speaking:
            return False
        return measured.stopped_at is None or measured.stopped_at > measured.ends_at + REACTION_SECONDS

    def _held_stops(self, expected: Expectation, step: StepMeasures) -> Held:
        if not step.speaking:
            if self._spoke_before(step.begins_at) or self._owed(step):
                return Held(expected, True, 0.0, "it did not speak while the user did")
            return Held(expected, None, None, f"the agent had done speaking when {step.step} began")
        if step.stop_ms is None:
            got = 1000 * (self._until(step.step) - step.begins_at)
            return Held(expected, False, got, "it went on speaking")
        text = f"silent {step.stop_ms:.0f} ms after the onset"
        return Held(expected, step.stop_ms <= expected.within_ms, step.stop_ms, text)

    def _held_waits(self, expected: Expectation) -> Held:
        step = self.measures.of(expected.of)
        assert step is not None, f"a step that was said has its measures: {expected.of}"
        until = self._yielded(self._until(expected.of))
        got = 1000 * sum(_overlap(span, step.begins_at, until) for span in self.measures.spans)
        text = f"audible for {got:.0f} ms until it was silent for the rest"
        return Held(expected, got <= expected.within_ms, got, text)

    def _yielded(self, begins_at: float) -> float:
        """When the agent had stopped for the sound that begins then; its beginning, where there was nothing to stop."""
        own = next((step for step in self.measures.steps if step.begins_at == begins_at), None)
        if own is None or not own.speaking:
            return begins_at
        return own.ends_at if own.stopped_at is None else own.stopped_at

    def _held_resumes(self, expected: Expectation, step: StepMeasures) -> Held:
        if not step.speaking and not self._spoke_before(step.begins_at):
            return Held(expected, None, None, f"the agent did not speak when {step.step} began")
        silent = self._silence_after(step)
        if silent is None:
            return self._same_reply(expected, 0.0, step, step.ends_at, "it went on speaking")
        if silent.ends_at == inf:
            return self._over(expected, silent.begins_at, "it was not audible again")
        got = 1000 * (silent.ends_at - step.ends_at)
        text = f"audible again {got:.0f} ms after the end"
        if got > expected.within_ms:
            return self._over(expected, silent.begins_at, text, got)
        return self._same_reply(expected, max(0.0, got), step, silent.ends_at, text)

    def _silence_after(self, step: StepMeasures) -> Span | None:
        """The first silence that lasts, for which the step may be the reason: it begins up to a second after it."""
        ends = [span for span in self.measures.spans if span.ends_at > step.begins_at - QUIET_SECONDS]
        for one, other in zip(ends, [*ends[1:], Span(inf, inf)], strict=False):
            if one.ends_at > step.ends_at + REACTION_SECONDS:
                return None
            if other.begins_at - one.ends_at >= STILL_SECONDS and other.begins_at > step.begins_at:
                return Span(one.ends_at, other.begins_at)
        return None

    def _sent_at(self, instant: float) -> float:
        """When came what is heard at that instant: the begin of a span, or what goes on."""
        heard_after = 1e-3 * (self.measures.buffer_ms or 0.0)
        own = [span for span in self.sent if span.ends_at > instant - heard_after - STILL_SECONDS]
        return max(own[0].begins_at, instant - heard_after) if own else instant

    def _still(self, since: float, until: float) -> float:
        """Seconds of silence, other than pauses for breath, that were sent between two instants: in these a reply does
        not go on."""
        pairs = ((max(one.ends_at, since), other.begins_at) for one, other in pairwise(self.sent))
        return sum(end - begin for begin, end in pairs if begin < end <= until + BLOCK_SECONDS)

    def _spoke_before(self, instant: float) -> bool:
        return any(instant - QUIET_SECONDS <= span.ends_at and span.begins_at < instant for span in self.measures.spans)

    def _same_reply(self, expected: Expectation, got: float, step: StepMeasures, since: float, text: str) -> Held:
        """What comes next has to be what the reference says next, if what was before is in it."""
        if self.reference is None:
            words = f"{text}; without a reference, the same reply is taken for granted"
            return Held(expected, True, got, words, assumed=True)
        place = self._place(step.begins_at)
        if place is None:
            words = f"{text}; the reply is not in the reference, nor can its rest be looked for"
            return Held(expected, True, got, words, assumed=True)
        start_at = self._sent_at(since)
        start = self._sample_at(start_at)
        found = match(self.voice.samples[start : start + SHORT_MATCH_SAMPLES], self.reference)
        place += start - self.voice.sample_of(step.begins_at) - round(RATE * self._still(step.begins_at, start_at))
        if found.alike < ALIKE or abs(found.place - place) > SAME_PLACE_SECONDS * RATE:
            return Held(expected, False, got, f"{text}, but not with what comes next in the reply")
        return Held(expected, True, got, f"{text}, with what comes next in the reply")

    def _over(self, expected: Expectation, since: float, text: str, got: float | None = None) -> Held:
        """Not held, unless the reply had come to its own end by then."""
        rest = self._rest_ms(since)
        if rest is None:
            return Held(expected, False, got, f"{text}; without a reference, its own end is not known")
        if rest < 1000 * EARLY_SECONDS:
            return Held(expected, None, got, f"{text}: the reply was at its own end")
        return Held(expected, False, got, text)

    def _place(self, instant: float) -> int | None:
        """Up to which sample of the reference the first reply had been sent then; None where it is not in it."""
        if self.reply_at is None or self.reply.alike < ALIKE:
            return None
        return self.reply.place + self.voice.sample_of(instant) - self._sample_at(self.reply_at)

    def _rest_ms(self, since: float) -> float | None:
        """How much of the reference had not been sent at that instant; None where the reply is not in it."""
        if self.reference is None:
            return None
        place = self._place(since)
        if place is None:
            return None
        last = np.flatnonzero(np.abs(self.reference.astype(np.int32)) > AUDIBLE)
        return 1000 * (int(last[-1]) - place) / RATE

    def _held_continues(self, expected: Expectation) -> Held:
        """Silence from the step's beginning to the reply's end, its own pauses and all."""
        begin, end = self._around(expected.of)
        spoken = [span for span in self.measures.spans if span.ends_at > begin]
        claimed = [claim for claim in self.claims if claim.kind == "stopped" and begin < claim.at < end]
        if not self._spoke_before(begin) and not any(span.begins_at < end for span in spoken):
            return Held(expected, None, None, f"the agent did not speak when {expected.of} began")
        if not spoken or spoken[-1].ends_at < end:
            last = max(begin, spoken[-1].ends_at if spoken else begin)
            return self._ended_early(expected, last, end, bool(claimed))
        until = self._reply_ends(end)
        got = 1000 * (until - begin - sum(_overlap(span, begin, until) for span in spoken))
        return Held(expected, got <= expected.within_ms, got, f"silent for {got:.0f} ms until the reply's end")

    def _around(self, step: str) -> tuple[float, float]:
        """The step, and a second and a half more, in which an agent that has heard it would fall silent; of an echo,
        the time from the first answer's beginning on."""
        own = self.measures.of(step)
        if own is not None:
            return own.begins_at, min(own.ends_at + 1.5, self._until(step))
        said = [each.ends_at for each in self.recording.said if self.measures.of(each.step)]
        since = said[-1] - EARLY_SECONDS if said else -inf
        begin = next((span.begins_at for span in self.measures.spans if span.begins_at >= since), inf)
        return begin, begin + 2.0

    def _reply_ends(self, since: float) -> float:
        """The end of the last span before the user's next sound, or before a silence of two seconds."""
        own = [span for span in self.measures.spans if span.ends_at > since - 2.0]
        later = min((each.begins_at for each in self.recording.said if each.begins_at > since), default=inf)
        end = own[0].ends_at
        for one, other in pairwise(own):
            if other.begins_at - one.ends_at > 2.0 or other.begins_at > later:
                break
            end = other.ends_at
        return max(end, since)

    def _ended_early(self, expected: Expectation, last: float, end: float, claimed: bool) -> Held:
        got = 1000 * (end - last)
        rest = self._rest_ms(last)
        if rest is not None:
            held = rest < 1000 * EARLY_SECONDS
            return Held(expected, held, None if held else got, f"silent with {max(0.0, rest):.0f} ms of the reply left")
        if claimed:
            return Held(expected, False, got, "the server says that it stopped")
        return Held(expected, None, got, "it fell silent; without a reference, the reply's own end is not known")


def _begins(claim: Claim) -> bool:
    """It starts an utterance, and does not go on with one."""
    return claim.kind == "started" and not claim.heard_ms


def _certain(least: float, most: float) -> bool:
    """A drift beyond what is allowed, beyond its uncertainty."""
    return least > DRIFT_PPM or most < -DRIFT_PPM


def _overlap(span: Span, begin: float, end: float) -> float:
    return max(0.0, min(span.ends_at, end) - max(span.begins_at, begin))


def _absent(expected: Expectation, findings: Sequence[Finding]) -> Held:
    own = [each for each in findings if not each.network and expected.absent in ("any", each.name)]
    if not own:
        return Held(expected, True, None, "nothing was found" if expected.absent == "any" else "it was not found")
    sizes = ", ".join(f"{each.name} {each.size:.0f} {each.unit}" for each in own)
    return Held(expected, False, own[0].size if own[0].unit == "ms" else None, f"found: {sizes}")
