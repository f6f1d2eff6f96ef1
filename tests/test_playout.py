"""agent/playout.py: order, conservation, fades, epochs, and how long speech is held under scripted jitter."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from numpy.typing import NDArray

from agent.playout import FADE_SECONDS, MAX_HOLD, MIN_LEAD, PCM, Cue, CueKind, Packet, PlayoutBuffer

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


# ---- pause ----------------------------------------------------------------------------------------------------


def playing(playout: PlayoutBuffer, now: float = 0.0) -> PCM:
    """Speech of a constant level, of which one packet has been played; returns a packet of it."""
    playout.push("a", 0, pcm(10_000, 8 * PACKET), now, slack=1.0)
    return playout.pop(PACKET, now).samples


def test_a_pause_fades_out_over_samples_that_are_played_again() -> None:
    playout, ramp = buffer("a"), np.arange(10_000, 10_000 + 8 * PACKET, dtype=np.int16)
    playout.push("a", 0, ramp, 0.0, slack=INFINITE, final=True)
    first = playout.pop(PACKET, 0.0).samples
    playout.pause()
    paused, cues = drain(playout, 0.02, 5)
    assert cues == [(CueKind.SUSPENDED, "a")]
    assert (np.diff(paused[:FADE].astype(int)) <= 0).all()
    assert paused[0] > 10_400
    assert paused[FADE - 1] < 100
    assert not paused[FADE:].any()
    assert playout.heard("a") == PACKET
    playout.resume()
    rest, cues = drain(playout, 0.12, 8)
    assert cues == [(CueKind.CONTINUED, "a"), (CueKind.ENDED, "a")]
    assert rest[0] < 100
    assert rest[FADE - 1] > 10_400
    assert (rest[:FADE] <= ramp[PACKET:][:FADE]).all()
    assert np.concatenate([first, rest[FADE:]]).tolist() == [*ramp[:PACKET], *ramp[PACKET + FADE :], *[0] * PACKET]


def test_a_pauses_cues_carry_the_position_and_whether_the_clock_runs() -> None:
    playout = buffer("a")
    playing(playout)
    playout.pause()
    packet = playout.pop(PACKET, 0.02)
    (cue,) = packet.cues
    assert (cue.kind, cue.at, cue.played_samples, cue.running) == (CueKind.SUSPENDED, 0.02, PACKET, False)
    assert packet.playing is None
    playout.pop(PACKET, 0.04)
    playout.resume()
    packet = playout.pop(PACKET, 0.06)
    (cue,) = packet.cues
    assert (cue.kind, cue.at, cue.played_samples, cue.running) == (CueKind.CONTINUED, 0.06, PACKET, True)
    assert (packet.playing, packet.played_samples, cue.missed_samples) == ("a", PACKET, 0)


def test_pausing_or_resuming_twice_is_as_once() -> None:
    playout = buffer("a")
    playing(playout)
    playout.resume()  # nothing is paused
    playout.pause()
    playout.pause()
    _, cues = drain(playout, 0.02, 1)
    playout.pause(unsent=True)  # changes nothing: that packet is to be sent
    silence, more = drain(playout, 0.04, 2)
    assert not silence.any()
    playout.resume()
    playout.resume()
    assert cues + more + kinds(playout.pop(PACKET, 0.08)) == [(CueKind.SUSPENDED, "a"), (CueKind.CONTINUED, "a")]
    assert not playout.paused


def test_a_pause_that_is_taken_back_before_its_first_packet_is_not_heard() -> None:
    playout = buffer("a")
    level = playing(playout)
    playout.pause()
    playout.resume()
    packet = playout.pop(PACKET, 0.02)
    assert packet.samples.tolist() == level.tolist()
    assert packet.cues == ()


def test_a_pause_takes_back_the_packet_that_was_not_sent() -> None:
    playout = buffer("a", "b")
    playout.push("a", 0, pcm(10_000, PACKET + 100), 0.0, slack=INFINITE, final=True)
    playout.push("b", 0, pcm(20_000, PACKET), 0.0, slack=INFINITE, final=True)
    playout.pop(PACKET, 0.0)
    playout.pop(PACKET, 0.02)  # the end of a, the start of b: never sent
    playout.pause(unsent=True)
    assert (playout.heard("a"), playout.heard("b")) == (PACKET, 0)
    paused, cues = drain(playout, 0.02, 3)
    assert paused[0] > 9900
    assert not paused[100:].any()  # of b nothing was to be heard yet
    assert cues == [(CueKind.SUSPENDED, "a")]
    playout.resume()
    samples, cues = drain(playout, 0.08, 2)
    assert samples[100:].tolist() == [20_000] * PACKET + [0] * (PACKET - 100)
    assert cues == [
        (CueKind.CONTINUED, "a"),
        (CueKind.ENDED, "a"),
        (CueKind.STARTED, "b"),
        (CueKind.ENDED, "b"),
    ]


def test_chunks_are_taken_during_a_pause_and_neither_underruns_nor_lateness_are_counted() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(10_000, PACKET), 0.0, slack=0.02)
    playout.pop(PACKET, 0.0)  # all that there is
    playout.pause()
    paused, cues = drain(playout, 0.02, 50)
    assert playout.push("a", 0, pcm(10_000, 4 * PACKET), 1.0, slack=0.02)
    assert playout.buffered == pytest.approx(0.08)
    assert playout.lead == MIN_LEAD
    drain(playout, 1.02, 49)
    playout.resume()
    samples, more = drain(playout, 2.0, 3)
    assert not paused.any()
    assert samples[FADE:].tolist() == [10_000] * (3 * PACKET - FADE)
    assert cues + more == [(CueKind.SUSPENDED, "a"), (CueKind.CONTINUED, "a")]
    assert playout.push("a", 0, pcm(10_000), 2.05, slack=0.02)
    assert playout.lead == MIN_LEAD


def test_who_starved_before_a_pause_resumes_after_it_and_only_the_silence_outside_of_it_is_missed() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(10_000, PACKET + 80), 0.0, slack=1.0)
    _, cues = drain(playout, 0.0, 3)
    playout.pause()
    _, more = drain(playout, 0.06, 20)
    playout.push("a", 0, pcm(20_000, 1000), 0.5, slack=1.0)
    playout.resume()
    packet = playout.pop(PACKET, 0.5)
    assert cues + more == [(CueKind.STARTED, "a"), (CueKind.PAUSED, "a")]
    assert [(cue.kind, cue.missed_samples) for cue in packet.cues] == [(CueKind.RESUMED, 400 + PACKET)]
    assert packet.samples.tolist() == [20_000] * PACKET  # it came out of silence: no fade


def test_who_has_nothing_to_go_on_with_after_a_pause_starves() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(10_000, PACKET), 0.0, slack=1.0)
    playout.pop(PACKET, 0.0)
    playout.pause()
    playout.pop(PACKET, 0.02)
    playout.resume()
    assert kinds(playout.pop(PACKET, 0.04)) == [(CueKind.CONTINUED, "a"), (CueKind.PAUSED, "a")]
    playout.push("a", 0, pcm(20_000, PACKET), 0.06, slack=1.0)
    (cue,) = playout.pop(PACKET, 0.06).cues
    assert (cue.kind, cue.missed_samples) == (CueKind.RESUMED, PACKET)


def test_an_utterance_that_comes_during_a_pause_is_suspended_at_its_first_sample_and_starts_without_a_fade() -> None:
    playout = buffer()
    playout.pause()  # nothing plays
    silence, cues = drain(playout, 0.0, 2)
    playout.enqueue("a")
    _, more = drain(playout, 0.04, 1)
    assert cues + more == []
    playout.push("a", 0, pcm(10_000, PACKET), 0.05, slack=1.0)
    packet = playout.pop(PACKET, 0.06)
    assert [(cue.kind, cue.played_samples, cue.running) for cue in packet.cues] == [(CueKind.SUSPENDED, 0, False)]
    assert not silence.any()
    assert not packet.samples.any()
    playout.resume()
    packet = playout.pop(PACKET, 0.08)
    assert kinds(packet) == [(CueKind.STARTED, "a")]
    assert packet.samples.tolist() == [10_000] * PACKET


def test_a_first_packet_that_was_not_sent_is_taken_back_whole() -> None:
    playout = buffer("a")
    playing(playout)
    playout.pause(unsent=True)
    silence, cues = drain(playout, 0.0, 3)
    assert not silence.any()  # nobody had heard anything, so there is nothing to fade
    assert cues == [(CueKind.SUSPENDED, "a")]
    playout.resume()
    packet = playout.pop(PACKET, 0.06)
    assert kinds(packet) == [(CueKind.STARTED, "a")]
    assert packet.samples.tolist() == [10_000] * PACKET


def test_what_was_played_whole_ends_during_a_pause_and_what_follows_waits() -> None:
    playout = buffer("a", "b")
    playout.push("a", 0, pcm(10_000, PACKET), 0.0, slack=1.0)
    playout.push("b", 0, pcm(20_000, PACKET), 0.0, slack=INFINITE, final=True)
    playout.pop(PACKET, 0.0)
    playout.pause()
    _, cues = drain(playout, 0.02, 2)
    playout.end("a")
    _, more = drain(playout, 0.06, 2)
    assert cues + more == [(CueKind.SUSPENDED, "a"), (CueKind.ENDED, "a"), (CueKind.SUSPENDED, "b")]
    playout.resume()
    samples, cues = drain(playout, 0.1, 1)
    assert samples.tolist() == [20_000] * PACKET
    assert cues == [(CueKind.STARTED, "b"), (CueKind.ENDED, "b")]


def test_a_flush_during_a_pause_is_silent_at_once_and_ends_the_pause() -> None:
    playout = buffer("a", "b")
    playing(playout)
    playout.pause()
    drain(playout, 0.02, 2)
    assert playout.flush(1) == {"a": PACKET, "b": 0}
    assert not drain(playout, 0.06, 3)[0].any()
    playout.enqueue("c")
    playout.push("c", 1, pcm(20_000, PACKET), 0.1, slack=INFINITE, final=True)
    assert playout.pop(PACKET, 0.12).samples.tolist() == [20_000] * PACKET


def test_a_flush_before_the_pauses_first_packet_fades() -> None:
    playout = buffer("a")
    playing(playout)
    playout.pause()
    assert playout.flush(1) == {"a": PACKET}
    samples, cues = drain(playout, 0.02, 2)
    assert samples[0] > 9900
    assert not samples[FADE:].any()
    assert cues == []


@pytest.mark.parametrize("resumed", [False, True])
def test_a_flush_in_place_of_a_packet_that_was_popped_in_or_after_a_pause(resumed: bool) -> None:
    playout = buffer("a")
    playing(playout)
    playout.pause()
    if not resumed:
        playout.pop(PACKET, 0.02)  # the fade, never sent
        assert playout.flush(1, unsent=True) == {"a": PACKET}
        assert playout.pop(PACKET, 0.02).samples[0] > 9900
        return
    playout.pop(PACKET, 0.02)
    playout.resume()
    playout.pop(PACKET, 0.04)  # the fade-in, never sent
    assert playout.flush(1, unsent=True) == {"a": PACKET}
    assert not drain(playout, 0.04, 2)[0].any()


def test_a_pause_in_place_of_a_flushs_fade_gives_that_fade() -> None:
    playout = buffer("a")
    playing(playout)
    playout.flush(1)
    fade = playout.pop(PACKET, 0.02).samples  # never sent
    playout.pause(unsent=True)
    assert fade.any()
    assert playout.pop(PACKET, 0.02).samples.tolist() == fade.tolist()
    assert not playout.pop(PACKET, 0.04).samples.any()


def test_a_second_pause_before_the_first_fade_was_sent_fades_once() -> None:
    playout = buffer("a")
    playing(playout)
    playout.pause()
    fade = playout.pop(PACKET, 0.02).samples  # never sent
    playout.resume()
    playout.pause(unsent=True)
    packet = playout.pop(PACKET, 0.02)
    assert packet.samples.tolist() == fade.tolist()
    assert kinds(packet) == [(CueKind.SUSPENDED, "a")]
    assert not playout.pop(PACKET, 0.04).samples.any()


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


def level(number: int, positions: NDArray[np.int64]) -> PCM:
    """What utterance `number` has at the positions: tells both, and is loud enough to be seen under a fade."""
    return (2000 * (number % 8 + 1) + 1 + positions % 1999).astype(np.int16)


class Doubter(RuleBasedStateMachine):
    """A track that sends what it pops one step later, for a caller who pauses, resumes and interrupts at any time.

    What was sent is kept in pieces: of each sample, whose it is and at which position, or that a fade covers it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.playout, self.now, self.epoch, self.spoken = PlayoutBuffer(RATE), 0.0, 0, 0
        self.pushed: dict[int, int] = {}
        self.open: set[int] = set()
        self.sent: dict[int, int] = {}
        """How far each was heard, as the cues and the samples say."""
        self.ended: list[int] = []
        self.playing: int | None = None
        self.rise = 0
        self.silent_before = True
        self.ahead: Packet | None = None

    @rule()
    def ask(self) -> None:
        self.spoken += 1
        self.playout.enqueue(f"{self.spoken}")
        self.pushed[self.spoken], self.sent[self.spoken] = 0, 0
        self.open.add(self.spoken)

    @precondition(lambda self: self.open)
    @rule(data=st.data(), count=st.integers(0, 1500), slack=st.floats(-0.3, 1), final=st.booleans())
    def deliver(self, data: st.DataObject, count: int, slack: float, final: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        at = self.pushed[number]
        samples = level(number, np.arange(at, at + count))
        assert self.playout.push(f"{number}", self.epoch, samples, self.now, slack, final)
        self.pushed[number] += count
        if final:
            self.open.remove(number)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        self.playout.end(f"{number}")
        self.open.remove(number)

    @precondition(lambda self: self.pushed and self.epoch)
    @rule(data=st.data())
    def deliver_late(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.pushed)))
        assert not self.playout.push(f"{number}", self.epoch - 1, pcm(32_000), self.now, 0.0)

    @rule()
    def pop(self) -> None:
        if self.ahead is None:
            self.ahead = self.playout.pop(PACKET, self.now)

    @rule(packets=st.integers(1, 20))
    def send(self, packets: int) -> None:
        for _ in range(packets):
            packet = self.ahead or self.playout.pop(PACKET, self.now)
            self.ahead = None
            self.hear(packet)
            self.now += 0.02

    @rule()
    def pause(self) -> None:
        if not self.playout.paused:
            self.playout.pause(unsent=self.ahead is not None)
            self.ahead = None
        assert self.playout.paused

    @rule()
    def resume(self) -> None:
        self.playout.resume()

    @rule()
    def flush(self) -> None:
        self.epoch += 1
        told = self.playout.flush(self.epoch, unsent=self.ahead is not None)
        assert told == {f"{number}": count for number, count in self.sent.items() if number not in self.ended}
        self.ahead = None
        packet = self.playout.pop(PACKET, self.now)
        assert packet.cues == ()
        assert not packet.samples[FADE:].any()
        self.pushed, self.open, self.sent, self.ended = {}, set(), {}, []
        self.playing, self.rise = None, 0
        assert not self.playout.paused

    def hear(self, packet: Packet) -> None:
        """Follows the cues through the packet; every sample outside of a fade must be the next of its utterance."""
        at = 0
        for cue in packet.cues:
            begins = round((cue.at - packet.at) * RATE)
            self.follow(packet.samples[at:begins])
            at = begins
            assert cue.played_samples == self.sent[int(cue.utterance)]
            at += self.take_cue(cue, packet.samples[at:])
        self.follow(packet.samples[at:])
        assert packet.playing == (f"{self.playing}" if self.playing else None)

    def take_cue(self, cue: Cue, samples: PCM) -> int:
        """Returns how many samples the fade-out that begins with it covers."""
        number = int(cue.utterance)
        was = self.playing
        self.playing = number if cue.running else None
        self.rise = FADE if cue.kind is CueKind.CONTINUED else 0
        if cue.kind is CueKind.ENDED:
            self.ended.append(number)
        if cue.kind is not CueKind.SUSPENDED or was is None:
            return 0
        assert was == number
        again = level(number, self.sent[number] + np.arange(FADE))
        assert (samples[:FADE] <= again).all()
        return FADE

    def follow(self, samples: PCM) -> None:
        if self.playing is None:
            assert not samples.any()
            return
        at = self.sent[self.playing]
        expected = level(self.playing, np.arange(at, at + samples.size))
        rising, self.rise = min(self.rise, samples.size), max(0, self.rise - samples.size)
        assert (samples[:rising] <= expected[:rising]).all()
        assert samples[rising:].tolist() == expected[rising:].tolist()
        self.sent[self.playing] += samples.size

    @invariant()
    def no_position_goes_beyond_what_was_delivered(self) -> None:
        assert all(count <= self.pushed[number] for number, count in self.sent.items())

    def teardown(self) -> None:
        """Whatever happened: once everything has ended and nothing is paused, every sample is heard."""
        for number in list(self.open):
            self.playout.end(f"{number}")
        self.playout.resume()
        self.send(sum(self.pushed.values()) // PACKET + 4)
        assert self.sent == self.pushed
        assert sorted(self.ended) == sorted(self.pushed)


Doubter.TestCase.settings = settings(deadline=None, max_examples=80, stateful_step_count=40)
TestDoubter = Doubter.TestCase


# ---- text that is still being written ----


def test_a_silence_for_want_of_text_is_told_apart_and_holds_nobody_longer() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(9), 0.0, slack=INFINITE)
    lead = playout.lead
    _, cues = drain(playout, 0.0, 6)
    assert cues == [(CueKind.STARTED, "a"), (CueKind.PAUSED, "a")]
    playout.push("a", 0, pcm(9), 3.0, slack=INFINITE, text_late=True)
    packet = playout.pop(PACKET, 3.0)
    (resumed,) = packet.cues
    assert (resumed.kind, resumed.for_text) == (CueKind.RESUMED, True)
    assert playout.lead == lead, "the engine was not late"


def test_an_engine_that_is_late_with_text_at_hand_is_an_underrun_all_the_same() -> None:
    playout = buffer("a")
    playout.push("a", 0, pcm(9), 0.0, slack=INFINITE)
    lead, packets = playout.lead, [playout.pop(PACKET, 0.02 * n) for n in range(6)]
    assert [cue.for_text for packet in packets for cue in packet.cues] == [False, True]
    playout.push("a", 0, pcm(9), 0.2, slack=INFINITE)
    (resumed,) = playout.pop(PACKET, 0.2).cues
    assert (resumed.kind, resumed.for_text) == (CueKind.RESUMED, False)
    assert playout.lead > lead
