"""An agent whose brain is a Python function: what the user said or typed in, what to answer out.

    python samples/own_brain.py     # then open http://127.0.0.1:8080/voice/ and type

What is spoken is text where somebody transcribes: VoiceAgent(transcriber=TranscriberConfig("faster-whisper", ...)).
"""

from collections.abc import Iterator

from aiohttp import web

from agent.session import Engine
from agent.voice_agent import VoiceAgent
from engine.runtime import Runtime


def answer(text: str) -> Iterator[str]:
    yield f"You said: {text}. "  # spoken while the rest is still being thought about
    yield f"That has {len(text.split())} words."


def application(engine: Engine) -> web.Application:
    app = web.Application()  # with your own routes
    VoiceAgent(engine, brain=answer, on_text=lambda call, text: print("user:", text)).attach(app, prefix="/voice")
    return app


if __name__ == "__main__":
    with Runtime.start() as runtime:
        web.run_app(application(runtime), host="127.0.0.1", port=8080)
