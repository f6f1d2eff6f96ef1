"""Voice inside an aiohttp application of your own: whoever opens /voice/ and connects is greeted."""

from aiohttp import web

from agent.protocol import Speak
from agent.server import attach
from agent.session import Engine, Session
from engine.runtime import Runtime


def greet(session: Session) -> None:
    session.speak(Speak(id="greeting", text="Hello! This application can speak."))


def application(engine: Engine) -> web.Application:
    app = web.Application()  # with your own routes
    attach(app, engine, prefix="/voice", opened=greet)
    return app


if __name__ == "__main__":
    with Runtime.start() as runtime:
        web.run_app(application(runtime), host="127.0.0.1", port=8080)
