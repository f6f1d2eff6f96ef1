"""agent/ears.py: from Opus packets to turns, on real sound and in real time's order, with a clock of its own."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from sounds import FAR_RATE, Wave, clip, cough, int16, noise

from agent.dialogue import Audio
from agent.ears import AFTER, BEFORE, MAX_TURN_SECONDS, QUIET_SECONDS, Ears
from agent.echo import EchoGuard
from agent.opus import OpusDecoder, OpusEncoder
from agent.turn import (
    Action,
    AgentState,
    Durations,
    Interrupt,
    Judge,
    Pause,
    Resume,
    Settings,
    SpeechStarted,
    SpeechStopped,
    TurnEnded,
)
from agent.vad import EARSHOT, SILERO, VADS

RATE = 48_000


class Ticking:
    """A clock that a test moves; timers of the loop do not know it."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time


class Room:
    """Somebody with a microphone, and an agent that stands still or speaks."""

    def __init__(
        self,
        executor: Executor,
        vad: str = SILERO,
        state: AgentState = AgentState.SILENT,
        judge: Judge | None = None,
        loader: Executor | None = None,
    ) -> None:
        self.clock, self.state, self.actions = Ticking(), state, list[Action]()
        self.ears = Ears(
            executor,
            self.clock,
            FAR_RATE,
            self.actions.append,
            lambda: self.state,
            vad_name=vad,
            judge=judge,
            loader=loader,
        )
        self.encoder, self.sequence = OpusEncoder(RATE), 0

    async def hear(self, wave: Wave) -> None:
        """The wave at 16 kHz, packet by packet, each 20 ms after the one before it."""
        samples = int16(np.repeat(wave, 3))
        size = self.encoder.packet_samples
        for first in range(0, samples.size - size + 1, size):
            self.clock.time += 0.02
            payload = self.encoder.encode(samples[first : first + size])
            self.ears.receiver.push(7, self.sequence & 0xFFFF, 960 * self.sequence, payload)
            self.sequence += 1
            for _ in range(10):  # from the decoder to the VAD and back, by the loop's own callbacks
                await asyncio.sleep(0)

    @property
    def kinds(self) -> list[type[Action]]:
        return [type(action) for action in self.actions]


class AtOnce(Executor):
    """Threads that keep up, as they do in real time: what is submitted is done."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        done = Future[Any]()
        done.set_result(fn(*args, **kwargs))
        return done


@pytest.fixture
def executor() -> Executor:
    return AtOnce()


class Noted:
    """What it replaces, and the threads in which that was called."""

    def __init__(self, inner: Callable[..., Any]) -> None:
        self.inner, self.threads = inner, set[int]()

    def __get__(self, owner: Any, kind: type) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self.threads.add(threading.get_ident())
            return self.inner(owner, *args, **options)

        return call


@pytest.mark.parametrize("vad", [SILERO, EARSHOT])
async def test_decoder_vad_and_echo_guard_never_run_on_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, vad: str
) -> None:
    """With losses, which are concealed, and while the agent speaks; loading the VAD counts, too."""
    kind = VADS[vad]
    work = [(OpusDecoder, "decode"), (OpusDecoder, "conceal"), (EchoGuard, "likelihood"), (EchoGuard, "sent")]
    noted = {name: Noted(getattr(owner, name)) for owner, name in [*work, (kind, "probability"), (kind, "__init__")]}
    for owner, name in [*work, (kind, "probability"), (kind, "__init__")]:
        monkeypatch.setattr(owner, name, noted[name])
    with ThreadPoolExecutor(2) as executor, ThreadPoolExecutor(1) as loader:
        room = Room(executor, vad, loader=loader)
        async with asyncio.timeout(60.0):
            while not all(each.threads for each in noted.values()):
                room.sequence += 1  # one is lost
                room.ears.sent(np.zeros(FAR_RATE // 50, np.int16), room.clock.time)
                await room.hear(noise(0.1))
                await asyncio.sleep(0.01)  # justified: the threads take real time, and tell nobody
        room.ears.close()
    assert threading.get_ident() not in set[int]().union(*(each.threads for each in noted.values()))


@pytest.mark.parametrize("vad", [SILERO, EARSHOT])
async def test_a_turn_is_noticed_and_its_audio_kept(executor: Executor, vad: str) -> None:
    room = Room(executor, vad)
    said = clip("user")
    await room.hear(np.concatenate([noise(1.0), said + noise(said.size / 16_000)[: said.size], noise(2.0)]))
    assert (room.kinds[0], room.kinds[-1]) == (SpeechStarted, TurnEnded)
    assert room.kinds.count(SpeechStarted) == room.kinds.count(SpeechStopped)
    started, ended = room.actions[0], room.actions[-1]
    assert isinstance(started, SpeechStarted)
    assert isinstance(ended, TurnEnded)
    assert 100.9 < started.onset_at < 101.4
    seconds = said.size / 16_000
    assert ended.ended_at - ended.onset_at == pytest.approx(seconds, abs=0.5)
    audio = room.ears.audio(ended.onset_at, ended.ended_at)
    assert audio.dtype == np.int16
    assert seconds - 0.3 < audio.size / 16_000 < seconds + 1.0
    assert np.abs(audio).max() > 1000, "it is the speech"
    room.ears.close()


async def test_a_cough_over_the_agent_interrupts_nothing(executor: Executor) -> None:
    room = Room(executor, state=AgentState.SPEAKING)
    await room.hear(np.concatenate([noise(1.0), cough(), noise(2.0)]))
    assert Interrupt not in room.kinds
    assert room.kinds.count(Pause) == room.kinds.count(Resume)
    room.ears.close()


class Sure(Durations):
    """Takes whatever is said over the agent for an interruption, and keeps what was heard of it."""

    ears: Ears
    heard: Audio

    def interrupts(self, onset_at: float, ended_at: float) -> bool:
        self.heard = self.ears.audio(onset_at, ended_at)
        return True


@pytest.mark.parametrize("retuned", [False, True])
async def test_a_judge_interrupts_for_a_short_word_and_may_hear_it_by_then(executor: Executor, retuned: bool) -> None:
    judge = Sure()
    room = Room(executor, state=AgentState.SPEAKING, judge=judge)
    judge.ears = room.ears
    if retuned:
        room.ears.retune(Settings())
    said = clip("stop")
    await room.hear(np.concatenate([noise(1.0), said, noise(0.2)]))
    assert room.kinds == [Pause, Interrupt, SpeechStarted]
    around = BEFORE + AFTER + 0.1  # what a VAD adds
    assert said.size / 16_000 < judge.heard.size / 16_000 < said.size / 16_000 + around
    room.ears.close()


async def test_speech_over_the_agent_pauses_and_then_interrupts_while_it_lasts(executor: Executor) -> None:
    room = Room(executor, state=AgentState.SPEAKING)
    await room.hear(np.concatenate([noise(1.0), clip("user")]))
    assert room.kinds[:3] == [Pause, Interrupt, SpeechStarted]
    room.ears.close()


async def test_the_agents_own_echo_is_none_of_the_users(executor: Executor) -> None:
    """The agent's voice comes back 200 ms later at -12 dB."""
    room = Room(executor, state=AgentState.SPEAKING)
    far, near = clip("agent", FAR_RATE), clip("agent")
    packet, delayed = FAR_RATE // 50, np.concatenate([noise(0.2), near * 10 ** (-12 / 20)])
    for n in range(min(far.size // packet, delayed.size // 320)):
        room.ears.sent(int16(far[n * packet : (n + 1) * packet]), room.clock.time)
        await room.hear(delayed[n * 320 : (n + 1) * 320])
    assert Interrupt not in room.kinds
    assert room.kinds.count(Pause) <= 1, "before the echo is known"
    room.ears.close()


async def test_a_microphone_that_falls_silent_in_a_word_ends_the_turn(executor: Executor) -> None:
    room = Room(executor)
    await room.hear(np.concatenate([noise(1.0), clip("user")[:12_000]]))
    assert room.kinds == [SpeechStarted]
    for _ in range(8):
        room.clock.time += QUIET_SECONDS
        room.ears._assume_silence()
    assert room.kinds == [SpeechStarted, SpeechStopped, TurnEnded]
    assert room.ears._quiet is None, "nothing is waited for"
    room.ears.close()


async def test_without_turns_the_sound_is_kept_all_the_same(executor: Executor) -> None:
    room = Room(executor, EARSHOT)
    room.ears.retune(None, before=0.0)
    said = clip("user")
    start_at = room.clock.time
    await room.hear(np.concatenate([said, noise(1.0)]))
    assert room.actions == []
    assert not room.ears.user_speaks
    heard = room.ears.audio(start_at, room.clock.time)
    assert heard.size / 16_000 == pytest.approx(said.size / 16_000 + 1.0, abs=0.2)
    room.ears.close()


async def test_other_settings_hold_from_the_next_turn_on(executor: Executor) -> None:
    room = Room(executor, EARSHOT)
    said = clip("user")
    await room.hear(np.concatenate([noise(0.5), said[:16_000]]))
    assert room.kinds == [SpeechStarted]
    room.ears.retune(None)
    await room.hear(noise(1.5))
    assert room.kinds == [SpeechStarted, SpeechStopped, TurnEnded], "what was begun is brought to its end"
    await room.hear(said)
    assert len(room.actions) == 3
    room.ears.retune(Settings(silence=1.5, long_silence=1.5), before=0.1)
    await room.hear(np.concatenate([said, noise(1.0)]))
    assert room.kinds[3:].count(TurnEnded) == 0
    await room.hear(noise(1.5))
    assert room.kinds[-1] is TurnEnded
    room.ears.close()


async def test_what_is_kept_is_bounded(executor: Executor) -> None:
    room = Room(executor, EARSHOT)
    for _ in range(7):
        await room.hear(np.zeros(160_000))
    kept = room.ears._kept
    assert kept[-1].received_at - kept[0].received_at <= MAX_TURN_SECONDS
    for _ in range(1000):
        room.ears.sent(np.zeros(480, np.int16), room.clock.time)
    assert len(room.ears._pending) == 100
    room.ears.close()


async def test_after_the_end_nothing_is_heard(executor: Executor) -> None:
    room = Room(executor)
    room.ears.close()
    room.ears.close()
    await room.hear(np.concatenate([noise(0.5), clip("user")]))
    assert room.actions == []


async def test_the_vad_is_given_back_at_once_at_the_end_and_not_by_the_event_loop(executor: Executor) -> None:
    freed = list[str]()
    gc.disable()  # a closed call is part of cycles, and nobody tells the collector what the VAD's library holds
    try:
        with ThreadPoolExecutor(1, "loader") as loader:
            room = Room(executor, loader=loader)
            await room.hear(noise(0.5))
            while room.ears._listening is None:  # noqa: ASYNC110 - nothing else tells that it is loaded
                await asyncio.sleep(0.001)
            weakref.finalize(room.ears._listening, lambda: freed.append(threading.current_thread().name))
            room.ears.close()
        assert freed == ["loader_0"]
        room.ears.close()
    finally:
        gc.enable()


def test_an_unknown_vad_is_refused_at_once() -> None:
    async def make() -> Any:
        return Ears(AtOnce(), Ticking(), FAR_RATE, print, lambda: AgentState.SILENT, vad_name="ear")

    with pytest.raises(ValueError, match="a VAD is one of"):
        asyncio.run(make())
