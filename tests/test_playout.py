"""agent/playout.py: order, conservation, fades, epochs, and how long speech is held under scripted jitter."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agent.playout import FADE_SECONDS, MAX_HOLD, MIN_LEAD, PCM, CueKind, Packet, PlayoutBuffer

RATE = 24_000
PACKET = 480
FRAME = 1920
FADE = int(FADE_SECONDS * RATE)
INFINITE = float("inf")


def pcm(value: int, count: int = FRAME) -> PCM:
    return np.full(count, value, np.int16)


def buffer(*utterances: str) -> PlayoutBuffer:
    playout = PlayoutBuffer(RATE)
    for utterance in utterances:
        playout.enqueue(utterance)
    return playout


def kinds(packet: Packet) -> list[tuple[CueKind, str]]:
    return [(cue.kind, cue.utterance) for cue in packet.cues]


def drain(playout: PlayoutBuffer, now: float, packets: int) -> tuple[PCM, list[tuple[CueKind, str]]]:
    popped = [playout.pop(PACKET, now + 0.02 * n) for n in range(packets)]
    return np.concatenate([packet.samples for packet in popped]), [kind for packet in popped for kind in kinds(packet)]


def test_silence_where_there_is_nothing() -> None:
    packet = buffer().pop(PACKET, 1.0)
    assert packet.samples.dtype == np.int16
    assert packet.samples.shape == (PACKET,)
    assert not packet.samples.any()
    assert packet.cues == ()
    assert packet.playing is None


def test_one_utterance_from_its_first_to_its_last_sample() -> None:
    playout = buffer("a")
    speech = np.arange(1, 2 * FRAME + 1, dtype=np.int16)
    playout.push("a", 0, speech[:FRAME], 0.0, slack=0.1)
    playout.push("a", 0, speech[FRAME:], 0.01, slack=INFINITE, final=True)
    assert playout.buffered == pytest.approx(0.16)
    samples, cues = drain(playout, 0.01, 9)
    assert samples[: speech.size].tolist() == speech.tolist()
    assert not samples[speech.size :].any()
    assert cues == [(CueKind.STARTED, "a"), (CueKind.ENDED, "a")]
    assert playout.buffered == 0.0


def test_cues_carry_the_instant_and_the_position_of_their_sample() -> None:
    playout = buffer("a", "b")
    playout.push("a", 0, pcm(1, 600), 5.0, slack=INFINITE, final=True)
    playout.push("b", 0, pcm(2, 1000), 5.0, slack=INFINITE, final=True)
    first, second = playout.pop(PACKET, 5.0), playout.pop(PACKET, 5.02)
    assert [(c.at, c.played_samples) for c in first.cues] == [(5.0, 0)]
    assert [(c.kind, c.at, c.played_samples) for c in second.cues] == [
        (CueKind.ENDED, pytest.approx(5.025), 600),
        (CueKind.STARTED, pytest.approx(5.025), 0),
    ]
    third = playout.pop(PACKET, 5.04)
    assert (third.playing, third.played_samples, third.at) == ("b", 360, 5.04)


def test_utterances_play_back_to_back_in_the_order_in_which_they_were_asked_for() -> None:
    playout = buffer("a", "b")
    playout.push("b", 0, pcm(2, 700), 0.0, slack=INFINITE, final=True)  # the second comes first
    assert not playout.pop(PACKET, 0.0).samples.any()
    playout.push("a", 0, pcm(1, 500), 0.02, slack=INFINITE, final=True)
    samples, cues = drain(playout, 0.02, 3)
    assert samples[:1200].tolist() == [1] * 500 + [2] * 700
    assert [kind for kind, _ in cues] == [CueKind.STARTED, CueKind.ENDED, CueKind.STARTED, CueKind.ENDED]


def test_an_utterance_without_audio_ends_and_never_started() -> None:
    playout = buffer("a", "b")
    playout.end("a")
    playout.push("b", 0, pcm(2, PACKET), 0.0, slack=INFINITE, final=True)
    packet = playout.pop(PACKET, 0.0)
    assert kinds(packet) == [(CueKind.ENDED, "a"), (CueKind.STARTED, "b"), (CueKind.ENDED, "b")]
    assert packet.samples.tolist() == [2] * PACKET


# ---- when it starts -------------------------------------------------------------------------------------------


def started_at(playout: PlayoutBuffer, since: float, limit: float = 2.0) -> float:
    """Pops until something is heard; the instant of that packet."""
    for n in range(round(limit / 0.02)):
        if playout.pop(PACKET, since + 0.02 * n).samples.any():
            return since + 0.02 * n
    return INFINITE


def test_slack_that_covers_the_lead_starts_at_once() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(1), 3.0, slack=MIN_LEAD)
    assert started_at(playout, 3.0) == 3.0


def test_missing_slack_is_waited_for() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(1), 3.0, slack=-0.08)
    assert started_at(playout, 3.0) == pytest.approx(3.1)


def test_the_wait_is_bounded() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(1), 3.0, slack=-60.0)
    assert started_at(playout, 3.0) == pytest.approx(3.0 + MAX_HOLD)


@pytest.mark.parametrize("how", ["final", "end"])
def test_the_last_chunk_lets_go_of_what_is_held(how: str) -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(1), 3.0, slack=-60.0)
    assert not playout.pop(PACKET, 3.0).samples.any()
    if how == "final":
        playout.push("a", 0, pcm(1), 3.01, slack=INFINITE, final=True)
    else:
        playout.end("a")
    assert playout.pop(PACKET, 3.02).samples.all()


def test_a_later_chunk_with_more_slack_ends_the_wait() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(1), 3.0, slack=-0.2)
    playout.push("a", 0, pcm(1), 3.03, slack=0.1)
    assert playout.pop(PACKET, 3.04).samples.all()


def test_speech_behind_other_speech_is_held_from_the_end_of_that_and_not_inside_a_word() -> None:
    playout = buffer("a", "b")
    playout.push("a", 0, pcm(1, 2 * FRAME), 3.0, slack=INFINITE, final=True)
    drain(playout, 3.0, 3)
    playout.push("b", 0, pcm(2), 3.05, slack=-0.08)  # if it begins where a ends, it will lack 80 ms
    samples, cues = drain(playout, 3.06, 11)
    assert samples.tolist() == [1] * 5 * PACKET + [0] * 5 * PACKET + [2] * PACKET
    assert cues == [(CueKind.ENDED, "a"), (CueKind.STARTED, "b")]


def test_speech_behind_other_speech_does_not_hurry_when_its_next_chunk_will_be_there() -> None:
    playout = buffer("a", "b")
    playout.push("a", 0, pcm(1), 3.0, slack=INFINITE, final=True)
    playout.push("b", 0, pcm(2), 3.0, slack=MIN_LEAD)
    samples, _ = drain(playout, 3.0, 8)
    assert samples.tolist() == [1] * FRAME + [2] * FRAME


def test_the_lead_grows_with_the_lateness_of_chunks_against_their_prediction() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(1), 1.0, slack=0.01)  # 80 ms of audio: the next is predicted for 1.07
    assert playout.lead == MIN_LEAD
    playout.push("a", 0, pcm(1), 1.13, slack=0.01)  # 60 ms late
    assert playout.lead == pytest.approx(0.06)
    assert playout.jitter == 0.0


def test_an_engine_that_serves_others_first_while_there_is_time_is_not_late() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(1, 5 * FRAME), 1.0, slack=0.3)  # 400 ms of audio: the next is predicted for 1.1
    drain(playout, 1.0, 19)
    playout.push("a", 0, pcm(1, 5 * FRAME), 1.38, slack=0.3)  # 20 ms were left to play
    assert playout.lead == MIN_LEAD
    drain(playout, 1.38, 20)
    playout.push("a", 0, pcm(1), 1.83, slack=0.3)  # to be there at 1.78, with 20 ms left
    assert playout.lead == pytest.approx(0.05)


def test_jitter_is_what_chunks_take_to_come_and_not_what_the_engine_takes_to_make_them() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(1), 1.0, slack=0.05, made_at=0.99)
    assert playout.jitter == pytest.approx(0.01)
    playout.push("a", 0, pcm(1), 1.36, slack=0.05, made_at=1.35)  # 330 ms later than predicted
    assert playout.jitter == pytest.approx(0.01)
    playout.push("a", 0, pcm(1), 1.5, slack=0.05, made_at=1.45)
    assert playout.jitter == pytest.approx(0.05)
    for n in range(40):
        playout.push("a", 0, pcm(1), 2.0 + n, slack=0.05, made_at=1.99 + n)
    assert playout.jitter == pytest.approx(0.01)
    playout.push("a", 0, pcm(1), 50.0, slack=0.05)  # an engine that does not tell
    assert playout.jitter == pytest.approx(0.01)


# ---- underruns ------------------------------------------------------------------------------------------------


def test_an_underrun_keeps_every_sample_and_says_how_much_silence_was_sent() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(1, PACKET + 80), 0.0, slack=1.0)
    packets = [playout.pop(PACKET, 0.02 * n) for n in range(3)]
    assert packets[1].samples.tolist() == [1] * 80 + [0] * 400
    assert kinds(packets[1]) == [(CueKind.PAUSED, "a")]
    assert packets[1].cues[0].at == pytest.approx(0.02 + 80 / RATE)
    assert packets[1].playing is None
    assert packets[2].cues == ()
    playout.push("a", 0, pcm(2, 1000), 0.05, slack=1.0)
    resumed = playout.pop(PACKET, 0.06)
    (cue,) = resumed.cues
    assert (cue.kind, cue.played_samples, cue.missed_samples) == (CueKind.RESUMED, PACKET + 80, 400 + PACKET)
    assert resumed.samples.tolist() == [2] * PACKET


def test_running_out_before_the_end_is_known_is_no_underrun() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(1, PACKET), 0.0, slack=1.0)
    _, cues = drain(playout, 0.0, 2)
    playout.end("a")
    _, more = drain(playout, 0.04, 1)
    assert cues + more == [(CueKind.STARTED, "a"), (CueKind.PAUSED, "a"), (CueKind.ENDED, "a")]
    assert playout.lead == MIN_LEAD


def test_after_an_underrun_it_rebuffers_and_the_lead_is_longer_until_playback_was_steady() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(1, PACKET), 0.0, slack=0.02)  # predicted for 0.0, so that 0.1 is 100 ms late
    drain(playout, 0.0, 3)
    playout.push("a", 0, pcm(1, 100 * FRAME), 0.1, slack=0.02)
    lead = playout.lead
    assert lead == pytest.approx(0.1 + 0.04)
    assert started_at(playout, 0.101) == pytest.approx(0.101 + 0.12)  # the lead less the slack
    drain(playout, 0.241, 250)  # five seconds
    assert playout.lead == pytest.approx(0.1 + 0.02, abs=1e-3)


def test_the_lead_is_bounded_however_bad_it_gets() -> None:
    playout = buffer("a")
    for n in range(10):
        playout.push("a", 0, pcm(1, PACKET), 10.0 * n, slack=0.0)
        drain(playout, 10.0 * n, 30)
    assert playout.lead == MAX_HOLD


@dataclass
class Script:
    """An engine that promises chunk n + 1 with a fixed slack, and is late by lateness[n]."""

    lateness: list[float]
    promised: float = 0.03
    frames: list[int] = field(default_factory=lambda: [1, 2, 4, 8] + [8] * 200)

    def play(self) -> tuple[int, float, float]:
        """Underruns, the first packet's instant, and the lead at the end."""
        playout = buffer("a")
        arrivals, run_out = [0.0], 0.0
        for frames, late in zip(self.frames, self.lateness, strict=False):
            run_out += frames * 0.08
            arrivals.append(run_out - self.promised + late)
        underruns, first, chunk = 0, INFINITE, 0
        for n in range(round(run_out / 0.02)):
            now = 0.02 * n
            while chunk < len(arrivals) and arrivals[chunk] <= now:
                playout.push("a", 0, pcm(1, FRAME * self.frames[chunk]), arrivals[chunk], self.promised)
                chunk += 1
            packet = playout.pop(PACKET, now)
            underruns += sum(cue.kind is CueKind.RESUMED for cue in packet.cues)
            first = now if packet.samples.any() and first == INFINITE else first
        return underruns, first, playout.lead


def test_scripted_jitter_within_the_promise_starts_at_once_and_never_stands_still() -> None:
    lateness = [0.008 * (n % 3) for n in range(60)]  # 0 to 16 ms
    assert Script(lateness).play() == (0, 0.0, pytest.approx(MIN_LEAD))


def test_scripted_jitter_beyond_the_promise_stands_still_far_less_often_than_chunks_are_late() -> None:
    lateness = [0.12 if n % 7 == 3 else 0.0 for n in range(100)]
    underruns, _, _ = Script(lateness).play()
    assert 1 <= underruns <= 3  # 14 chunks were late by more than their slack


def test_what_was_learned_in_one_utterance_spares_the_next_an_underrun() -> None:
    playout, heard = PlayoutBuffer(RATE), []
    for n in range(5):
        at, name = 10.0 * n, f"u{n}"
        playout.enqueue(name)
        arrivals = [(at, 1), (at + 0.08 - 0.03 + 0.1, 2), (at + 0.24 - 0.03, 4), (at + 0.56 - 0.03, 8)]
        for k in range(80):
            now = at + 0.02 * k
            while arrivals and arrivals[0][0] <= now:
                arrived, frames = arrivals.pop(0)
                playout.push(name, 0, pcm(1, FRAME * frames), arrived, 0.03, final=not arrivals)
            heard += kinds(playout.pop(PACKET, now))
    resumed = [name for kind, name in heard if kind is CueKind.RESUMED]
    assert resumed == ["u0"]
    assert sum(kind is CueKind.ENDED for kind, _ in heard) == 5


def test_a_steady_engine_gets_the_short_lead_back() -> None:
    lateness = [0.1, 0.1, 0.1] + [0.0] * 150
    underruns, _, lead = Script(lateness).play()
    assert underruns >= 1
    assert lead == pytest.approx(MIN_LEAD, abs=1e-3)


# ---- flush ----------------------------------------------------------------------------------------------------


def test_flush_fades_within_ten_milliseconds_and_is_then_silent() -> None:
    playout = buffer("a", "b")
    playout.push("a", 0, pcm(10_000, 4 * PACKET), 0.0, slack=1.0)
    playout.push("b", 0, pcm(20_000), 0.0, slack=1.0)
    playout.pop(PACKET, 0.0)
    assert playout.flush(1) == {"a": PACKET, "b": 0}
    samples, cues = drain(playout, 0.02, 10)
    fade = samples[:FADE].astype(int)
    assert FADE <= 0.01 * RATE
    assert fade[0] > 9900
    assert fade[-1] < 100
    assert (np.diff(fade) <= 0).all()
    assert not samples[FADE:].any()
    assert cues == []


def test_flush_of_a_packet_that_was_not_sent_takes_it_back() -> None:
    playout = buffer("a", "b")
    playout.push("a", 0, pcm(10_000, PACKET + 100), 0.0, slack=INFINITE, final=True)
    playout.push("b", 0, pcm(20_000), 0.0, slack=INFINITE, final=True)
    playout.pop(PACKET, 0.0)
    playout.pop(PACKET, 0.02)  # the rest of a, the start of b: never sent
    assert playout.flush(1, unsent=True) == {"a": PACKET, "b": 0}
    samples, _ = drain(playout, 0.02, 2)
    assert samples[0] > 9900
    assert samples[100] > 9900  # b, as it was in the packet
    assert not samples[FADE:].any()


def test_a_second_flush_does_not_cut_the_fade_of_the_first() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(10_000, 4 * PACKET), 0.0, slack=1.0)
    playout.pop(PACKET, 0.0)
    playout.flush(1)
    playout.flush(2)
    assert playout.pop(PACKET, 0.02).samples[0] > 9900
    playout.flush(3, unsent=True)
    assert playout.pop(PACKET, 0.02).samples[0] > 9900


def test_flush_in_silence_makes_no_sound() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(10_000), 0.0, slack=-1.0)  # held
    playout.pop(PACKET, 0.0)
    assert playout.flush(1) == {"a": 0}
    assert not drain(playout, 0.02, 5)[0].any()


def test_chunks_of_an_older_epoch_are_dropped_even_under_a_name_that_is_used_again() -> None:
    playout = buffer("a")
    playout.flush(1)
    playout.enqueue("a")
    assert not playout.push("a", 0, pcm(1), 0.0, slack=1.0)
    assert playout.push("a", 1, pcm(2), 0.0, slack=1.0)
    assert not playout.push("unknown", 1, pcm(3), 0.0, slack=1.0)
    assert playout.pop(PACKET, 0.0).samples.tolist() == [2] * PACKET


# ---- properties -----------------------------------------------------------------------------------------------


class Listener(RuleBasedStateMachine):
    """Random use of a buffer. Every utterance speaks its own number, so that what is heard tells whose it is."""

    def __init__(self) -> None:
        super().__init__()
        self.playout, self.now, self.epoch, self.fade = PlayoutBuffer(RATE), 0.0, 0, 0
        self.open: list[int] = []
        self.pushed: dict[int, int] = {}
        self.heard: list[int] = []
        self.told: list[tuple[CueKind, str]] = []
        self.spoken = 0

    @rule()
    def ask(self) -> None:
        self.spoken += 1
        self.playout.enqueue(f"{self.spoken}")
        self.open.append(self.spoken)
        self.pushed[self.spoken] = 0

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.integers(0, 1500), slack=st.floats(-1, 1), final=st.booleans())
    def deliver(self, data: st.DataObject, count: int, slack: float, final: bool) -> None:
        number = data.draw(st.sampled_from(self.open))
        assert self.playout.push(f"{number}", self.epoch, pcm(number, count), self.now, slack, final)
        self.pushed[number] += count
        if final:
            self.open.remove(number)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.open))
        self.playout.end(f"{number}")
        self.open.remove(number)

    @precondition(lambda self: self.pushed and self.epoch)
    @rule(data=st.data())
    def deliver_late(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.pushed)))
        assert not self.playout.push(f"{number}", self.epoch - 1, pcm(number), self.now, 0.0)

    @rule(packets=st.integers(1, 30), size=st.integers(1, 700))
    def listen(self, packets: int, size: int) -> None:
        for _ in range(packets):
            packet = self.playout.pop(size, self.now)
            self.now += size / RATE
            self.told += kinds(packet)
            speech = packet.samples[self.fade :]
            self.fade = max(0, self.fade - size)
            self.heard += speech[speech != 0].tolist()

    @rule(unsent=st.booleans())
    def flush(self, unsent: bool) -> None:
        self.epoch += 1
        sent = self.playout.flush(self.epoch, unsent=unsent)
        assert all(0 <= count <= self.pushed[int(name)] for name, count in sent.items())
        self.fade = self.playout._fade.size
        assert self.fade <= FADE
        self.open, self.pushed, self.heard, self.told = [], {}, [], []

    @invariant()
    def only_what_was_said_in_this_epoch_and_in_order(self) -> None:
        assert self.heard == sorted(self.heard)
        for number in set(self.heard):
            assert self.heard.count(number) <= self.pushed[number]

    @invariant()
    def each_starts_and_ends_once(self) -> None:
        for kind in (CueKind.STARTED, CueKind.ENDED):
            names = [name for told, name in self.told if told is kind]
            assert len(set(names)) == len(names)

    def teardown(self) -> None:
        """Whatever happened: once everything has ended, every sample is heard."""
        for number in list(self.open):
            self.playout.end(f"{number}")
        self.listen(len(self.heard) // 500 + sum(self.pushed.values()) // 500 + 2, 500)
        assert {number: self.heard.count(number) for number in self.pushed} == self.pushed
        assert {name for kind, name in self.told if kind is CueKind.ENDED} == {f"{number}" for number in self.pushed}


Listener.TestCase.settings = settings(deadline=None, max_examples=60, stateful_step_count=30)
TestListener = Listener.TestCase
