"""The echo guard on the agent's own voice, through simulated loudspeakers and rooms, with and without a user."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from sounds import SAMPLE_RATE, Wave, clip, echo_of, int16, level, noise, placed, room

from agent.echo import EchoGuard

FRAME = 512
FAR_RATE = 24_000
SECONDS = 8.0
FAR = clip("agent")[: round(SECONDS * SAMPLE_RATE)]
Likelihoods = NDArray[np.float64]


def heard(
    near: Wave, far: Wave | None = None, guard: EchoGuard | None = None, rate: int = FAR_RATE, jitter: float = 0.0
) -> Likelihoods:
    """The likelihood of every frame of the microphone, while the clip is sent in packets of 20 ms."""
    guard = guard or EchoGuard(rate)
    sent = clip("agent", rate) if far is None else far
    rng, size, position, found = np.random.default_rng(0), rate // 50, 0, []
    for start in range(0, near.size - FRAME + 1, FRAME):
        at = 50.0 + (start + FRAME) / SAMPLE_RATE
        while 50.0 + (position + size) / rate <= at:
            packet = int16(sent[position : position + size])
            guard.sent(packet, 50.0 + position / rate + rng.uniform(-jitter, jitter))
            position += size
        found.append(guard.likelihood(int16(near[start : start + FRAME]), at))
    return np.array(found)


def loud(wave: Wave) -> NDArray[np.bool_]:
    """The frames that are above a fifth of a wave's level."""
    frames = wave[: wave.size // FRAME * FRAME].reshape(-1, FRAME)
    return np.asarray(np.sqrt((frames**2).mean(axis=1)) > 0.2 * level(wave))


def delayed(wave: Wave, seconds: float) -> Wave:
    return np.concatenate([np.zeros(round(seconds * SAMPLE_RATE)), wave])[: wave.size]


def settled(size: int, after: float = 1.0) -> NDArray[np.bool_]:
    return np.arange(size) * FRAME / SAMPLE_RATE > after


@pytest.mark.parametrize("decibels", [-6, -12, -20])
@pytest.mark.parametrize("delay", [0.04, 0.2, 0.4])
def test_the_agents_own_voice_is_recognised_within_half_a_second(decibels: float, delay: float) -> None:
    echo = delayed(echo_of(FAR, decibels, room()), delay)
    guard = EchoGuard(FAR_RATE)
    found = heard(echo + noise(SECONDS), guard=guard)
    mask = loud(echo) & settled(found.size, delay + 0.5)
    assert found[mask].mean() > 0.95
    assert (found[mask] < 0.5).mean() < 0.02
    assert guard.delay == pytest.approx(delay, abs=0.016)
    assert guard.gain_db == pytest.approx(decibels, abs=4)


@pytest.mark.parametrize("seed", range(4))
def test_a_clipping_loudspeaker_in_a_reverberant_room_whose_volume_changes(seed: int) -> None:
    clipped = 10_000 * np.tanh(FAR / 10_000)
    at = np.arange(FAR.size) / SAMPLE_RATE
    echo = delayed(echo_of(clipped, -9, room(seed, 0.6)), 0.25) * 10 ** (np.sin(2 * np.pi * at / 3) / 10)
    found = heard(echo + noise(SECONDS, 20.0))
    mask = loud(echo) & settled(found.size)
    assert found[mask].mean() > 0.9
    assert (found[mask] < 0.5).mean() < 0.05


def test_a_dry_echo_is_as_loud_where_soft_sounds_follow_loud_ones() -> None:
    """No room goes on there: soft sounds must not count as the faint reverberation of the loud ones."""
    loudness = np.where(np.arange(FAR.size) % 6400 < 1600, 5000, 200)
    sent, guard = loudness * np.random.default_rng(0).standard_normal(FAR.size), EchoGuard(SAMPLE_RATE)
    found = heard(delayed(sent * 10 ** (-12 / 20), 0.1), sent, guard, SAMPLE_RATE)
    assert guard.gain_db == pytest.approx(-12, abs=1.5)
    assert found[settled(found.size)].min() > 0.9


def test_a_microphone_that_begins_in_the_midst_of_a_reply() -> None:
    guard, far = EchoGuard(FAR_RATE), int16(clip("agent", FAR_RATE))
    echo = int16(delayed(echo_of(FAR, -12, room()), 0.2) + noise(SECONDS))
    found, position = [], 0
    for end in range(FRAME, echo.size, FRAME):
        while (position + 480) / FAR_RATE <= end / SAMPLE_RATE:
            guard.sent(far[position : position + 480], position / FAR_RATE)
            position += 480
        if end > 5 * SAMPLE_RATE:
            found.append(guard.likelihood(echo[end - FRAME : end], end / SAMPLE_RATE))
    late = loud(echo[-len(found) * FRAME :].astype(np.float64)) & settled(len(found), 0.5)
    assert np.array(found)[late].mean() > 0.95


def test_uneven_instants_of_packets_do_no_harm() -> None:
    echo = delayed(echo_of(FAR, -12, room()), 0.2)
    found = heard(echo + noise(SECONDS), jitter=0.008)
    assert found[loud(echo) & settled(found.size)].mean() > 0.95


def test_the_far_signal_may_have_48_kilohertz() -> None:
    echo = delayed(echo_of(FAR, -12, room()), 0.2)
    found = heard(echo + noise(SECONDS), rate=48_000)
    assert found[loud(echo) & settled(found.size)].mean() > 0.95


@pytest.mark.parametrize("words", ["user", "other"])
def test_a_user_with_a_headset_is_no_echo(words: str) -> None:
    user = clip(words)
    near = placed(SECONDS, (1.0, user), (4.5, user))
    found = heard(near)
    assert (found[loud(near)] > 0.5).mean() < 0.02


def test_a_user_is_no_echo_while_nothing_is_sent() -> None:
    near = placed(4.0, (1.0, clip("user")))
    assert not heard(near, far=np.zeros(10 * FAR_RATE)).any()
    assert EchoGuard(FAR_RATE).likelihood(int16(near[:FRAME]), 1.0) == 0.0


@pytest.mark.parametrize(("relative", "least"), [(0, 0.5), (-6, 0.3)])
@pytest.mark.parametrize("words", ["user", "other"])
def test_who_speaks_over_an_echo_stands_out(words: str, relative: float, least: float) -> None:
    echo = delayed(echo_of(FAR, -12, room()), 0.2)
    user = clip(words) * level(echo) / level(clip(words)) * 10 ** (relative / 20)
    spoken = placed(SECONDS, (2.5, user), seed=1) - noise(SECONDS, seed=1)
    found = heard(echo + spoken + noise(SECONDS))
    mask = loud(spoken)
    assert (found[mask] < 0.5).mean() > least
    assert np.flatnonzero(mask & (found < 0.5))[0] - np.flatnonzero(mask)[0] <= 4  # within 130 ms


def test_a_user_over_a_reply_is_heard_again_soon_after_a_headset_is_plugged_in() -> None:
    far = np.tile(FAR, 2)
    echo = delayed(echo_of(far, -12, room()), 0.2)
    echo[5 * SAMPLE_RATE :] = 0.0
    user = placed(12.0, (8.5, clip("user")))
    sent = np.tile(clip("agent", FAR_RATE)[: round(SECONDS * FAR_RATE)], 2)
    found = heard(user + echo[: user.size], far=sent)
    assert (found[loud(user)] > 0.5).mean() < 0.05


def test_a_delay_that_changes_is_followed() -> None:
    far = np.tile(FAR, 2)
    echo = echo_of(far, -12, room())
    near = np.where(np.arange(far.size) < 6 * SAMPLE_RATE, delayed(echo, 0.1), delayed(echo, 0.35))
    sent = np.tile(clip("agent", FAR_RATE)[: round(SECONDS * FAR_RATE)], 2)
    guard = EchoGuard(FAR_RATE)
    found = heard(near + noise(2 * SECONDS), far=sent, guard=guard)
    assert guard.delay == pytest.approx(0.35, abs=0.016)
    assert found[loud(near) & settled(found.size, 8.5)].mean() > 0.95


@pytest.mark.parametrize("silence", [0.7, 30.0])
@pytest.mark.parametrize("told", [True, False])
def test_what_was_sent_before_a_silence_explains_nothing_after_it(silence: float, told: bool) -> None:
    guard = EchoGuard(FAR_RATE)
    echo = delayed(echo_of(FAR, -12, room()), 0.2)
    assert heard(echo + noise(SECONDS), guard=guard)[-50:].max() == 1.0
    at = 50.0 + SECONDS + silence  # nothing was sent and nothing heard meanwhile
    if told:
        guard.sent(np.zeros(480, np.int16), at)
    user = int16(clip("user"))
    found = [guard.likelihood(user[n : n + FRAME], at + (n + FRAME) / SAMPLE_RATE) for n in range(0, 60 * FRAME, FRAME)]
    assert max(found[1:]) < 0.1  # the first frame is the end of the window before


@pytest.mark.parametrize("size", [256, 320, 512])
def test_frames_may_have_any_size(size: int) -> None:
    echo = int16(delayed(echo_of(FAR, -12, room()), 0.2) + noise(SECONDS))
    guard, far = EchoGuard(FAR_RATE), int16(clip("agent", FAR_RATE))
    found, position = [], 0
    for end in range(size, 4 * SAMPLE_RATE, size):
        while (position + 480) / FAR_RATE <= end / SAMPLE_RATE:
            guard.sent(far[position : position + 480], position / FAR_RATE)
            position += 480
        found.append(guard.likelihood(echo[end - size : end], end / SAMPLE_RATE))
    assert np.mean(found[len(found) // 2 :]) > 0.6  # silence between words is no echo
    assert min(found) >= 0.0
    assert max(found) <= 1.0
