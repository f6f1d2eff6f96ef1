"""The stock client of OpenAI Realtime in a real Chromium: npm @openai/agents-realtime, its own bundle, unchanged.

npm fetches the package, nothing else and without its dependencies: the bundle has them inside.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import require_browser
from npm import taken
from sounds import Wave, clip, noise
from test_talk import LONG, write

from agent.browser import Served, chromium, tab

if TYPE_CHECKING:
    from playwright.async_api import Page

pytestmark = [pytest.mark.browser, pytest.mark.asyncio(loop_scope="session")]

CLIENT = "@openai/agents-realtime@0.20.0"
SHA512 = "KK3w9k9rkqv5mC25vykWTe/1IIcOMsqwJs9mB0aX9Z2Us487xGduZgqr+ENEzthjZbQvTi/+qUv/tfoZeN/p/w=="
"""Of the package, as `npm view CLIENT dist.integrity` says."""
BUNDLE = "package/dist/bundle/openai-realtime-agents.umd.js"
WITHIN_MS = 30_000

SET_UP = """
async (session) => {
  const { OpenAIRealtimeWebRTC, RealtimeAgent, RealtimeSession } = OpenAIAgentsRealtime;
  const body = JSON.stringify({ session });
  const made = await (await fetch("v1/realtime/client_secrets", { method: "POST", body })).json();
  const talk = (globalThis.talk = { events: [], errors: [], peaks: [], history: [], audio: new Audio() });
  const baseUrl = new URL("v1/realtime/calls", location).href;
  talk.transport = new OpenAIRealtimeWebRTC({ baseUrl, audioElement: talk.audio });
  talk.session = new RealtimeSession(new RealtimeAgent({ name: "agent", instructions: "Be brief." }), {
    transport: talk.transport,
  });
  talk.session.on("transport_event", (event) => talk.events.push({ at: Date.now(), ...event }));
  talk.session.on("error", (error) => talk.errors.push(JSON.stringify(error)));
  talk.session.on("history_updated", (history) => { talk.history = history; });
  const asked = Date.now();
  await talk.session.connect({ apiKey: made.value });
  talk.connected_ms = Date.now() - asked;
  const context = new AudioContext();
  const analyser = new AnalyserNode(context, { fftSize: 2048 });
  context.createMediaStreamSource(talk.audio.srcObject).connect(analyser);
  const samples = new Float32Array(analyser.fftSize);
  setInterval(() => {
    analyser.getFloatTimeDomainData(samples);
    talk.peaks.push([Date.now(), Math.max(...samples.map(Math.abs))]);
  }, 20);
  talk.said = (type) => talk.events.filter((event) => event.type === type);
  talk.loud = (from, to = Infinity) => talk.peaks.filter(([at, peak]) => at >= from && at <= to && peak > 0.003).length;
}
"""


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The client's file."""
    return taken(CLIENT, SHA512, BUNDLE, tmp_path_factory.mktemp("npm"))


class Talk:
    """A page in which the stock client is connected."""

    def __init__(self, page: Page) -> None:
        self.page = page

    async def do(self, code: str) -> Any:
        return await self.page.evaluate(code)

    async def until(self, condition: str) -> None:
        await self.page.wait_for_function(condition, timeout=WITHIN_MS)

    async def said(self, kind: str) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = await self.page.evaluate("(kind) => talk.said(kind)", kind)
        return events

    async def types(self) -> list[str]:
        kinds: list[str] = await self.page.evaluate("talk.events.map(({ type }) => type)")
        return kinds

    async def send(self, text: str) -> None:
        await self.page.evaluate("(text) => talk.session.sendMessage(text)", text)

    async def until_audible(self) -> None:
        await self.until("talk.said('output_audio_buffer.started').length > 0")
        await self.until("talk.loud(talk.said('output_audio_buffer.started').at(-1).at) > 10")


@asynccontextmanager
async def talking(server: Served, bundle: Path, file: Path, sound: Wave, **session: Any) -> AsyncIterator[Talk]:
    """The stock client in a call, whose microphone hears the sound."""
    require_browser()
    async with chromium(microphone=write(file, sound)) as browser, tab(browser, server.url) as listener:
        await listener.page.add_script_tag(path=bundle)
        await listener.page.evaluate(SET_UP, {"type": "realtime", **session})
        talk = Talk(listener.page)
        yield talk
        assert await talk.do("talk.errors") == []


async def test_connect_type_listen_interrupt_mute_and_close(server: Served, bundle: Path, tmp_path: Path) -> None:
    async with talking(server, bundle, tmp_path / "quiet.wav", noise(0.1)) as talk:
        assert await talk.do("talk.connected_ms") < 4000, (
            "by session.updated, not by the client's own time limit of 5 s"
        )
        assert await talk.do("talk.session.transport.callId") is not None, "taken from Location"
        session = (await talk.said("session.updated"))[-1]["session"]
        assert session["instructions"] == "Be brief."
        assert session["audio"]["input"]["turn_detection"] == {"type": "semantic_vad"}

        await talk.send("Good morning.")
        await talk.until("talk.said('output_audio_buffer.stopped').length === 1")
        (done,) = await talk.said("response.done")
        assert done["response"]["status"] == "completed"
        started, stopped = (await talk.said("output_audio_buffer.started"))[0]["at"], done["at"]
        assert await talk.do(f"talk.loud({started}, {stopped})") > 10, "it is heard"
        history = await talk.do("talk.history")
        assert [item["role"] for item in history] == ["user", "assistant"]
        assert history[0]["content"][0]["text"] == "Good morning."
        assert history[1]["content"][0]["transcript"] == "Good morning."
        assert history[1]["status"] == "completed"

        await talk.send(LONG)
        await talk.until("talk.said('output_audio_buffer.started').length === 2")
        await talk.until_audible()
        interrupted_at = await talk.do("(talk.session.interrupt(), Date.now())")
        await talk.until("talk.said('response.done').length === 2")
        done = (await talk.said("response.done"))[1]
        assert done["response"]["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
        await talk.until("talk.said('conversation.item.retrieved').length === 1")  # it asks by itself what was heard
        (truncated,) = await talk.said("conversation.item.truncated")
        (retrieved,) = await talk.said("conversation.item.retrieved")
        assert truncated["item_id"] == retrieved["item"]["id"]
        assert LONG.startswith(retrieved["item"]["content"][0]["transcript"])
        await talk.page.wait_for_timeout(1000)  # justified: nothing is to be heard in this second
        assert not await talk.do(f"talk.loud({interrupted_at} + 400)"), "it is silent"

        await talk.send("Once more.")
        await talk.until("talk.said('output_audio_buffer.stopped').length === 2")
        assert (await talk.do("talk.history.at(-1)"))["content"][0]["transcript"] == "Once more."

        kept = await talk.do("talk.history.slice(0, 2).map(({ itemId }) => itemId)")
        await talk.do("talk.session.updateHistory((history) => history.slice(0, 2))")
        await talk.until("talk.history.length === 2")
        assert await talk.do("talk.history.map(({ itemId }) => itemId)") == kept

        await talk.do("talk.session.mute(true)")
        assert await talk.do("talk.session.muted")
        await talk.do("talk.session.close()")
        left = "async () => /^breezert_peers 0/m.test(await (await fetch('metrics')).text())"
        await talk.until(left)


async def test_a_spoken_turn_is_answered(server: Served, bundle: Path, tmp_path: Path) -> None:
    async with talking(server, bundle, tmp_path / "user.wav", clip("user")) as talk:
        await talk.until("talk.said('output_audio_buffer.stopped').length === 1")
        kinds = [kind for kind in await talk.types() if not kind.endswith(("created", "delta"))]
        first = kinds.index("input_audio_buffer.speech_started")
        assert kinds[first : first + 7] == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
            "conversation.item.added",
            "conversation.item.done",
            "response.output_item.added",
            "conversation.item.added",
        ]
        (started,), (stopped,) = (
            await talk.said("input_audio_buffer.speech_started"),
            await talk.said("input_audio_buffer.speech_stopped"),
        )
        assert started["item_id"] == stopped["item_id"]
        assert 1500 < stopped["audio_end_ms"] - started["audio_start_ms"] < 4500
        roles = [item["role"] for item in await talk.do("talk.history")]
        assert roles == ["user", "assistant"]
        assert "seconds of speech" in (await talk.do("talk.history.at(-1)"))["content"][0]["transcript"]
        from_at, to_at = (await talk.said("output_audio_buffer.started"))[0]["at"], "Infinity"
        assert await talk.do(f"talk.loud({from_at}, {to_at})") > 10


async def test_who_speaks_over_the_agent_interrupts_it(server: Served, bundle: Path, tmp_path: Path) -> None:
    said = clip("user")
    async with talking(server, bundle, tmp_path / "user.wav", np.concatenate([said, noise(1.0), said])) as talk:
        await talk.send(LONG)
        await talk.until("talk.said('response.done').length > 0")
        done = (await talk.said("response.done"))[0]
        assert done["response"]["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        kinds = await talk.types()
        assert kinds.index("output_audio_buffer.cleared") < kinds.index("conversation.item.truncated")
        heard = done["response"]["output"][0]["content"][0]["transcript"]
        assert LONG.startswith(heard)


async def test_a_muted_microphone_is_not_heard(server: Served, bundle: Path, tmp_path: Path) -> None:
    async with talking(server, bundle, tmp_path / "user.wav", clip("user")) as talk:
        await talk.do("talk.session.mute(true)")
        await talk.page.wait_for_timeout(7000)  # justified: the user speaks in these seconds, and nothing is to happen
        assert not await talk.said("input_audio_buffer.speech_started")


async def test_what_a_key_has_fixed_stays(server: Served, bundle: Path, tmp_path: Path) -> None:
    wanted = {"instructions": "Only of trains."}
    async with talking(server, bundle, tmp_path / "quiet.wav", noise(0.1), **wanted) as talk:
        for event in await talk.said("session.updated"):
            assert event["session"]["instructions"] == "Only of trains."
