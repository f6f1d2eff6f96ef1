"""agent/voice_agent.py: what an application is told of its calls, and what becomes of hooks that fail or hang."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer
from caller import WITHIN
from scripted_call import Call as ScriptedCall
from scripted_runtime import ScriptedRuntime
from sounds import clip, int16
from stand_in import DONE, StandIn, chunk
from voices import voice

from agent import voice_agent
from agent.brain import BrainConfig, SettingsError, make_brain
from agent.client import Client
from agent.protocol import (
    ReplyEnded,
    ReplyText,
    SpeechContinued,
    SpeechProgress,
    SpeechStarted,
    SpeechStopped,
    TurnStarted,
    TurnText,
)
from agent.transcribe import TranscriberConfig
from agent.turn import Judge, Settings
from agent.turn_end import TurnEndModel, TurnSoFar
from agent.voice_agent import MAX_WAITING, Call, Told, VoiceAgent
from engine.messages import RuntimeConfig
from engine.runtime import Runtime

HOOKS = ("on_call", "on_turn_started", "on_text", "on_reply", "on_heard", "on_interrupted", "on_end")


class Notes:
    """What hooks were told, in order."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, ...]] = []
        self.calls: list[Call] = []
        self._more = asyncio.Event()

    def hook(self, name: str) -> Any:
        async def note(call: Call, *words: str) -> None:
            await asyncio.sleep(0)  # hooks are told one after the other all the same
            self.write(name, call, *words)

        return note

    def write(self, name: str, call: Call, *words: str) -> None:
        self.lines.append((name, *words))
        self.calls.append(call)
        self._more.set()

    async def until(self, *begin: str) -> None:
        """There is a line that begins so."""
        async with asyncio.timeout(WITHIN):
            while not any(line[: len(begin)] == begin for line in self.lines):
                self._more.clear()
                await self._more.wait()


@asynccontextmanager
async def mounted(agent: VoiceAgent, prefix: str = "/voice") -> AsyncIterator[str]:
    app = web.Application()
    agent.attach(app, prefix=prefix)
    async with TestServer(app) as server:
        yield str(server.make_url(prefix))


@pytest.fixture
def engine() -> Iterator[ScriptedRuntime]:
    runtime = ScriptedRuntime(pace=0.001)
    yield runtime
    runtime.close()


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


async def test_hooks_are_told_of_a_turn_in_the_order_of_what_happens(engine: ScriptedRuntime) -> None:
    notes = Notes()

    def answer(text: str) -> Iterator[str]:
        yield "Well. "
        yield f"{text}!"

    agent = VoiceAgent(engine, brain=answer, **{name: notes.hook(name) for name in HOOKS})
    async with mounted(agent) as url:
        async with Client.connect(url) as client:
            (session,) = agent.calls.sessions
            session.send(TurnStarted())
            client.say("Yes")
            await client.told(ReplyEnded)
        await notes.until("on_end")
    assert notes.lines == [
        ("on_call",),
        ("on_turn_started",),
        ("on_text", "Yes"),
        ("on_reply", "Well."),
        ("on_reply", "Yes!"),
        ("on_heard", "reply1.1", "Well."),
        ("on_heard", "reply1.2", "Yes!"),
        ("on_end",),
    ]
    assert len(set(notes.calls)) == 1


async def test_a_real_voice_speaks_an_llms_reply_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the tokens of an OpenAI-compatible server; and a text that a client writes over the data channel."""
    folder, heard = voice("qwen3_tts", tmp_path), asyncio.Event()
    (folder / "generation_config.json").write_text('{"max_new_tokens": 60}')

    async def write(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for word in ("hello ", "there ", "my ", "friend "):
            await response.write(chunk(word))
        await heard.wait()  # the rest is written when the beginning was heard
        await response.write(chunk("good day") + chunk(finish="stop") + DONE)
        return response

    with Runtime.start(RuntimeConfig(folder, "cpu")) as runtime:
        appended = list[str]()
        append = runtime.append_text
        monkeypatch.setattr(runtime, "append_text", lambda number, text: (appended.append(text), append(number, text)))
        async with StandIn() as mind:
            mind.answers = [write]
            agent = VoiceAgent(runtime, brain=BrainConfig("openai", url=mind.url, model="m"))
            async with mounted(agent) as url, Client.connect(url) as client:
                ended = asyncio.create_task(client.told(ReplyEnded))
                client.say("Hi!")
                await client.told(SpeechStarted)
                assert not ended.done()
                heard.set()
                assert (await ended).reason == "end"
                utterance = client.speak("hello ", open=True)
                client.append(utterance, "there my friend")
                client.finish(utterance)
                assert (await utterance).heard_seconds > 0
        assert "".join(appended).endswith("good daythere my friend")


async def test_a_turn_that_is_spoken_is_told(engine: ScriptedRuntime) -> None:
    notes = Notes()
    names = ("on_turn_started", "on_text", "on_reply")
    agent = VoiceAgent(
        engine,
        brain=lambda text: f"So: {text}.",
        transcriber=lambda audio: f"{audio.size / 16_000:.0f} seconds",
        **{name: notes.hook(name) for name in names},
    )
    async with mounted(agent) as url, Client.connect(url) as client:
        await client.send_microphone(int16(clip("user", 24_000)), 24_000)
        await client.told(ReplyEnded)
    assert notes.lines[0] == ("on_turn_started",)
    assert notes.lines[-2:] == [("on_text", "3 seconds"), ("on_reply", "So: 3 seconds.")]


@pytest.mark.parametrize(("words", "text", "becomes"), [("stop", "Stop!", "stopped"), ("mhm", "Mm-hmm.", "continued")])
async def test_a_short_word_over_a_reply_interrupts_it_for_what_it_says(
    engine: ScriptedRuntime, words: str, text: str, becomes: str
) -> None:
    notes = Notes()
    agent = VoiceAgent(
        engine,
        brain=lambda text: f"{text * 40}. And more of that.",
        transcriber=lambda audio: text,
        turns=Settings(words_wait=30.0, max_pause=60.0),  # however busy the machine is
        on_text=notes.hook("on_text"),
    )
    async with mounted(agent) as url, Client.connect(url) as client:
        client.say("abc ")
        await client.told(SpeechProgress)
        continued = asyncio.create_task(client.told(SpeechContinued))
        await client.send_microphone(int16(clip(words, 24_000)), 24_000)
        if becomes == "continued":
            await continued
            client.stop()
        else:
            await notes.until("on_text", text)
            assert not continued.done()
    await asyncio.gather(continued, return_exceptions=True)
    assert notes.lines == [("on_text", "abc "), ("on_text", text)][: 2 if becomes == "stopped" else 1]


async def test_every_call_has_a_turn_end_model_of_its_own_and_the_apps_backchannels(engine: ScriptedRuntime) -> None:
    asked, made = asyncio.Event(), list[object]()

    def make() -> TurnEndModel:
        async def judge(turn: TurnSoFar) -> None:
            if await turn.text() == "Amen.":
                asked.set()

        made.append(judge)
        return judge

    agent = VoiceAgent(engine, brain=str.upper, transcriber=lambda audio: "Amen.", turn_end=make, backchannels=["amen"])
    async with mounted(agent) as url, Client.connect(url), Client.connect(url):
        assert len(set(map(id, made))) == 2
        conversation: Any = agent.calls.sessions[0].partner
        conversation.ears.audio = lambda onset_at, ended_at: np.ones(8000, np.int16)
        judge: Judge = conversation.understanding
        async with asyncio.timeout(WITHIN):
            judge.over(1.0, 1.5)
            await asked.wait()
        assert not judge.interrupts(1.0, 1.5)
        assert not judge.asking, "it is known, and a listener's word"


async def test_an_interrupted_reply_is_told_once_with_what_was_heard(engine: ScriptedRuntime) -> None:
    notes = Notes()
    agent = VoiceAgent(
        engine,
        brain=lambda text: f"{text * 40}. And more of that.",
        on_interrupted=notes.hook("on_interrupted"),
        on_heard=notes.hook("on_heard"),
    )
    async with mounted(agent) as url, Client.connect(url) as client:
        client.say("abc ")
        await client.told(SpeechProgress)
        client.stop()
        await notes.until("on_interrupted")
        ended = [line for line in notes.lines if line[0] == "on_interrupted"]
        heard = [line[2] for line in notes.lines if line[0] == "on_heard"]
    assert ended == [("on_interrupted", " ".join(text for text in heard if text))]


async def test_an_application_speaks_stops_and_hangs_up(engine: ScriptedRuntime) -> None:
    notes = Notes()

    def greet(call: Call) -> None:
        call.data["greeting"] = call.speak("x" * 50)
        call.data["too long"] = call.speak("x" * 500)

    agent = VoiceAgent(engine, on_call=greet, on_interrupted=notes.hook("on_interrupted"), on_end=notes.hook("on_end"))
    async with mounted(agent) as url:
        async with Client.connect(url) as client:
            started = await client.told(SpeechStarted)
            (session,) = agent.calls.sessions
            session.stop()  # the first utterance plays
            await notes.until("on_interrupted")
            (call,) = notes.calls
            assert call.data == {"greeting": started.id, "too long": None}
            assert call.quiet
            call.speak("Goodbye.")
            call.stop()
            await call.hang_up()
        await notes.until("on_end")
        assert call.speak("Hello?") is None
    assert [name for name, *_ in notes.lines] == ["on_interrupted", "on_end"]


async def test_a_hook_that_fails_harms_nobody_and_is_logged(
    engine: ScriptedRuntime, caplog: pytest.LogCaptureFixture
) -> None:
    notes = Notes()

    def fail(call: Call, *words: str) -> None:
        raise RuntimeError("oh dear")

    async def fail_later(call: Call, *words: str) -> None:
        await asyncio.sleep(0)
        raise RuntimeError("oh dear, later")

    agent = VoiceAgent(
        engine, brain=str.upper, on_call=fail, on_text=fail_later, on_reply=fail, on_heard=notes.hook("on_heard")
    )
    async with mounted(agent) as url, Client.connect(url) as client:
        client.say("yes")
        await notes.until("on_heard")
    assert notes.lines == [("on_heard", "reply1.1", "YES")]
    assert [record.message for record in caplog.records if record.levelno >= logging.ERROR] == [
        "the hook on_call failed",
        "the hook on_text failed",
        "the hook on_reply failed",
    ]


async def test_a_hook_that_hangs_holds_up_neither_its_call_nor_for_long_the_end(
    engine: ScriptedRuntime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(voice_agent, "HOOK_SECONDS", 0.05)
    cancelled = list[str]()

    async def hang(call: Call) -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(call.id)
            raise

    agent = VoiceAgent(engine, on_call=hang)
    async with mounted(agent) as url, Client.connect(url) as client:
        assert (await client.speak("fine")).heard == "fine"
    assert len(cancelled) == 1
    assert "is cancelled" in caplog.text


async def test_slow_hooks_lose_the_oldest(caplog: pytest.LogCaptureFixture) -> None:
    texts = list[str]()
    call: Any = None
    told = Told({"on_text": lambda call, text: texts.append(text)}, call)
    for n in range(MAX_WAITING + 2):
        told.take(TurnText(text=str(n)))
    told.take(TurnStarted())  # for which there is no hook
    told.end()
    told.take(TurnText(text="too late"))
    await told.run()
    assert texts == [str(n) for n in range(2, MAX_WAITING + 2)]
    assert caplog.text.count("on_text was not called") == 2


async def test_what_counts_as_an_interruption() -> None:
    texts = list[str]()
    call: Any = None
    told = Told({"on_interrupted": lambda call, text: texts.append(text)}, call)

    def stopped(name: str, reason: str, heard: str) -> SpeechStopped:
        return SpeechStopped(id=name, reason=reason, heard_ms=0, sent_ms=0, heard=heard)

    for message in (
        SpeechStarted(id="a", ttfa_ms=1),
        stopped("a", "end", "said to its end"),
        stopped("b", "cancelled", ""),  # it had not begun
        SpeechStarted(id="c", ttfa_ms=1),
        stopped("c", "cancelled", "the app's own"),
        ReplyText(id="reply1.1", text="one of a reply"),
        SpeechStarted(id="reply1.1", ttfa_ms=1),
        stopped("reply1.1", "cancelled", "one of"),
        ReplyEnded(id="reply1", reason="interrupted", heard="one of"),
        ReplyEnded(id="reply2", reason="end", heard="two"),
    ):
        told.take(message)
    told.end()
    await told.run()
    assert texts == ["the app's own", "one of"]


async def test_a_call_that_never_connects_also_ends(engine: ScriptedRuntime) -> None:
    from caller import Caller

    notes, caller = Notes(), Caller()
    agent = VoiceAgent(engine, on_call=notes.hook("on_call"), on_end=notes.hook("on_end"))
    async with mounted(agent) as url, ClientSession(base_url=f"{url}/") as http:
        async with http.post("offer", json={"sdp": await caller.offer(), "type": "offer"}) as response:
            answer = await response.json()
        async with http.delete(f"calls/{answer['id']}"):
            pass
        await notes.until("on_end")
    await caller.close()
    assert notes.lines == [("on_call",), ("on_end",)]


async def test_hooks_need_no_client_that_is_told(executor: ThreadPoolExecutor) -> None:
    """A listener without a data channel, as WHEP has it, is spoken to all the same."""
    call, told, ends = ScriptedCall(executor), list[str](), list[int]()
    watcher: Any = SimpleNamespace(take=lambda message: told.append(type(message).__name__), end=lambda: ends.append(1))
    call.session.watch(watcher)
    call.session.send(TurnText(text="before"))
    call.session.listen(call.take)
    call.session.send(TurnText(text="after"))
    assert told == ["TurnText", "SessionCreated", "TurnText"]
    assert [message["text"] for message in call.told("turn.text")] == ["before", "after"]
    call.session.close()
    call.session.send(TurnText(text="too late"))
    assert (len(told), ends) == (3, [1])
    call.session.watch(watcher)
    assert ends == [1, 1]


async def test_it_takes_any_kind_of_brain_and_is_attached_once(engine: ScriptedRuntime) -> None:
    for brain in (
        str.upper,
        BrainConfig(),
        make_brain(BrainConfig(greeting="Hello.")),
        make_brain(BrainConfig("function"), str.upper),
        None,
    ):
        agent = VoiceAgent(engine, brain=brain, vad=None, transcriber=TranscriberConfig() if brain else None)
        with pytest.raises(RuntimeError, match="attach"):
            _ = agent.calls
        agent.attach(web.Application())
        with pytest.raises(RuntimeError, match="one application"):
            agent.attach(web.Application())
        await agent.calls.close()
    with pytest.raises(SettingsError, match="int"):
        VoiceAgent(engine, brain=7)  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="needs a brain"):
        VoiceAgent(engine, transcriber=TranscriberConfig())
    with pytest.raises(ValueError, match="nobody"):
        VoiceAgent(engine, vad="nobody")
