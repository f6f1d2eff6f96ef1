"""One conversation: whose turn it is, what the user said, and what the agent answers. It knows neither media nor how an
answer is found: actions come from ears, text from a brain, and speech is the session's.

What the brain is told of its own words is what was heard of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Container, Iterable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Protocol

import numpy as np

from agent.brain import BoundedBrain
from agent.dialogue import Audio, Message, Role, Terms, UserTurn
from agent.flow import Flow
from agent.playout import Packet
from agent.protocol import (
    Error,
    ReplyEnded,
    ReplyStarted,
    ReplyText,
    Speak,
    SpeechStopped,
    TurnEnded,
    TurnStarted,
    TurnStopped,
    TurnText,
)
from agent.reply import Reply, Said
from agent.sentences import MAX_CHARS, Sentences, speakable
from agent.session import FAILED, Session
from agent.transcribe import BoundedTranscriber
from agent.trouble import OutsideError, Trouble
from agent.turn import Action, AgentState, Interrupt, Pause, Resume, Settings, SpeechStarted
from agent.turn import SpeechStopped as SilenceBegan
from agent.turn import TurnEnded as TurnOver
from agent.turn_end import TurnEndModel
from agent.understanding import Understanding
from engine.core import ErrorCode, FinishReason

log = logging.getLogger(__name__)

END, INTERRUPTED = "end", "interrupted"
"""Reasons of reply.ended, beside FAILED."""
MAX_HISTORY = 500
"""Messages of a call that are remembered."""
MAX_REPLIES = 4
"""That wait for one another, where none may be interrupted."""
LEAST_ROOM = 1
"""Places of a session's queue that are left to the client's own speak messages."""


WORDS: Mapping[Trouble, str] = {
    Trouble.TIMEOUT: "no answer came in time: say it once more",
    Trouble.BUSY: "too many are asking for answers: say it once more in a moment",
    Trouble.REFUSED: "the server's own request for an answer was refused: its log says why",
    Trouble.UNREACHABLE: "what answers here cannot be reached: the server's log says why",
    Trouble.BROKEN: "the answer broke off or made no sense: say it once more",
}
"""What a client is told; whose fault it is in detail is not theirs to know."""


class Listened(Protocol):
    """What a conversation asks its ears for."""

    @property
    def settings(self) -> Settings: ...
    @property
    def frame_seconds(self) -> float: ...
    def audio(self, onset_at: float, ended_at: float) -> Audio: ...
    def retune(self, settings: Settings | None, before: float) -> None: ...
    def sent(self, samples: Audio, at: float) -> None: ...
    def close(self) -> None: ...


class Watcher:
    """Is told what becomes of turns and replies, of those too that say nothing; here it does not care.

    Turns and replies go by the ids that their messages have in the history.
    """

    def turn_ended(self, turn: str) -> None:
        """A spoken turn is over."""

    def turn_text(self, turn: str, text: str) -> None:
        """What was said in it."""

    def turn_unknown(self, turn: str, trouble: Trouble) -> None:
        """What was said in it could not be found out."""

    def turn_dropped(self, turn: str) -> None:
        """It was not answered yet, and is part of the next one."""

    def reply_begun(self, reply: str) -> None:
        """It is being thought about; one at a time."""

    def reply_over(self, reply: str, reason: str) -> None:
        """The last word on one that has begun: END, INTERRUPTED or FAILED."""


class Conversation:
    """Answers every turn of one session, one reply at a time. To be used on the event loop.

    Every reply.started is followed by exactly one reply.ended. What goes wrong outside is said to the user in the
    brain's apology, told in an error event, and forgotten: the next turn works.
    """

    def __init__(
        self,
        session: Session,
        brain: BoundedBrain,
        transcriber: BoundedTranscriber,
        *,
        interruptible: bool = True,
        turn_end: TurnEndModel | None = None,
        backchannels: Iterable[str] = (),
    ) -> None:
        self.history: list[Message] = []
        self.ears: Listened | None = None
        self.understanding = Understanding(transcriber, self._sound, turn_end, backchannels)
        """To be the judge of the ears."""
        self.watcher = Watcher()
        self.instructions = ""
        """For whoever answers; empty: their own."""
        self.max_chars: int | None = None
        """Of a reply, where this call may have less than others."""
        self.automatic = True
        """Every spoken turn is answered, else only what `respond` asks for."""
        self.terms = Terms()
        self.speech_at = (0.0, 0.0)
        """Begin and end of what the user said last, on the clock of the ears; the end is 0 while they speak."""
        self._session, self._brain = session, brain
        self._interruptible, self._may_interrupt = interruptible, True
        self._replies: list[Reply] = []
        """That are not over, in order; all but the first wait for one that must not be interrupted."""
        self._count = self._turns = 0
        self._closed = False
        self._unanswered: list[Said] = []
        """What was spoken and not answered yet: the next spoken turn goes on with it."""
        self._notes: list[asyncio.Task[None]] = []
        """Find out what was said in turns that are not answered on their own, one after the other."""
        self._noted: Said | None = None
        """The last such turn: its sound is known to nobody else."""
        session.partner = self

    @property
    def interruptible(self) -> bool:
        """Whether the user may stop the agent by speaking; what was forbidden at first stays so."""
        return self._may_interrupt and self._interruptible

    @interruptible.setter
    def interruptible(self, wanted: bool) -> None:
        self._may_interrupt = wanted

    @property
    def answering(self) -> bool:
        """A reply is asked for, thought about or spoken."""
        return bool(self._replies)

    @property
    def noting(self) -> int:
        """Turns that are not answered on their own, and whose words are not known yet."""
        return len(self._notes)

    @property
    def agent(self) -> AgentState:
        """What the agent does, as far as the user may stop it."""
        if self._session.quiet and not any(reply.started for reply in self._replies):
            return AgentState.SILENT
        return AgentState.SPEAKING if self.interruptible else AgentState.UNINTERRUPTIBLE

    def begin(self) -> None:
        """Says what the brain says first, if anything."""
        if self._brain.greeting and not self._count:
            self._begin(self._recite(self._brain.greeting))

    def say(self, text: str) -> None:
        """A turn that was typed. It interrupts, as a spoken one does."""
        if self.interruptible:
            self.interrupt()
        if len(self._replies) >= MAX_REPLIES:
            message = f"{MAX_REPLIES} turns wait for their answers already: try again when one is over"
            self._session.report(Error(code=ErrorCode.BUSY, message=message, field="text"))
            return
        self._session.send(TurnEnded(seconds=0.0))
        self._session.send(TurnText(text=text))
        self._answer(self._said(text))

    def act(self, action: Action) -> None:
        """What the ears ask for."""
        match action:
            case Pause():
                self._session.pause(action.onset_at + (self.ears.frame_seconds if self.ears else 0.0))
            case Resume():
                self._session.resume()
            case Interrupt():
                self.interrupt()
            case SpeechStarted():
                if self.agent is AgentState.SILENT:
                    self.interrupt()  # whoever goes on speaking is not answered yet
                self.speech_at = (action.onset_at, 0.0)
                self._session.send(TurnStarted())
            case SilenceBegan():
                self._session.send(TurnStopped())
            case TurnOver():
                self.commit(action.onset_at, action.ended_at)

    def commit(self, onset_at: float, ended_at: float) -> None:
        """What was spoken between these instants is a turn: it is answered, or where that is not `automatic`, noted."""
        self.speech_at = (onset_at, ended_at)
        for dropped in self._unanswered:
            onset_at = min(onset_at, dropped.onset_at)
            self.watcher.turn_dropped(dropped.id)
        self._unanswered.clear()
        audio = self._sound(onset_at, ended_at) if self.ears else None
        self._session.send(TurnEnded(seconds=ended_at - onset_at))
        said = self._said("", audio, onset_at, ended_at)
        self.watcher.turn_ended(said.id)
        if self.automatic:
            self._answer(said)
        else:
            self.history.append(Message(Role.USER, "", id=said.id))  # its place, until its words are known
            note = asyncio.create_task(self._note(said, self._notes[-1:]))
            self._notes.append(note)
            note.add_done_callback(self._notes.remove)

    def respond(self, instructions: str = "") -> None:
        """Answers what was said last, or goes on talking. The instructions hold for this reply only."""
        self._begin(self._continued(instructions or self.instructions))

    def interrupt(self) -> None:
        """Ends the reply, whether it is being spoken, written or still thought about."""
        self._session.stop()

    def close(self) -> None:
        """Answers nothing any more, and leaves nothing behind."""
        self._closed = True
        for reply in self._replies:
            reply.cancel()
        self._replies.clear()
        self.watcher = Watcher()
        for note in self._notes:
            note.cancel()
        self.understanding.close()
        if self.ears:
            self.ears.close()

    # ---- the history ------------------------------------------------------------------------------------------

    def add(self, message: Message, before: Container[str] = ()) -> None:
        """Puts it in front of the first message that has one of these ids, else at the end."""
        place = next((n for n, other in enumerate(self.history) if other.id in before), len(self.history))
        self.history.insert(place, message)

    def amend(self, message_id: str, text: str) -> None:
        """No more than this of a message was heard; nothing of it, where the text is empty."""
        for n, message in enumerate(self.history):
            if message.id == message_id:
                self.history[n : n + 1] = [replace(message, text=text, interrupted=True)] if text else []
                return

    def remove(self, message_id: str) -> None:
        """Forgets a message, if it is there."""
        self.history = [message for message in self.history if message.id != message_id]

    def _trim(self) -> None:
        """Forgets the oldest of a long call."""
        del self.history[: max(0, len(self.history) - MAX_HISTORY)]

    # ---- replies ----------------------------------------------------------------------------------------------

    def _said(self, text: str, audio: Audio | None = None, onset_at: float = 0.0, ended_at: float = 0.0) -> Said:
        self._turns += 1
        return Said(f"turn{self._turns}", text, audio, onset_at, ended_at)

    def _answer(self, said: Said) -> None:
        self._begin(self._answers(said), said)

    def _begin(self, texts: AsyncGenerator[str], said: Said | None = None) -> None:
        """Speaks these texts as a reply, after one that must not be interrupted; not once the call is over."""
        if self._closed:
            return
        self._trim()
        self._count += 1
        before = self._replies[-1] if self._replies else None
        reply = Reply(f"reply{self._count}", said)
        self._replies.append(reply)
        if before is None:
            self._tell(reply)
        reply.task = asyncio.create_task(self._speak_all(reply, texts, before))

    def _tell(self, reply: Reply) -> None:
        if not reply.begun:
            reply.begun = True
            self.watcher.reply_begun(reply.id)

    async def _speak_all(self, reply: Reply, texts: AsyncGenerator[str], before: Reply | None) -> None:
        async with aclosing(texts):
            if before is not None:
                await before.over.wait()
            self._tell(reply)
            try:
                await self._speak_text(reply, texts)
            except Exception:  # a fault of our own must not silence the agent for good
                log.exception("a reply broke off")
                reply.failed = True
        reply.written = True
        self._settle(reply)

    async def _speak_text(self, reply: Reply, texts: AsyncGenerator[str]) -> None:
        """As it is written, where the voice can; else sentence by sentence, each as soon as it is complete."""
        if self._session.speaks_while_written:
            await self._speak_flow(reply, texts)
            return
        sentences = Sentences(max_chars=max(48, min(MAX_CHARS, self._session.max_text_chars)))
        trouble: OutsideError | None = None
        try:
            async for delta in texts:
                for piece in sentences.push(delta):
                    await self._speak(reply, piece)
        except OutsideError as error:
            trouble = error
        for piece in sentences.end():
            await self._speak(reply, piece)
        if trouble:
            await self._apologise(reply, trouble)

    async def _speak_flow(self, reply: Reply, texts: AsyncGenerator[str]) -> None:
        flow, trouble, utterance, refused = Flow(self._session.max_text_chars), None, "", False
        try:
            async for delta in texts:
                for piece, ends in flow.push(delta):
                    if self._session.append(utterance, piece):
                        if piece:
                            self._session.send(ReplyText(id=utterance, text=piece))
                    elif not refused:  # the first of it, or the voice has ended by itself
                        utterance = await self._speak(reply, piece, open=True)
                        refused = not utterance and speakable(piece)
                    if ends:
                        self._session.finish(utterance)
                        utterance, refused = "", False
        except OutsideError as error:
            trouble = error
        finally:
            self._session.finish(utterance)
        if trouble:
            await self._apologise(reply, trouble)

    async def _speak(self, reply: Reply, piece: str, open: bool = False) -> str:
        """Hands the piece to the session as soon as there is room for it; returns its utterance, if it has one."""
        if not speakable(piece):
            return ""
        if not reply.started:
            reply.started = True
            self._session.send(ReplyStarted(id=reply.id))
        while self._session.room <= min(LEAST_ROOM, self._session.max_queued - 1):
            reply.moved.clear()
            await reply.moved.wait()
        reply.pieces += 1
        utterance = f"{reply.id}.{reply.pieces}"
        reply.open.add(utterance)
        spoken = False
        try:
            self._session.send(ReplyText(id=utterance, text=piece))
            spoken = self._session.speak(Speak(id=utterance, text=piece, open=open))
        finally:
            if not spoken:
                reply.failed = True
                reply.open.discard(utterance)
        return utterance if spoken else ""

    async def _apologise(self, reply: Reply, error: OutsideError) -> None:
        """Tells the user in words and the client in an event what kind of trouble there was; the log knows the rest."""
        reply.failed = True
        self._session.report(Error(code=str(error.trouble), message=WORDS[error.trouble], id=reply.id))
        await self._speak(reply, self._brain.apology)

    async def _recite(self, text: str) -> AsyncGenerator[str]:
        yield text

    async def _answers(self, said: Said) -> AsyncGenerator[str]:
        """The brain's reply, once it is known what was said."""
        text = await self._words(said)
        turn = UserTurn(text, tuple(self.history), said.audio, self.instructions, self.max_chars)
        self.history.append(Message(Role.USER, text, id=said.id))
        self._unanswered.clear()
        for reply in self._replies:
            if reply.said is said:
                reply.said = None
        async with aclosing(self._brain.reply(turn)) as deltas:
            async for delta in deltas:
                yield delta

    async def _continued(self, instructions: str) -> AsyncGenerator[str]:
        """The brain's reply to the end of the history, once it is known."""
        if self._notes:
            await asyncio.wait(list(self._notes))
        last = self.history[-1] if self.history else None
        if last is None or last.role is not Role.USER:
            turn = UserTurn("", tuple(self.history), None, instructions, self.max_chars)
        else:
            audio = self._noted.audio if self._noted and self._noted.id == last.id else None
            turn = UserTurn(last.text, tuple(self.history[:-1]), audio, instructions, self.max_chars)
        async with aclosing(self._brain.reply(turn)) as deltas:
            async for delta in deltas:
                yield delta

    async def _note(self, said: Said, before: list[asyncio.Task[None]]) -> None:
        """Finds out what was said in a turn, after those before it."""
        if before:
            await asyncio.wait(before)
        text = ""
        try:
            text = await self._words(said)
        except OutsideError as error:
            self._session.report(Error(code=str(error.trouble), message=WORDS[error.trouble]))
        except Exception:  # a fault of our own must not keep the turn from being answered
            log.exception("a turn could not be transcribed")
        self.history = [replace(each, text=text) if each.id == said.id else each for each in self.history]
        self._noted = said

    def _sound(self, onset_at: float, ended_at: float) -> Audio:
        return self.ears.audio(onset_at, ended_at) if self.ears else np.zeros(0, np.int16)

    async def _words(self, said: Said) -> str:
        """What was said. Raises OutsideError."""
        if said.audio is None:
            return said.text
        try:
            text = await self.understanding.words(said.audio, said.onset_at, said.ended_at)
        except OutsideError as error:
            self.watcher.turn_unknown(said.id, error.trouble)
            raise
        if text:
            self._session.send(TurnText(text=text))
            self.watcher.turn_text(said.id, text)
        return text

    def take_packet(self, packet: Packet) -> None:
        """What the ears must know: they hear it again, from the user's loudspeaker."""
        if self.ears and packet.samples.any():
            self.ears.sent(packet.samples, packet.at)

    def take_stopped(self, stopped: SpeechStopped) -> None:
        """An utterance is over: this conversation's, or one that the client asked for."""
        for each in self._replies:  # there is room for one more, whoever's this was
            each.moved.set()
        reply = next((reply for reply in self._replies if stopped.id in reply.open), None)
        if reply is None:
            return
        reply.open.discard(stopped.id)
        reply.failed |= stopped.reason == FAILED
        reply.heard.append(stopped.heard)
        if stopped.reason != FinishReason.CANCELLED:  # else all of it was cut
            self._settle(reply)

    def _settle(self, reply: Reply) -> None:
        if reply.written and not reply.open:
            self._end(reply, FAILED if reply.failed else END)

    def take_cut(self) -> None:
        """The session was silenced, by whomever: nothing more of the reply is to be said."""
        for reply in list(self._replies):
            reply.cancel()
            if reply.said is not None and reply.said.audio is not None:
                self._unanswered.append(reply.said)
            self._end(reply, INTERRUPTED)

    def _end(self, reply: Reply, reason: str) -> None:
        """Its last word; what was heard of it is what the brain will know of it."""
        self._replies.remove(reply)
        reply.over.set()
        if self._session.quiet:
            self._session.resume()  # a pause between two of its sentences would keep back what is said next
        heard = reply.heard_text
        if heard:
            self.history.append(Message(Role.AGENT, heard, interrupted=reason == INTERRUPTED, id=reply.id))
        if reply.started:
            self._session.send(ReplyEnded(id=reply.id, reason=reason, heard=heard))
        if reply.begun:
            self.watcher.reply_over(reply.id, reason)
