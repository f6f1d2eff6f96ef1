"""Holds the calls that are open: admits, finds, hangs up, drains. It knows neither HTTP nor what is said."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from agent.answering import Answering
from agent.asking import check_manner
from agent.conversation import Conversation
from agent.demo import Demonstration, Switchable
from agent.ears import Ears
from agent.manner import Manner
from agent.metrics import AgentMetrics
from agent.opus import BIT_RATE, check_rate
from agent.peer import PINGED_SILENCE, SILENCE, Peer
from agent.receive import Receiver
from agent.scene import Scene
from agent.session import MAX_QUEUED, Engine, Session
from agent.voices import Voices, found
from engine.clock import Clock, MonotonicClock

log = logging.getLogger(__name__)

USUAL = Manner()
LISTENING_THREADS = 1
"""That decode and judge every microphone, beside the event loop."""
LISTENER_SECONDS = 0.3
"""What the listener's own jitter buffer may still hold when the last packet was sent (up to 190 ms after stalls)."""


class CallRefused(Exception):
    """There is no room now; `retry_after` in seconds."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class CallLimits:
    """What the calls may take, and when a silent one is over."""

    max_peers: int = 16
    max_queued: int = MAX_QUEUED
    """Utterances of a call, with the one that plays."""
    bit_rate: int = BIT_RATE
    silence: float = SILENCE
    pinged_silence: float = PINGED_SILENCE


class Calls:
    """Every open call. To be made on the event loop that serves them.

    `opened` is told of every new session, so that an application can speak in it; with `answering` there is somebody in
    every call who listens and answers. `voices` are whom texts may be spoken like; they are closed with the calls.
    In calls all is said in the `manner`, unless one says otherwise. Raises ValueError for a voice whose sample rate
    Opus does not take, and RequestError for a manner that cannot be.
    """

    def __init__(
        self,
        engine: Engine,
        limits: CallLimits | None = None,
        clock: Clock | None = None,
        opened: Callable[[Session], None] = lambda session: None,
        answering: Answering | None = None,
        voices: Voices | None = None,
        manner: Manner = USUAL,
    ) -> None:
        check_rate(engine.spec.sample_rate)
        found(voices, manner.voice)
        check_manner(manner, engine.spec)
        self._manner = manner
        self.limits = limits or CallLimits()
        self.metrics = AgentMetrics(engine.snapshot)
        self.draining = False
        self._engine, self._opened, self._answering = engine, opened, answering
        self.voices = voices
        self._clock = clock or MonotonicClock()
        self._peers: dict[str, Peer] = {}
        self.speeches: set[asyncio.Task[Any]] = set()
        """Requests that are spoken without a call, over HTTP."""
        self.scene = Scene()
        """Shows who watches how the engine works: give it the steps, where they are told."""
        self.demo: Demonstration | None = None
        self.ended: Callable[[], None] = lambda: None
        """Told of every call that is over."""
        self._encoders = ThreadPoolExecutor(1, thread_name_prefix="opus")
        self._listeners = ThreadPoolExecutor(LISTENING_THREADS, thread_name_prefix="ears")
        self._loaders = ThreadPoolExecutor(1, thread_name_prefix="vad")  # one: each keeps memory that its models had

    @property
    def sessions(self) -> list[Session]:
        return [peer.session for peer in self._peers.values()]

    @property
    def quiet(self) -> bool:
        """Nobody is being spoken to."""
        return not self.speeches and all(session.quiet for session in self.sessions)

    @property
    def status(self) -> str:
        """ok, draining, or down while there is no engine that could speak."""
        if self.draining:
            return "draining"
        return "ok" if self._engine.snapshot().get("engine_up", 1.0) else "down"

    async def open(self, sdp: str, manner: Manner = USUAL) -> tuple[str, str]:
        """Answers an offer: the call's id and the answer's SDP. All is said in that manner, unless a message says
        otherwise. Raises CallRefused, OfferError, and RequestError for a manner that cannot be."""
        if self.draining:
            raise CallRefused("the server is about to end and takes no new call: call again later", retry_after=10.0)
        if len(self._peers) >= self.limits.max_peers:
            raise CallRefused(f"all {self.limits.max_peers} lines are taken: call again later", retry_after=5.0)
        busy = self._engine.snapshot().get("retry_after_seconds", 0.0)
        if busy > 0:
            raise CallRefused("all voices are busy, a new caller would wait for too long: call again later", busy)
        manner = self._manner.of(manner)
        found(self.voices, manner.voice)
        check_manner(manner, self._engine.spec)
        asked_at = self._clock.now()
        peer = self._new_peer()
        peer.session.manner = manner
        try:
            answer = await peer.answer(sdp)
            self._opened(peer.session)
        except BaseException:
            await peer.close("not answered")
            raise
        self.metrics.answer.observe(self._clock.now() - asked_at)
        return peer.session.id, answer

    async def hang_up(self, call_id: str) -> bool:
        """Ends a call; False where there is none of that id."""
        peer = self._peers.get(call_id)
        if peer is not None:
            await peer.close("hung up")
        return peer is not None

    async def drain(self, seconds: float) -> None:
        """No new call and no new utterance; returns when what is being said was heard, or after `seconds`."""
        self.draining = True
        if self.demo is not None:
            self.demo.rest()
        sessions = self.sessions
        for session in sessions:
            session.refuse("the server is about to end")
        if self.quiet:
            return
        waiting = asyncio.gather(*(session.idle() for session in sessions), *map(over, self.speeches))
        try:
            await asyncio.wait_for(waiting, seconds)
        except TimeoutError:
            return
        await asyncio.sleep(LISTENER_SECONDS)

    async def close(self) -> None:
        """Ends every call."""
        self.draining = True
        self.scene.close()
        closing = [peer.close("server ends") for peer in list(self._peers.values())]
        for failed in filter(None, await asyncio.gather(*closing, return_exceptions=True)):
            log.error("a call could not be closed", exc_info=failed)
        if self.demo is not None:
            await self.demo.close()  # now that nobody can ask for more
        if self.voices is not None:
            await self.voices.close()
        self._encoders.shutdown()
        self._listeners.shutdown()
        self._loaders.shutdown()

    def demonstrate(self, engine: Switchable) -> None:
        """From now on callers may change what the server is shown with. To be called before the first call."""
        self.demo = Demonstration(engine, self._new_session, lambda: self.sessions)

    def _new_session(self) -> Session:
        session = Session(
            secrets.token_urlsafe(16),  # whoever knows it may hang up
            self._engine,
            self._encoders,
            self._clock,
            self.metrics,
            max_queued=self.limits.max_queued,
            bit_rate=self.limits.bit_rate,
            voices=self.voices,
        )
        session.scene, session.demo = self.scene, self.demo
        session.usual = session.manner = self._manner
        self.scene.enter(session)
        return session

    def _new_peer(self) -> Peer:
        session = self._new_session()
        try:
            return self._connected(session)
        except BaseException:  # what an application's own turn-end model raises, too
            session.close()
            raise

    def _connected(self, session: Session) -> Peer:
        limits = self.limits
        peer = Peer(
            session,
            self._clock,
            self._forget,
            silence=limits.silence,
            pinged_silence=limits.pinged_silence,
            hear=self._listen(session),
        )
        self._peers[session.id] = peer
        self.metrics.peers.set(len(self._peers))
        return peer

    def _listen(self, session: Session) -> Receiver | None:
        """Gives the session somebody who answers, if anybody does; returns what hears its microphone."""
        answering = self._answering
        if answering is None:
            return None
        conversation = Conversation(
            session,
            answering.brain,
            answering.transcriber,
            interruptible=answering.interruptible,
            turn_end=answering.turn_end() if answering.turn_end else None,
            backchannels=answering.backchannels,
        )
        if answering.vad is None:
            return None
        ears = Ears(
            self._listeners,
            self._clock,
            self._engine.spec.sample_rate,
            conversation.act,
            lambda: conversation.agent,
            vad_name=answering.vad,
            settings=answering.turns,
            judge=conversation.understanding,
            loader=self._loaders,
        )
        conversation.ears = ears
        return ears.receiver

    def _forget(self, peer: Peer, why: str) -> None:
        del self._peers[peer.session.id]
        self.metrics.peers.set(len(self._peers))
        self.metrics.calls_ended.labels(why).inc()
        self.ended()


async def over(task: asyncio.Task[Any]) -> None:
    """Returns when it is, whatever became of it."""
    await asyncio.wait([task])
