"""The probe's figures against what the agent itself wrote down: how far off are they?

The agents are tests/faulty_agent.py's; both sides read one monotonic clock, and calls that the machine disturbed are
made again. What the listener's buffer adds is the model's own business (tests/test_probe_neteq.py): here it is taken
from where the packet in question came out of it.
"""

from __future__ import annotations

import numpy as np
import pytest
from faulty_agent import AUDIBLE, RATE, Sent, Trial, Wanted, perfect, trials, way

WITHIN = 0.0105
"""Seconds: a block of the probe's, see agent/probe/measure.py, and what rounds."""
CLOCKS = 0.001
"""Seconds: who sends reads the monotonic clock, the kernel notes arrivals by the wall clock, which is steered."""
STOP_WITHIN_MS = 10.0
"""That a stop latency may be off by: a block. In which one a packet came out is known by its arrival, not where in
it that packet begins: wherever that is, what is measured in whole blocks is off by less than one."""
LEAVING_SECONDS = 0.1
"""From an onset that the agent noticed, until its last audible packets have left: one that fades, and what rings."""
HEARD_MS = {"wait": 80, "stop": 180, "no": 80, "cough": 60}
"""From a sound's beginning to the end of the third loud 20 ms in a row, which is when the agent notices it."""


@pytest.fixture(scope="module")
def told() -> dict[Wanted, Trial]:
    return trials(perfect())


def of(told: dict[Wanted, Trial], scenario: str) -> Trial:
    return next(trial for trial in told.values() if trial.scenario.name == scenario)


def comes_out(trial: Trial, sent: Sent) -> float:
    """When the first block that begins with a sample of this packet left the listener's buffer: the packet's own first
    sample is in it, or up to 10 ms earlier in the block before."""
    came = next(packet.at for packet in trial.recording.packets if packet.sequence == sent.sequence)
    delay = trial.heard.delay.astype(np.float64)
    at = trial.heard.begins_at + 0.01 * np.arange(delay.size)
    apart = np.abs(at - delay - came)
    return float(at[apart < np.nanmin(apart) + 0.001][0])


def first_loud(trial: Trial, since: float) -> float:
    """When the first audible sample behind an instant came out of the buffer."""
    first = max(0, round((since - trial.heard.begins_at) * RATE))
    samples = np.flatnonzero(np.abs(trial.heard.samples[first:].astype(np.int32)) > AUDIBLE)
    return trial.heard.at(first + int(samples[0]))


def begins(trial: Trial, since: float) -> float:
    """When the first audible sample behind this instant came out: as the agent sent it, and as the buffer has it."""
    sent = next(one for one in trial.truth.sent if one.audible and one.at >= since)
    assert sent.audible
    heard = first_loud(trial, since)
    assert -WITHIN < heard - (comes_out(trial, sent) + sent.audible[0]) < 0.003, trial.says
    return heard


def stop_error_ms(trial: Trial, step: str) -> float | None:
    """The measured stop latency less the true one, which is by the agent's own notes of the last audible packet that it
    sent for this sound, and of where in it sound ends; None where it was silent already, or noticed nobody."""
    measured = trial.measures.of(step)
    if measured is None or measured.stop_ms is None:
        return None
    noticed = [at for at in trial.truth.onsets if measured.begins_at < at < measured.ends_at]
    before = [one for one in trial.truth.sent if one.audible and noticed and one.at <= noticed[0] + LEAVING_SECONDS]
    last = before[-1] if before else None
    if last is None or last.audible is None:
        return None
    true_at = comes_out(trial, last) + last.audible[1]
    return measured.stop_ms - 1000 * (true_at - measured.begins_at)


def stop_errors_ms(trial: Trial) -> list[tuple[str, float]]:
    """The same of every step that the agent is to stop for, each with its name."""
    stops = [one.of for one in trial.scenario.expect if one.kind == "stops"]
    return [(step, error) for step in stops if (error := stop_error_ms(trial, step)) is not None]


def test_every_packet_that_was_sent_is_in_the_recording_at_the_instant_at_which_it_came(
    told: dict[Wanted, Trial],
) -> None:
    for trial in told.values():
        late = way(trial.recording, trial.truth)
        assert late.min() >= -CLOCKS and float(np.median(late)) < WITHIN, trial.says
        first = trial.truth.sent[0].sequence
        came = [(packet.sequence - first) % 2**16 for packet in trial.recording.packets]
        assert came == list(range(came[0], came[0] + len(came))), trial.says
        assert came[0] <= 2, "but for packets that are sent before the probe's side of DTLS is up"


def test_connecting_takes_what_it_takes_the_agent(told: dict[Wanted, Trial]) -> None:
    for trial in told.values():
        recording, truth, measures = trial.recording, trial.truth, trial.measures
        assert truth.connected_at is not None and measures.connected_ms is not None and measures.answered_ms is not None
        connected = recording.dialled_at + measures.connected_ms / 1000
        assert connected == pytest.approx(truth.connected_at, abs=WITHIN), trial.says
        answered = recording.dialled_at + measures.answered_ms / 1000
        assert 0 <= answered - truth.answered_at < WITHIN, trial.says


def test_the_first_packet_and_the_first_sound_are_the_agents(told: dict[Wanted, Trial]) -> None:
    for trial in told.values():
        recording, measures = trial.recording, trial.measures
        assert measures.first_packet_ms is not None and measures.first_audio_ms is not None
        first = next(one for one in trial.truth.sent if one.sequence == recording.packets[0].sequence)
        assert 0 <= recording.dialled_at + measures.first_packet_ms / 1000 - first.at < 2 * WITHIN, trial.says
        expected = begins(trial, recording.dialled_at)
        assert recording.dialled_at + measures.first_audio_ms / 1000 == pytest.approx(expected, abs=WITHIN), trial.says


STOPS = [
    ("interruption", "interruption"),
    ("at_the_first_word", "again"),
    ("double_interruption", "first"),
    ("cough", "cough"),
]


@pytest.mark.parametrize(("scenario", "step"), STOPS)
def test_a_stop_is_where_the_last_audible_packet_ends_at_the_listener(
    told: dict[Wanted, Trial], scenario: str, step: str
) -> None:
    trial = of(told, scenario)
    error = stop_error_ms(trial, step)
    assert error is not None and abs(error) <= STOP_WITHIN_MS, f"{error} ms\n{trial.says}"


def test_so_it_is_wherever_the_agent_is_to_stop(told: dict[Wanted, Trial]) -> None:
    errors = [(trial.scenario.name, step, error) for trial in told.values() for step, error in stop_errors_ms(trial)]
    assert len(errors) >= 3
    assert max(abs(error) for *_, error in errors) <= STOP_WITHIN_MS, errors


ANSWERS = [
    ("question", "question"),
    ("interruption", "question"),
    ("interruption", "interruption"),
    ("at_the_last_word", "interruption"),
    ("double_interruption", "second"),
    ("before_the_first_word", "again"),
    ("hesitation", "rest"),
    ("side_talk", "question"),
    ("echo", "question"),
    ("background_noise", "question"),
]


@pytest.mark.parametrize(("scenario", "step"), ANSWERS)
def test_a_response_is_where_the_first_audible_packet_of_the_answer_begins_at_the_listener(
    told: dict[Wanted, Trial], scenario: str, step: str
) -> None:
    trial = of(told, scenario)
    measured = trial.measures.of(step)
    assert measured is not None and measured.response_at is not None, trial.says
    expected = begins(trial, measured.ends_at)
    assert measured.response_at == pytest.approx(expected, abs=WITHIN), trial.says
    assert measured.response_ms == pytest.approx(1000 * (expected - measured.ends_at), abs=1000 * WITHIN)


@pytest.mark.parametrize(
    ("scenario", "step"), [*STOPS, ("at_the_last_word", "interruption")], ids=lambda value: str(value)
)
def test_a_sound_begins_when_it_is_said_to(told: dict[Wanted, Trial], scenario: str, step: str) -> None:
    """The agent notices a sound so many packets after it began: these were on their way for a moment only."""
    trial = of(told, scenario)
    said = next(one for one in trial.recording.said if one.step == step)
    sound = next(one.sound for one in trial.scenario.steps if one.name == step)
    noticed = min(at for at in trial.truth.onsets if at > said.begins_at)
    assert -WITHIN / 2 < noticed - said.begins_at - HEARD_MS[sound] / 1000 < 2 * WITHIN, trial.says


def test_resuming_is_measured_from_the_end_of_the_cough(told: dict[Wanted, Trial]) -> None:
    trial = of(told, "cough")
    measured = trial.measures.of("cough")
    assert measured is not None and measured.response_ms is not None, trial.says
    expected = begins(trial, measured.ends_at)
    assert measured.response_ms == pytest.approx(1000 * (expected - measured.ends_at), abs=1000 * WITHIN)
