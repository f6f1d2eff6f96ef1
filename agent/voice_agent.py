"""Mounts voice calls into an aiohttp application: who answers, who transcribes, and what the application is told.

It does not know how a call works: server.py adds the routes, a Session speaks, a Conversation answers.

    agent = VoiceAgent(runtime, brain=answer, on_text=print)
    agent.attach(app, prefix="/voice")
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from typing import Any

from aiohttp import web

from agent import brain as brains
from agent import vad as vads
from agent.answering import NONE, Answering, check_turn_end
from agent.calls import CallLimits, Calls
from agent.conversation import INTERRUPTED
from agent.guard import Access
from agent.protocol import (
    ReplyEnded,
    ReplyText,
    ServerMessage,
    Speak,
    SpeechStarted,
    SpeechStopped,
    TurnStarted,
    TurnText,
)
from agent.server import attach
from agent.session import Engine, Session
from agent.transcribe import BoundedTranscriber, Transcriber, TranscriberConfig, make_transcriber
from agent.transcribe import Function as TranscriberFunction
from agent.trouble import SettingsError
from agent.turn import Settings
from agent.turn_end import TurnEnd
from agent.voices import Voices
from agent.whep import IceServer
from agent.words import Backchannels
from engine.core import FinishReason

log = logging.getLogger(__name__)

MAX_WAITING = 200
"""Of a call, that wait for a slow hook; the oldest give way, and the log says so."""
HOOK_SECONDS = 5.0
"""What hooks may still take when the application ends."""


class Call:
    """One call, as hooks see it. What they want to remember of it may be kept in `data`."""

    def __init__(self, session: Session, hang_up: Callable[[str], Any]) -> None:
        self.data: dict[str, Any] = {}
        self._session, self._hang_up = session, hang_up
        self._count = 0

    @property
    def id(self) -> str:
        """Whoever has it may hang up: keep it to yourself."""
        return self._session.id

    @property
    def quiet(self) -> bool:
        """Nothing is queued or playing."""
        return self._session.quiet

    def speak(self, text: str) -> str | None:
        """Has the text spoken after what is queued: the utterance's id, or None where it is not taken.

        A text that is too long, a full queue or a call that is over is such a case; the client is told why.
        """
        self._count += 1
        name = f"app{self._count}"
        return name if self._session.speak(Speak(id=name, text=text)) else None

    def stop(self) -> None:
        """Falls silent at once and forgets the queue."""
        self._session.stop()

    async def hang_up(self) -> None:
        """Ends the call."""
        await self._hang_up(self.id)


Hook = Callable[[Call], object]
"""Told of a call. Hooks are plain functions or coroutine functions; what they return is not looked at."""
TextHook = Callable[[Call, str], object]
UtteranceHook = Callable[[Call, str, str], object]


class VoiceAgent:
    """Voice calls for one application. To be attached once; brain and transcriber are closed with the application.

    engine: engine.runtime.Runtime, or what else speaks like it. It is the application's to close.
    brain: who answers: the app's own function (what the user said in; a text, an iterator of texts, or the async kinds
        of both out), a Brain, the settings of one that comes with the agent, or a BoundedBrain. None: nobody answers,
        and only what is asked for is spoken.
    transcriber: who tells what was said, likewise; None: nobody. A typed turn needs none.
    vad: who notices speech; None: nobody listens, turns are typed.
    turn_end: makes the model of each call that judges whether a turn is over (see turn_end.py), such as SentenceEnd,
        which goes by the words; None: turns are over after a silence.
    backchannels: words and short phrases that do not interrupt the agent, beside those of words.py. It takes a
        transcriber to tell them from a short "stop"; without one, all that is short does not.

    voices: lets callers make voices of recordings and speak like these; None: nobody can.
    ice_servers: STUN and TURN servers that players which call by WHEP are told of.

    Hooks are called one after the other in every call, in the order of what happened, never in the middle of it; an
    async one is awaited before the next. What one raises is logged, and harms nobody. One that takes time is to be
    async: all calls wait for a plain one.

    on_call(call): somebody called.
    on_turn_started(call): the user begins to speak.
    on_text(call, text): what the user said, where somebody knows, or has typed.
    on_reply(call, text): the next piece of the answer, about to be spoken.
    on_heard(call, utterance, text): an utterance is over; of its text, what was heard. One that the end of the call
        cuts is not told of.
    on_interrupted(call, text): a reply was interrupted, or an utterance of the app's while it was spoken; of its text,
        what was heard.
    on_end(call): the call is over. Nothing comes after it.

    Raises SettingsError for settings that cannot hold, ImportError and ValueError for a VAD that cannot be had, and
    ValueError for a backchannel of more than three words.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        brain: brains.BoundedBrain | brains.BrainConfig | brains.Brain | brains.Function | None = None,
        transcriber: BoundedTranscriber | TranscriberConfig | Transcriber | TranscriberFunction | None = None,
        vad: str | None = vads.usual(),
        turns: Settings | None = None,
        interruptible: bool = True,
        turn_end: TurnEnd | None = None,
        backchannels: Collection[str] = (),
        limits: CallLimits | None = None,
        access: Access | None = None,
        voices: Voices | None = None,
        ice_servers: Iterable[IceServer] = (),
        on_call: Hook | None = None,
        on_turn_started: Hook | None = None,
        on_text: TextHook | None = None,
        on_reply: TextHook | None = None,
        on_heard: UtteranceHook | None = None,
        on_interrupted: TextHook | None = None,
        on_end: Hook | None = None,
    ) -> None:
        if vad is not None:
            vads.check(vad)
        self._engine, self._limits, self._access, self._voices = engine, limits, access, voices
        self._ice_servers = tuple(ice_servers)
        self._hooks: dict[str, Callable[..., object]] = {
            name: hook
            for name, hook in {
                "on_call": on_call,
                "on_turn_started": on_turn_started,
                "on_text": on_text,
                "on_reply": on_reply,
                "on_heard": on_heard,
                "on_interrupted": on_interrupted,
                "on_end": on_end,
            }.items()
            if hook is not None
        }
        if brain is None and transcriber is not None:
            raise SettingsError("a transcriber needs a brain, which answers what was said")
        if brain is None and turn_end is not None:
            raise SettingsError("a turn end needs a brain, which answers the turn")
        nobody = transcriber is None or (isinstance(transcriber, TranscriberConfig) and transcriber.kind == NONE)
        check_turn_end(turn_end, words=not nobody, listens=vad is not None)
        Backchannels(backchannels)
        self._answering: Answering | None = None
        if brain is not None:
            made = made_brain(brain), made_transcriber(transcriber)
            self._answering = Answering(*made, vad, turns or Settings(), interruptible, turn_end, backchannels)
        self._calls: Calls | None = None
        self._told = set[asyncio.Task[None]]()

    @property
    def calls(self) -> Calls:
        """All that are open. Raises RuntimeError before it is attached."""
        if self._calls is None:
            raise RuntimeError("this VoiceAgent has no calls yet: attach it to an application first")
        return self._calls

    def attach(self, app: web.Application, prefix: str = "") -> Calls:
        """Adds page and routes to the application below `prefix`, and returns the calls; they end with the application.

        To be called before the application starts. Raises RuntimeError when it is attached already, and ValueError for
        a voice whose sample rate Opus does not take.
        """
        if self._calls is not None:
            raise RuntimeError("a VoiceAgent belongs to one application: make another one for another")
        app.cleanup_ctx.append(self._life)  # before the server's, so that it ends after that
        self._calls = attach(
            app,
            self._engine,
            prefix=prefix,
            access=self._access,
            limits=self._limits,
            opened=self._open,
            answering=self._answering,
            voices=self._voices,
            ice_servers=self._ice_servers,
        )
        return self._calls

    def _open(self, session: Session) -> None:
        told = Told(self._hooks, Call(session, self.calls.hang_up))
        session.watch(told)
        task = asyncio.create_task(told.run())
        self._told.add(task)
        task.add_done_callback(self._told.discard)

    async def _life(self, app: web.Application) -> AsyncIterator[None]:
        yield
        if not self._told:
            return
        _, late = await asyncio.wait(self._told, timeout=HOOK_SECONDS)
        for task in late:
            log.warning("a hook still runs %g s after its call's end, and is cancelled", HOOK_SECONDS)
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)


class Told:
    """Tells the hooks of one call what happens in it."""

    def __init__(self, hooks: dict[str, Callable[..., object]], call: Call) -> None:
        self._hooks, self._call = hooks, call
        self._waiting: deque[tuple[str, tuple[str, ...]]] = deque()
        self._moved = asyncio.Event()
        self._over = False
        self._replied, self._begun = set[str](), set[str]()
        """Utterances that are not over: of a reply, and those that play or have played."""
        self._push("on_call")

    def take(self, message: ServerMessage) -> None:
        """What the client is told."""
        match message:
            case TurnStarted():
                self._push("on_turn_started")
            case TurnText(text=text):
                self._push("on_text", text)
            case ReplyText(id=name, text=text):
                self._replied.add(name)
                self._push("on_reply", text)
            case SpeechStarted(id=name):
                self._begun.add(name)
            case SpeechStopped():
                self._take_stopped(message)
            case ReplyEnded(reason=reason, heard=heard) if reason == INTERRUPTED:
                self._push("on_interrupted", heard)

    def end(self) -> None:
        """The call is over."""
        if not self._over:
            self._push("on_end")
            self._over = True
            self._moved.set()

    async def run(self) -> None:
        """Calls the hooks, until the call is over and all was told."""
        while self._waiting or not self._over:
            if not self._waiting:
                self._moved.clear()
                await self._moved.wait()
                continue
            name, words = self._waiting.popleft()
            await self._tell(name, words)

    def _take_stopped(self, stopped: SpeechStopped) -> None:
        self._push("on_heard", stopped.id, stopped.heard)
        if stopped.reason == FinishReason.CANCELLED and stopped.id in self._begun - self._replied:
            self._push("on_interrupted", stopped.heard)
        self._begun.discard(stopped.id)
        self._replied.discard(stopped.id)

    def _push(self, name: str, *words: str) -> None:
        if name not in self._hooks or self._over:
            return
        if len(self._waiting) == MAX_WAITING:
            dropped, _ = self._waiting.popleft()
            log.warning("hooks are too slow: %s was not called", dropped)
        self._waiting.append((name, words))
        self._moved.set()

    async def _tell(self, name: str, words: tuple[str, ...]) -> None:
        try:
            result = self._hooks[name](self._call, *words)
            if inspect.isawaitable(result):
                await result
        except Exception:
            log.exception("the hook %s failed", name)


def made_brain(
    brain: brains.BoundedBrain | brains.BrainConfig | brains.Brain | brains.Function,
) -> brains.BoundedBrain:
    """The brain within its limits. Raises SettingsError."""
    if isinstance(brain, brains.BoundedBrain):
        return brain
    if isinstance(brain, brains.BrainConfig):
        return brains.make_brain(brain)
    return brains.make_brain(brains.BrainConfig("function"), brain)


def made_transcriber(
    transcriber: BoundedTranscriber | TranscriberConfig | Transcriber | TranscriberFunction | None,
) -> BoundedTranscriber:
    """The transcriber within its limits. Raises SettingsError."""
    if isinstance(transcriber, BoundedTranscriber):
        return transcriber
    if transcriber is None or isinstance(transcriber, TranscriberConfig):
        return make_transcriber(transcriber or TranscriberConfig())
    return make_transcriber(TranscriberConfig("function"), transcriber)
