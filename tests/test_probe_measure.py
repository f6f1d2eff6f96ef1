"""The figures of a recording are those that were written into it."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe_traces import (
    BUFFER,
    CODER,
    FIRST_AT,
    RATE,
    buffered,
    measured,
    packets,
    paired,
    recording,
    scenario,
    speech,
    talk,
)

from agent.probe.audible import by_chance, match, voice
from agent.probe.measure import Measures, measure, pacing
from agent.probe.recording import Packet, Pcm
from agent.probe.scenario import Cue, Step

BLOCK_MS = 10


def close(ms: float) -> object:
    """To the block, and the 20 ms for which speech that is cut rings in the coder."""
    return pytest.approx(ms, abs=4 * BLOCK_MS)


def padded(samples: Pcm, every: float, seconds: float) -> Pcm:
    """With so many seconds of zeros put in after every `every` seconds."""
    step, zeros = round(every * RATE), np.zeros(round(seconds * RATE), np.int16)
    return np.concatenate([part for at in range(0, samples.size, step) for part in (samples[at : at + step], zeros)])


# ---- when it was heard ------------------------------------------------------------------------------------------


def test_a_call_is_timed_from_its_dialling() -> None:
    made = recording(packets(talk(4, (101.0, speech()[:96_000]))))
    found = measured(made)
    assert (found.answered_ms, found.connected_ms) == (pytest.approx(100), pytest.approx(200))
    assert found.first_packet_ms == pytest.approx(300)
    assert found.first_audio_ms == close(1000 + 1000 * (BUFFER + CODER))
    assert found.buffer_ms == pytest.approx(1000 * BUFFER + 5)  # the middle of a packet's two blocks
    assert sum(span.seconds for span in found.spans) == pytest.approx(2.0, abs=0.05)


def test_nothing_is_known_of_a_call_that_never_was() -> None:
    found = measured(replace_failed())
    assert (found.first_packet_ms, found.first_audio_ms, found.buffer_ms, found.spans) == (None, None, None, ())
    assert found.pacing.packets == 0 and found.pacing.drift is None and found.gaps == ()


def replace_failed() -> object:
    made = recording([], ends_at=101.0)
    made.connected_at, made.failure = None, "refused"
    return made


def test_a_stop_and_an_answer_are_heard_where_they_are() -> None:
    """The agent speaks from 101.0 on, the user from 102.0 to 104.0; it stops at 102.3 and answers at 104.7."""
    made = recording(
        packets(talk(7, (101.0, speech()[: round(1.3 * RATE)]), (104.7, speech()[: 2 * RATE]))), ("over", 102.0, 104.0)
    )
    step = measured(made).of("over")
    assert step is not None and step.speaking and step.takeover
    assert step.stop_ms == close(300 + 1000 * (BUFFER + CODER))
    assert step.response_ms == close(700 + 1000 * (BUFFER + CODER))
    assert step.after_stop_ms == 0


def test_an_agent_that_goes_on_has_not_stopped_for_the_user() -> None:
    made = recording(packets(talk(7, (101.0, speech()[: 5 * RATE]))), ("over", 102.0, 103.0), ends_at=108.0)
    step = measured(made).of("over")
    assert step is not None and step.speaking
    assert step.stop_ms == close(4000 + 1000 * (BUFFER + CODER))
    assert step.response_ms is None


def test_who_is_not_spoken_over_is_answered() -> None:
    made = recording(packets(talk(7, (104.0, speech()[: RATE // 2]))), ("question", 101.0, 103.0))
    step = measured(made).of("question")
    assert step is not None and not step.speaking and step.stop_ms is None
    assert step.response_ms == close(1000 + 1000 * (BUFFER + CODER))
    assert not step.takeover, "half a second is a backchannel"


def test_sound_after_a_first_silence_is_told() -> None:
    parts = (101.0, speech()[: round(1.3 * RATE)]), (103.0, speech()[: round(0.4 * RATE)])
    step = measured(recording(packets(talk(7, *parts)), ("over", 102.0, 104.0))).of("over")
    assert step is not None and step.after_stop_ms == close(400)
    assert step.stop_ms == close(1400 + 1000 * (BUFFER + CODER))


def test_what_answers_the_next_sound_is_no_answer_to_this_one() -> None:
    made = recording(packets(talk(9, (105.0, speech()[:RATE]))), ("one", 101.0, 102.0), ("two", 103.0, 104.0))
    found = measured(made)
    one, two = found.of("one"), found.of("two")
    assert one is not None and two is not None
    assert one.response_ms is None and two.response_ms == close(1000 + 1000 * (BUFFER + CODER))


def test_an_echo_is_no_step_of_somebody() -> None:
    made = recording(packets(talk(4, (102.0, speech()[:RATE]))), ("echo", 100.5, 104.0))
    wanted = scenario(steps=[Step("echo", Cue("connected"), echo_db=-12.0)])
    assert measure(made, buffered(made.packets, made.ended_at), wanted).steps == ()


# ---- gaps -------------------------------------------------------------------------------------------------------


def late(some: list[Packet], since: float, seconds: float) -> list[Packet]:
    """A sender that stands still for a time, and then sends what is due."""
    return [replace(p, at=max(p.at, since + seconds)) if p.at >= since else p for p in some]


def test_what_comes_too_late_is_a_gap() -> None:
    found = measured(recording(late(packets(talk(6, (101.0, speech()[: 4 * RATE]))), 102.0, 0.2)))
    assert [gap.kind for gap in found.gaps] == ["concealed"]
    assert found.gaps[0].ms == close(200 - 1000 * BUFFER) and found.gaps[0].lost == 0
    assert found.gaps[0].at == pytest.approx(102.06, abs=0.02)


def test_what_the_network_lost_is_known_by_its_number() -> None:
    some = [p for p in packets(talk(6, (101.0, speech()[: 4 * RATE]))) if not 102.0 <= p.at < 102.1]
    found = measured(recording(some))
    assert [(gap.kind, gap.lost) for gap in found.gaps] == [("concealed", 5)] and found.gaps[0].ms == close(100)
    assert found.pacing.lost == 5 and found.pacing.wrong_timestamps == 0


def test_a_sender_that_pauses_with_its_timestamps_running_leaves_no_gap() -> None:
    """As DTX does: nothing is sent in a pause, and the numbers go on without a hole."""
    kept = [p for p in packets(talk(8, (101.0, speech()))) if not 104.94 < p.at < 105.18]
    first = kept[0].sequence
    some = [replace(p, sequence=(first + n) % 0x10000) for n, p in enumerate(kept)]
    found = measured(recording(some))
    assert found.gaps == () and found.pacing.wrong_timestamps == 0 and found.pacing.lost == 0


@pytest.mark.parametrize("ms", [40, 60, 100, 200])
def test_zeros_in_speech_are_padding(ms: int) -> None:
    """Of eleven, two fall on a pause: they cannot be heard."""
    samples = padded(speech(), 1.0, ms / 1000)
    found = measured(recording(packets(talk(samples.size / RATE + 1, (FIRST_AT + 0.6, samples)))))
    assert {gap.kind for gap in found.gaps} == {"zeros"}
    assert 9 <= len(found.gaps) <= 11
    assert sum(gap.ms for gap in found.gaps if gap.kind == "zeros") == pytest.approx(10 * ms, rel=0.2)


def test_one_long_pad_is_enough_and_one_short_one_is_not() -> None:
    for ms, count in ((120, 1), (40, 0)):
        samples = np.concatenate([speech()[: 2 * RATE], np.zeros(48 * ms, np.int16), speech()[2 * RATE : 4 * RATE]])
        assert len(measured(recording(packets(talk(6, (FIRST_AT + 0.6, samples))))).gaps) == count


def test_silence_for_a_user_is_no_padding() -> None:
    """An agent that stands still while somebody speaks, and goes on, sends zeros on purpose."""
    samples = padded(speech()[: 4 * RATE], 1.0, 0.2)
    some = packets(talk(6.5, (FIRST_AT + 0.6, samples)))
    assert len(measured(recording(some)).gaps) >= 2
    assert measured(recording(some, ("mhm", 101.7, 105.0))).gaps == ()


def test_closures_rarely_end_where_a_packet_begins() -> None:
    assert by_chance(3, 3) == pytest.approx(0.027)
    assert by_chance(0, 5) == pytest.approx(1.0) and by_chance(6, 20) > 0.5


@settings(max_examples=25, deadline=None)
@given(
    begins=st.lists(st.integers(0, 8 * RATE), min_size=1, max_size=3),
    pauses=st.lists(st.integers(0, RATE), min_size=3, max_size=3),
    loudness=st.sampled_from([0.05, 0.3, 1.0]),
    offset=st.integers(0, 959),
)
def test_a_perfect_stream_has_no_gaps(begins: list[int], pauses: list[int], loudness: float, offset: int) -> None:
    """Whatever is said with whatever pauses, quiet or loud, wherever packets begin in it; each part ends in a pause of
    the speaker's own or with a fade."""
    parts, at = list[tuple[float, Pcm]](), 101.0 + offset / RATE
    for begin, pause in zip(begins, pauses, strict=False):
        part = loudness * speech()[begin : begin + 2 * RATE]
        ramp = np.minimum(1.0, np.minimum(np.arange(part.size), np.arange(part.size)[::-1]) / (0.02 * RATE))
        parts.append((at, np.round(part * ramp).astype(np.int16)))
        at += 2.0 + pause / RATE
    found = measured(recording(packets(talk(at - FIRST_AT + 0.5, *parts))))
    assert found.gaps == () and found.pacing.wrong_timestamps == 0
    assert found.pacing.spread_ms is not None and found.pacing.spread_ms < 1e-3


# ---- pacing -----------------------------------------------------------------------------------------------------


def paced(seconds: float = 6.0, interval: float = 0.02) -> list[Packet]:
    return packets(talk(seconds, (101.0, speech()[: 2 * RATE])), interval=interval)


def test_a_steady_sender() -> None:
    found = pacing(paced())
    assert (found.packets, found.packet_ms, found.longest_ms, found.long_packets) == (300, 20.0, 20.0, 0)
    assert (found.lost, found.reordered, found.wrong_timestamps) == (0, 0, 0)
    assert found.timestamp_ms == 20.0 and pacing(paced()[:1]).timestamp_ms is None
    assert found.between_p99_ms == pytest.approx(20) == found.between_max_ms
    assert found.rate == pytest.approx(1.0) and found.drift is not None and abs(found.drift.ppm) < 1e-3


def test_packets_of_40_ms() -> None:
    found = pacing(paired(paced()))
    assert (found.packet_ms, found.longest_ms, found.long_packets) == (40.0, 40.0, 150)
    assert found.wrong_timestamps == 0 and found.between_p99_ms == pytest.approx(40)
    assert found.timestamp_ms == 40.0


def test_packets_that_are_lost_twice_there_and_out_of_order() -> None:
    some = paced()
    some[10], some[11] = replace(some[11], at=some[10].at), replace(some[10], at=some[11].at)
    found = pacing([*some[:100], *some[102:150], some[149], *some[150:]])
    assert (found.lost, found.reordered) == (2, 1) and found.wrong_timestamps == 0


def test_timestamps_that_stand_still() -> None:
    some = [replace(p, timestamp=(p.timestamp - 960 * (n % 2)) % 2**32) for n, p in enumerate(paced())]
    assert pacing(some).wrong_timestamps == 150, "every other one is that of the packet before"


@pytest.mark.parametrize("ppm", [-5000, -800, 700, 5000])
def test_drift_is_measured_through_jitter(ppm: int) -> None:
    rng = np.random.default_rng(1)
    some = [replace(p, at=p.at + rng.exponential(0.005)) for p in paced(10.0, interval=0.02 * (1 + ppm / 1e6))]
    drift = pacing(sorted(some, key=lambda p: p.at)).drift
    assert drift is not None and drift.ppm == pytest.approx(ppm, abs=150)
    assert drift.least <= ppm <= drift.most and drift.most - drift.least < 400


def test_a_stall_is_no_drift() -> None:
    for since, seconds in ((103.0, 0.2), (108.0, 0.3)):
        drift = pacing(late(paced(10.0), since, seconds)).drift
        assert drift is not None and abs(drift.ppm) < 100


def test_a_sender_that_stays_late_has_no_certain_drift() -> None:
    drift = pacing([replace(p, at=p.at + 0.1 * (p.at > 104.0)) for p in paced(10.0)]).drift
    assert drift is not None and drift.least < 500


def test_no_drift_is_told_of_less_than_five_seconds() -> None:
    assert pacing(paced(4.0)).drift is None


def test_an_unpaced_sender_has_a_rate_and_no_drift() -> None:
    found = pacing(paced(10.0, interval=0.01))
    assert found.rate == pytest.approx(2.0, rel=0.01) and found.drift is None


# ---- what was sent ----------------------------------------------------------------------------------------------


def test_a_voice_is_put_in_order_and_knows_when_it_came() -> None:
    some = paced()
    straight = voice(some)
    shuffled = voice([*some[:50], some[51], some[50], *some[52:], some[299]])
    assert np.array_equal(straight.samples, shuffled.samples) and len(shuffled.packets) == 300
    assert straight.block_at[:3] == pytest.approx([FIRST_AT, FIRST_AT + 0.01, FIRST_AT + 0.02])
    assert straight.sample_of(FIRST_AT + 0.03) == 1920 and straight.at(1930) == pytest.approx(
        FIRST_AT + 0.04 + 10 / RATE
    )


def test_a_sound_is_found_where_it_is() -> None:
    heard = voice(packets(talk(4, (FIRST_AT, speech()[RATE : 3 * RATE])))).samples
    found = match(heard[RATE // 2 : RATE], speech())
    assert found.place == pytest.approx(RATE + RATE // 2 - CODER * RATE, abs=5) and found.alike > 0.9
    assert match(np.random.default_rng(0).integers(-900, 900, RATE).astype(np.int16), speech()).alike < 0.3
    assert match(np.zeros(RATE, np.int16), speech()).alike == 0.0


def test_measures_are_found_by_their_step() -> None:
    found: Measures = measured(recording(paced(), ("a", 101.0, 101.5)))
    assert found.of("a") is found.steps[0] and found.of("b") is None
