"""An agent that an OpenAI-compatible server thinks for (vLLM, Ollama, llama.cpp, or a hosted one).

    python samples/llm.py http://localhost:11434/v1 qwen3    # then open http://127.0.0.1:8080/

The key, where the server needs one, stands in the environment variable LLM_KEY.
"""

import os
import sys

from aiohttp import web

from agent.brain import BrainConfig
from agent.session import Engine
from agent.voice_agent import VoiceAgent
from engine.runtime import Runtime


def application(engine: Engine, url: str, model: str) -> web.Application:
    key_env = "LLM_KEY" if "LLM_KEY" in os.environ else None
    brain = BrainConfig("openai", url=url, model=model, key_env=key_env, greeting="Hello! What can I do for you?")
    app = web.Application()
    VoiceAgent(engine, brain=brain).attach(app)
    return app


if __name__ == "__main__":
    with Runtime.start() as runtime:
        web.run_app(application(runtime, *sys.argv[1:]), host="127.0.0.1", port=8080)
