"""Voice beside a site of another framework: the agent has a port of its own, and lets the site's pages in.

python samples/beside.py, then open http://127.0.0.1:8000/. `site` stands for your Flask or Django (WSGI).
"""

from threading import Thread
from wsgiref.simple_server import make_server

from aiohttp import web

from agent.guard import Access
from agent.voice_agent import VoiceAgent
from engine.runtime import Runtime

PAGE = b"""<!doctype html><audio id="audio" autoplay></audio><button onclick="call()">Call</button><script>
const peer = new RTCPeerConnection(); peer.ontrack = ({track}) => audio.srcObject = new MediaStream([track]);
async function call() {
  peer.addTransceiver("audio"); await peer.setLocalDescription(); const body = JSON.stringify(peer.localDescription);
  const answer = await fetch("http://127.0.0.1:8080/offer", {method: "POST", body});
  await peer.setRemoteDescription(await answer.json()); }</script>"""


if __name__ == "__main__":
    site = lambda environ, start: [start("200 OK", [("Content-Type", "text/html")]) and PAGE]  # noqa: E731
    Thread(target=make_server("127.0.0.1", 8000, site).serve_forever, daemon=True).start()
    with Runtime.start() as runtime:
        access, app = Access(allow_origins=("http://127.0.0.1:8000",)), web.Application()
        VoiceAgent(runtime, access=access, on_call=lambda call: call.speak("Hello!")).attach(app)
        web.run_app(app, host="127.0.0.1", port=8080)
