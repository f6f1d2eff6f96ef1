"""Voice beside a site of FastAPI, in one program: the agent has a port of its own, and lets the site's pages in.

pip install fastapi uvicorn && python samples/beside.py     # then open http://127.0.0.1:8000/
"""

import asyncio

import uvicorn
from aiohttp import web
from fastapi import FastAPI
from fastapi.responses import HTMLResponse

from agent.guard import Access
from agent.voice_agent import VoiceAgent
from engine.runtime import Runtime

PAGE = """<!doctype html><audio id="audio" autoplay></audio><button onclick="call()">Call</button><script>
const peer = new RTCPeerConnection(); peer.ontrack = ({track}) => audio.srcObject = new MediaStream([track]);
async function call() {
  peer.addTransceiver("audio"); await peer.setLocalDescription(); const body = JSON.stringify(peer.localDescription);
  const answer = await fetch("http://127.0.0.1:8080/offer", {method: "POST", body});
  await peer.setRemoteDescription(await answer.json()); }</script>"""
site = FastAPI()
site.get("/", response_class=HTMLResponse)(lambda: PAGE)


async def main() -> None:
    with Runtime.start() as runtime:
        access, app = Access(allow_origins=("http://127.0.0.1:8000",)), web.Application()
        VoiceAgent(runtime, access=access, on_call=lambda call: call.speak("Hello!")).attach(app)
        await (runner := web.AppRunner(app)).setup()
        await web.TCPSite(runner, "127.0.0.1", 8080).start()
        await uvicorn.Server(uvicorn.Config(site, host="127.0.0.1", port=8000)).serve()
        await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main())
