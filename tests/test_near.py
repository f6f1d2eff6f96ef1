"""agent/near.py: who is near is heard, who is behind is not, and nobody is left unheard for good."""

from __future__ import annotations

import numpy as np
import pytest
from sounds import clip, int16, level

from agent.ears import Listening
from agent.near import BEHIND_DB, Near, decibels
from agent.receive import Heard

FRAME = 0.032


def weighed(near: Near, frames: int, db: float, probability: float = 1.0, echo: float = 0.0) -> list[float]:
    return [near.weigh(probability, db, echo) for _ in range(frames)]


def test_the_first_voice_is_the_users_however_soft() -> None:
    near = Near(FRAME)
    assert weighed(near, 30, -50.0) == [1.0] * 30
    assert near.level_db == -50.0


def test_who_is_behind_is_no_speech_and_who_is_softer_still_is() -> None:
    near = Near(FRAME)
    weighed(near, 30, -24.0)
    assert weighed(near, 60, -24.0 - BEHIND_DB + 1) == [1.0] * 60
    weighed(near, 60, -24.0)
    quiet = weighed(near, 60, near.level_db - BEHIND_DB - 5)
    assert set(quiet[9:]) == {0.0}, "after what was loud has faded from memory"


def test_a_soft_sound_belongs_to_the_word_before_it() -> None:
    near = Near(FRAME)
    weighed(near, 30, -24.0)
    assert weighed(near, 8, -50.0, 0.6) == [0.6] * 8
    assert weighed(near, 2, -50.0, 0.6)[-1] == 0.0


def test_a_user_who_has_moved_away_is_heard_again() -> None:
    near = Near(FRAME)
    weighed(near, 30, -24.0)
    heard = weighed(near, round(10 / FRAME), -24.0 - BEHIND_DB - 5)
    assert heard[20] == 0.0 and heard[-1] == 1.0


def test_a_bump_against_the_microphone_makes_nobody_unheard() -> None:
    near = Near(FRAME)
    weighed(near, 30, -25.0)
    weighed(near, 2, -3.0)
    assert weighed(near, 60, -25.0) == [1.0] * 60


def test_who_speaks_up_is_the_user_all_the_same() -> None:
    """Somebody behind was heard first."""
    near = Near(FRAME)
    weighed(near, 30, -44.0)
    weighed(near, round(2 / FRAME), -24.0)
    assert set(weighed(near, 60, -44.0)[10:]) == {0.0}


def test_nothing_is_learnt_from_an_echo_nor_from_noise() -> None:
    near = Near(FRAME)
    weighed(near, 30, -10.0, echo=0.9)
    weighed(near, 30, -10.0, probability=0.3)
    assert near.level_db == -np.inf


def test_levels_are_of_full_scale() -> None:
    assert decibels(np.full(512, 16384, np.int16)) == pytest.approx(-6.02, abs=0.01)
    assert decibels(np.zeros(512, np.int16)) == -np.inf


@pytest.mark.parametrize(("gain_db", "heard"), [(-18.0, False), (-4.0, True)])
def test_a_voice_behind_the_user_is_no_evidence(gain_db: float, heard: bool) -> None:
    """Real clips through the real VAD: the user's sentence, then somebody else's."""
    user, other, still = clip("user"), clip("other"), np.zeros(8000)
    other = other / level(other) * level(user) * 10 ** (gain_db / 20)
    samples = int16(np.concatenate([user, still, other, still]))
    listening = Listening("silero", 24_000)
    starts = range(0, samples.size - 319, 320)
    judged = listening.listen([Heard(samples[at : at + 320], at, (at + 320) / 16_000, False) for at in starts])
    begins_at = (user.size + still.size) / 16_000
    share = np.mean([one.evidence > 0.5 for one in judged if begins_at < one.at < begins_at + other.size / 16_000])
    assert share > 0.8 if heard else share == 0.0
