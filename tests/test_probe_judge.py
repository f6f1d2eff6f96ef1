"""Each fault is found by its name and at its size, what only looks like one is not, and expectations hold or do not."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from probe_traces import (
    BUFFER,
    CODER,
    FIRST_AT,
    RATE,
    buffered,
    judged,
    names,
    packets,
    paired,
    recording,
    sizes,
    speech,
    talk,
)

from agent.probe.findings import FINDINGS
from agent.probe.judge import Finding, Held, Verdict
from agent.probe.recording import Packet, Pcm
from agent.probe.scenario import Cue, Expectation, Step

HEARD = 1000 * (BUFFER + CODER)


@dataclass(frozen=True, slots=True)
class Said:
    """What a server claims."""

    at: float
    kind: str
    heard_ms: float | None = None
    text: str | None = None


def sized(ms: float) -> object:
    return pytest.approx(ms, rel=0.2)


def only(verdict: Verdict, name: str) -> Finding:
    assert names(verdict) == [name] and name in FINDINGS
    return verdict.findings[0]


def reply(seconds: float = 4.0, begin: float = 0.0) -> Pcm:
    return speech()[round(begin * RATE) : round((begin + seconds) * RATE)]


def spoken_over(stop: float = 0.3, answer: float = 104.7) -> list[Packet]:
    """The agent speaks from 101.0 on, the user from 102.0 to 104.0; it stops after `stop`, and answers."""
    return packets(talk(8, (101.0, reply(1.0 + stop)), (answer, reply(2.0, 2.0))))


OVER = ("over", 102.0, 104.0)
STOPS = Expectation("stops", "over", 1000.0)
ANSWERS = Expectation("answers", "over", 3000.0)


# ---- findings -----------------------------------------------------------------------------------------------------


def test_a_perfect_server_has_nothing_wrong() -> None:
    claims = [Said(101.0, "started"), Said(102.3, "stopped", 1280.0), Said(102.31, "heard"), Said(104.7, "started")]
    verdict = judged(recording(spoken_over(), OVER), STOPS, ANSWERS, Expectation("absent", absent="any"), claims=claims)
    assert verdict.findings == () and [each.held for each in verdict.held] == [True, True, True]


def test_padding_with_zeros() -> None:
    step = round(0.8 * RATE)
    parts = [(speech()[at : at + step], np.zeros(48 * 60, np.int16)) for at in range(0, speech().size, step)]
    samples = np.concatenate([piece for pair in parts for piece in pair])
    found = only(judged(recording(packets(talk(16, (FIRST_AT + 0.6, samples))))), "zero_padding")
    audible = sum(
        np.abs(one[0][-960:]).max() > 98 and np.abs(other[0][:960]).max() > 98 for one, other in pairwise(parts)
    )
    assert found.size == sized(60.0 * audible) and found.unit == "ms"


def test_packets_of_40_ms() -> None:
    found = only(judged(recording(paired(packets(talk(8, (101.0, reply(6.0))))))), "long_packets")
    assert (found.size, found.unit) == (40.0, "ms")


def test_sound_after_the_server_says_that_it_stopped() -> None:
    made = recording(spoken_over(stop=0.6), OVER)
    claims = [Said(101.0, "started"), Said(102.3, "stopped"), Said(104.7, "started")]
    found = only(judged(made, STOPS, claims=claims), "late_stop")
    assert found.size == sized(300.0) and (found.step, found.at) == ("over", 102.3)


def test_sound_after_it_was_to_stop() -> None:
    found = only(judged(recording(spoken_over(stop=1.3), OVER), STOPS), "late_stop")
    assert found.size == sized(300.0 + HEARD) and found.at == pytest.approx(103.0)


def test_the_next_utterance_is_no_late_stop() -> None:
    """One ends while the next is already said, and its end is told before or after the other's beginning."""
    made = recording(packets(talk(8, (101.0, reply(6.0)))))
    for order in (("started", "stopped"), ("stopped", "started")):
        claims = [Said(101.0, "started"), *(Said(103.0 + 0.001 * n, kind) for n, kind in enumerate(order))]
        assert names(judged(made, claims=[*claims, Said(107.05, "stopped")])) == []


def test_a_stop_at_the_replys_own_end_is_none_too_late() -> None:
    made = recording(packets(talk(8, (101.0, reply(4.0)))))
    assert names(judged(made, claims=[Said(101.0, "started"), Said(104.98, "stopped", 4000.0)])) == []


def test_old_sound_behind_a_stop() -> None:
    parts = (101.0, reply(1.3)), (103.0, reply(0.4, 1.3)), (104.7, reply(2.0, 2.0))
    claims = [Said(101.0, "started"), Said(102.3, "stopped"), Said(104.7, "started")]
    made = recording(packets(talk(8, *parts)), OVER)
    found = only(judged(made, STOPS, claims=claims), "stale_audio")
    assert found.size == sized(400.0) and found.step == "over"
    assert names(judged(made, STOPS)) == ["stale_audio"], "by the silence alone"


def test_old_sound_before_the_answer_is_said_to_begin() -> None:
    parts = (101.0, reply(1.3)), (104.4, reply(0.4, 1.3)), (105.5, reply(2.0, 2.0))
    claims = [Said(101.0, "started"), Said(102.3, "stopped"), Said(105.5, "started")]
    found = only(judged(recording(packets(talk(9, *parts)), OVER), STOPS, claims=claims), "stale_audio")
    assert found.size == sized(400.0)


def test_old_sound_as_the_answers_beginning_is_known_by_the_reference() -> None:
    answer = np.concatenate([reply(0.6, 1.3), reply(2.0, 8.0)])
    made = recording(packets(talk(9, (99.0, reply(0.1)), (101.0, reply(1.3)), (104.7, answer))), OVER)
    made.said.insert(0, replace(made.said[0], step="question", begins_at=100.3, samples=np.ones(RATE // 4, np.int16)))
    found = only(judged(made, STOPS, reference=reply(6.0)), "stale_audio")
    assert found.size == sized(600.0)
    assert names(judged(made, STOPS)) == [], "without it, it is an answer as any other"


def test_a_clock_that_is_slow_or_fast() -> None:
    for ppm in (5000, -5000):
        some = packets(talk(10, (101.0, reply(8.0))), interval=0.02 * (1 + ppm / 1e6))
        found = only(judged(recording(some)), "clock_drift")
        assert (found.size, found.unit) == (sized(ppm), "ppm")


def test_a_little_drift_is_a_clock() -> None:
    assert names(judged(recording(packets(talk(10, (101.0, reply(8.0))), interval=0.02 * 1.0001)))) == []


@pytest.mark.parametrize("ms", [30, 80, 250, 600])
def test_a_reply_without_its_beginning(ms: int) -> None:
    made = recording(packets(talk(6, (102.0, reply(4.0, ms / 1000)))), ("question", 100.5, 101.5))
    found = only(judged(made, reference=reply(6.0)), "cut_start")
    assert found.size == pytest.approx(ms, abs=6) and found.at == pytest.approx(102.0, abs=0.03)


def test_a_reply_with_its_beginning_or_of_other_words_is_not_cut() -> None:
    made = recording(packets(talk(6, (102.0, reply(3.0)))), ("question", 100.5, 101.5))
    assert names(judged(made, reference=np.concatenate([np.zeros(9600, np.int16), reply(6.0)]))) == []
    assert names(judged(made, reference=reply(3.0, 8.0))) == []


def stalled(some: list[Packet], since: float, seconds: float) -> list[Packet]:
    return [replace(p, at=max(p.at, since + seconds)) if p.at >= since else p for p in some]


def test_packets_that_come_too_late() -> None:
    verdict = judged(recording(stalled(packets(talk(12, (101.0, reply(8.0)))), 102.0, 0.3)))
    found = next(each for each in verdict.findings if each.name == "gap")
    assert found.size == sized(300 - 1000 * BUFFER) and not found.network


def test_a_network_that_lost_packets_is_not_the_server() -> None:
    some = [p for p in packets(talk(6, (101.0, reply(4.0)))) if not 102.0 <= p.at < 102.1]
    verdict = judged(recording(some), Expectation("absent", absent="any"))
    found = only(verdict, "gap")
    assert found.network and found.size == sized(100.0) and "the network lost 5 packets" in found.text
    assert verdict.held[0].held is True


def test_a_gap_right_behind_a_loss_is_the_networks() -> None:
    some = [p for n, p in enumerate(packets(talk(6, (101.0, reply(4.0))))) if n != 90]
    out = replace(buffered(some, 107.0), concealed=buffered(some, 107.0).concealed.copy())
    first = int(np.flatnonzero(out.concealed)[0])
    out.concealed[first + 4 : first + 6] = True  # guessed again, two packets later
    assert [(each.name, each.network) for each in judged(recording(some), heard=out).findings] == [("gap", True)]


def test_packets_out_of_pace() -> None:
    some = packets(talk(10, (101.0, reply(8.0))))
    swinging = [replace(p, at=p.at + 0.05 * (n // 25 % 2)) for n, p in enumerate(some)]
    found = only(judged(recording(swinging)), "irregular_pacing")
    assert found.size == sized(50.0)
    assert "does not pace" in only(judged(recording(packets(talk(10), interval=0.004))), "irregular_pacing").text


def test_a_little_jitter_is_none() -> None:
    rng = np.random.default_rng(3)
    some = [replace(p, at=p.at + rng.uniform(0, 0.015)) for p in packets(talk(10, (101.0, reply(8.0))))]
    assert names(judged(recording(some))) == []


def test_timestamps_that_count_the_wrong_clock() -> None:
    """24000 a second, as the samples that went in."""
    some = [replace(p, timestamp=480 * n) for n, p in enumerate(packets(talk(6)))]
    found = only(judged(recording(some), heard=buffered(packets(talk(6)), 107.0)), "wrong_timestamps")
    assert found.size == 299


def test_more_heard_than_came_out() -> None:
    made = recording(spoken_over(), OVER)
    claims = [Said(101.0, "started"), Said(102.32, "stopped", 2800.0), Said(102.33, "heard", 2800.0)]
    verdict = judged(made, STOPS, claims=[*claims, Said(104.7, "started")])
    assert names(verdict) == ["overclaimed_heard"] * 2
    assert verdict.findings[0].size == sized(1500.0)
    assert verdict.claimed_over_ms == (sized(1500.0), sized(1500.0))


def test_silence_at_the_end_may_be_claimed() -> None:
    made = recording(packets(talk(8, (101.0, reply(4.0)))))
    assert names(judged(made, claims=[Said(101.0, "started"), Said(105.6, "stopped", 4600.0)])) == []


def test_no_answer() -> None:
    made = recording(packets(talk(6)), ("over", 101.0, 102.0))
    verdict = judged(made, ANSWERS)
    found = only(verdict, "no_answer")
    assert found.size == pytest.approx(1000 * (made.ended_at - 102.0)) and verdict.held[0].held is False


def test_a_lost_call() -> None:
    made = recording([], ends_at=101.5)
    made.connected_at, made.failure = None, "503 busy"
    verdict = judged(made, ANSWERS, STOPS, Expectation("absent", absent="lost_call"))
    found = only(verdict, "lost_call")
    assert (found.size, found.unit) == (pytest.approx(1.5), "s") and "503 busy" in found.text
    assert [each.held for each in verdict.held] == [None, None, False] and "503 busy" in verdict.held[0].text


def test_quiet_speech_and_pauses_are_no_fault() -> None:
    quiet = np.round(0.03 * speech()).astype(np.int16)
    assert names(judged(recording(packets(talk(14, (101.0, quiet)))))) == []


# ---- expectations -------------------------------------------------------------------------------------------------


def held(made: object, kind: str, within: float, **known: object) -> Held:
    verdict = judged(made, Expectation(kind, "over", within), **known)  # type: ignore[arg-type]
    return verdict.held[0]


def test_answers() -> None:
    made = recording(spoken_over(), OVER)
    assert held(made, "answers", 1000.0).held is True and held(made, "answers", 700.0).held is False
    assert held(made, "answers", 1000.0).got_ms == pytest.approx(700 + HEARD, abs=20)
    went_on = recording(packets(talk(8, (101.0, reply(6.5)))), OVER)
    assert held(went_on, "answers", 3000.0).held is False


def test_who_speaks_first_answers_the_call() -> None:
    expected = Expectation("answers", "", 1000.0)
    for at, within in ((101.0, True), (102.0, False)):
        verdict = judged(recording(packets(talk(5, (at, reply(2.0))))), expected)
        assert verdict.held[0].held is within
    assert names(judged(recording(packets(talk(5))), expected)) == ["no_answer"]


def test_stops() -> None:
    assert held(recording(spoken_over(0.3), OVER), "stops", 400.0).held is True
    late = held(recording(spoken_over(0.6), OVER), "stops", 400.0)
    assert late.held is False and late.got_ms == pytest.approx(600 + HEARD, abs=40)
    silent = recording(packets(talk(8, (105.0, reply(2.0)))), OVER)
    assert held(silent, "stops", 400.0).held is None, "an agent that had done speaking cannot stop"
    again = recording(packets(talk(8, (101.0, reply(1.3)), (103.2, reply(0.4)))), OVER)
    assert held(again, "stops", 1000.0).held is False, "for as long as the user's sound goes on"


def test_waits() -> None:
    said = ("over", 101.0, 102.0), ("rest", 103.0, 104.0)
    assert held(recording(packets(talk(8, (105.0, reply(2.0)))), *said), "waits", 0.0).held is True
    rash = held(recording(packets(talk(8, (102.5, reply(0.4)))), *said), "waits", 0.0)
    assert rash.held is False and rash.got_ms == pytest.approx(400, abs=40)
    assert held(recording(packets(talk(8, (102.5, reply(0.4)))), *said), "waits", 500.0).held is True


ASKED = ("question", 100.4, 100.8)
MHM = ("over", 102.0, 102.3)


def test_continues() -> None:
    went_on = recording(packets(talk(8, (101.0, reply(6.0)))), ASKED, MHM)
    assert held(went_on, "continues", 1500.0).held is True
    fell_silent = recording(packets(talk(8, (101.0, reply(1.4)))), ASKED, MHM)
    assert held(fell_silent, "continues", 1500.0).held is None, "it might have been the reply's own end"
    assert held(fell_silent, "continues", 1500.0, reference=reply(6.0)).held is False
    assert held(fell_silent, "continues", 1500.0, reference=reply(1.4)).held is True
    assert held(fell_silent, "continues", 1500.0, claims=[Said(102.4, "stopped")]).held is False
    paused = recording(packets(talk(12, (101.0, reply(1.4)), (104.2, reply(4.0, 1.4)))), ASKED, MHM)
    assert held(paused, "continues", 500.0).held is False
    nobody = recording(packets(talk(8, (106.0, reply(1.0)))), ASKED, MHM)
    assert held(nobody, "continues", 500.0).held is None


def test_continues_through_its_own_echo() -> None:
    steps = [Step("over", Cue("connected"), echo_db=-12.0), Step("question", Cue("connected"), "question")]
    expected = Expectation("continues", "over", 1500.0)
    for seconds, right in ((6.0, True), (0.5, False)):
        made = recording(packets(talk(10, (102.0, reply(seconds)))), ("question", 100.5, 101.5))
        claims = [] if right else [Said(102.5, "stopped")]
        assert judged(made, expected, steps=steps, claims=claims).held[0].held is right


def test_resumes() -> None:
    def pausing(since: float, begin: float) -> object:
        return recording(packets(talk(12, (101.0, reply(1.4)), (since, reply(4.0, begin)))), ASKED, MHM)

    taken = held(pausing(103.0, 1.4), "resumes", 1500.0)
    assert taken.held is True and taken.assumed, "nobody knows the reply"
    elsewhere = held(pausing(103.0, 1.4), "resumes", 1500.0, reference=reply(2.0, 8.0))
    assert elsewhere.held is True and elsewhere.assumed, "the reference has another"
    assert held(pausing(105.0, 1.4), "resumes", 1500.0).held is False
    known = held(pausing(103.0, 1.4), "resumes", 1500.0, reference=reply(8.0))
    assert known.held is True and not known.assumed
    another = held(pausing(103.0, 8.0), "resumes", 1500.0, reference=reply(6.0))
    assert another.held is False and "not with what comes next" in another.text
    never = recording(packets(talk(12, (101.0, reply(1.4)))), ASKED, MHM)
    assert held(never, "resumes", 1500.0).held is False
    assert held(never, "resumes", 1500.0, reference=reply(1.4)).held is None, "at the reply's own end"
    went_on = recording(packets(talk(12, (101.0, reply(6.0)))), ASKED, MHM)
    assert held(went_on, "resumes", 1500.0).got_ms == 0.0


def test_absent() -> None:
    some = paired(packets(talk(8, (101.0, reply(6.0)))))
    verdict = judged(recording(some), *(Expectation("absent", absent=name) for name in ("any", "long_packets", "gap")))
    assert [each.held for each in verdict.held] == [False, False, True]
    assert verdict.held[0].text == "found: long_packets 40 ms"


def test_a_step_that_was_never_said_is_not_judged() -> None:
    made = recording(packets(talk(6, (101.0, reply(3.0)))))
    made.missed.append("over")
    verdict = judged(made, STOPS, ANSWERS)
    assert [each.held for each in verdict.held] == [None, None] and "never said" in verdict.held[0].text
    assert sizes(verdict) == {}
