"""The life of `breezert serve`: bind, load the voice, answer, drain on a signal, end. It does not know the routes.

A user's mistake raises ServeError, whose text is one clear line.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import signal
import socket
import ssl
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from agent.answering import Answering
from agent.calls import USUAL, CallLimits, Calls
from agent.door import ROUTE, Door, NoFaultFilter, noting
from agent.guard import Access, AccessError, is_loopback
from agent.leftovers import Leftovers
from agent.manner import Manner
from agent.server import attach
from agent.trouble import OutsideError
from agent.voices import Voices
from agent.whep import IceServer
from engine.clock import MonotonicClock
from engine.core import Mode
from engine.messages import RuntimeConfig
from engine.runtime import EngineError, Runtime
from engine.voice_folder import VoiceFolder

access_log = logging.getLogger("agent.access")

HANDSHAKE_SECONDS = 10.0
"""Of TLS: whoever takes longer holds a descriptor that no other limit counts."""
SWITCH_SECONDS = 0.0005
"""After which a thread that computes gives way to one that waits for the interpreter: by default it takes 5 ms, a
quarter of the time between two packets."""
SHUTDOWN_SECONDS = 1.0
"""What requests that are still being read or answered may take at the end."""


class ServeError(Exception):
    """The server could not be started; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """What `serve` was asked for."""

    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    access: Access = field(default_factory=Access)
    limits: CallLimits = field(default_factory=CallLimits)
    port: int = 8080
    """0 takes a free one."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    answering: Answering | None = None
    """Who answers what callers say."""
    drain: float = 10.0
    """Seconds that running utterances have after SIGTERM."""
    voices: Path | None = None
    """A folder of voices with a name."""
    ice_servers: tuple[IceServer, ...] = ()
    """That players which call by WHEP are told of."""
    manner: Manner = USUAL
    """How all is said, unless a call says otherwise."""
    demo: bool = False
    """Callers may change load, policy and the network that they are shown with."""


class AccessLog(AbstractAccessLogger):
    """Method, route, status and time. No query, no header and no call's id: any of them may be a secret."""

    @property
    def enabled(self) -> bool:
        return self.logger.isEnabledFor(logging.INFO)

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        route = request.get(ROUTE, "(no such route)")
        self.logger.info("%s %s %s %d %.0f ms", request.remote, request.method, route, response.status, 1000 * time)


def run(config: ServeConfig, started: Callable[[RuntimeConfig], Runtime] = Runtime.start) -> None:
    """Serves until SIGTERM or SIGINT. Raises ServeError, before the voice is loaded where that can be known."""
    tls = tls_context(config)
    if config.voices is not None and not config.voices.is_dir():
        raise ServeError(f"--voices: expected a folder, got {config.voices}; `breezert voice add` makes one")
    if config.manner.voice and config.voices is None:
        raise ServeError("--ref-voice needs --voices, the folder that it is in")
    logging.getLogger("aiohttp.server").addFilter(NoFaultFilter())
    sys.setswitchinterval(SWITCH_SECONDS)
    with bound(config.access.host, config.port) as sock:
        try:
            runtime = started(config.runtime)
        except EngineError as error:
            raise ServeError(str(error)) from error
        with runtime:
            asyncio.run(serve(config, runtime, sock, tls))


async def serve(config: ServeConfig, runtime: Runtime, sock: socket.socket, tls: ssl.SSLContext | None) -> None:
    """Answers on a bound socket until a signal comes, then drains; a second signal ends that."""
    signals = caught(signal.SIGTERM, signal.SIGINT)
    app = web.Application()
    try:
        calls = attach(
            app,
            runtime,
            access=config.access,
            limits=config.limits,
            answering=config.answering,
            show=runtime if config.demo else None,
            voices=Voices(runtime, VoiceFolder(config.voices) if config.voices else None),
            ice_servers=config.ice_servers,
            manner=config.manner,
        )
    except ValueError as error:
        raise ServeError(str(error)) from error
    runtime.follow(calls.scene.take)
    door = Door(MonotonicClock())
    app.middlewares.append(noting(door))
    runner = web.AppRunner(
        app, access_log_class=AccessLog, access_log=access_log, handle_signals=False, shutdown_timeout=SHUTDOWN_SECONDS
    )
    try:
        if await set_up(runner, signals):
            door.server = runner.server
            await answer(config, runtime, calls, door, sock, tls, signals)
    finally:
        await runner.cleanup()


async def set_up(runner: web.AppRunner, signals: asyncio.Queue[None]) -> bool:
    """Starts what the application holds; false where a signal came first. Raises ServeError."""
    starting = asyncio.create_task(runner.setup())
    ending = asyncio.create_task(signals.get())
    await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
    over = ending.done()
    for task in (starting, ending):
        task.cancel()
    try:
        await starting
    except asyncio.CancelledError:
        return False
    except OutsideError as error:
        raise ServeError(f"--transcriber: {error}") from error
    return not over


async def answer(
    config: ServeConfig,
    runtime: Runtime,
    calls: Calls,
    door: Door,
    sock: socket.socket,
    tls: ssl.SSLContext | None,
    signals: asyncio.Queue[None],
) -> None:
    """Until a signal comes, then drains. Raises ServeError where another program has begun to listen there."""
    leftovers = Leftovers(lambda: calls.quiet)
    calls.ended = leftovers.free_soon
    patience = HANDSHAKE_SECONDS if tls else None
    try:
        server = await asyncio.get_running_loop().create_server(
            door, sock=sock, ssl=tls, ssl_handshake_timeout=patience
        )
    except OSError as error:
        raise ServeError(f"cannot listen at {sock.getsockname()[:2]}: {error.strerror}") from error
    watch = asyncio.create_task(door.watch())
    try:
        announce(config, runtime, sock.getsockname()[1])
        await signals.get()
        if not calls.quiet:
            print("ending: what is being said is finished first", file=sys.stderr, flush=True)
        await first(calls.drain(config.drain), signals.get())
    finally:
        watch.cancel()
        server.close()
        leftovers.close()


def caught(*numbers: signal.Signals) -> asyncio.Queue[None]:
    """A queue with an entry for each of these signals that comes from now on."""
    queue = asyncio.Queue[None]()
    for number in numbers:
        asyncio.get_running_loop().add_signal_handler(number, queue.put_nowait, None)
    return queue


async def first(*waits: Coroutine[None, None, None]) -> None:
    """Returns when one of them has, and cancels the others."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    _, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)


def announce(config: ServeConfig, runtime: Runtime, port: int) -> None:
    """Where, and whose voice; beyond this machine also what to mind. The token itself is never printed."""
    host = f"[{config.access.host}]" if ":" in config.access.host else config.access.host
    scheme = "https" if config.tls_cert else "http"
    licence = runtime.spec.licence
    restricted = " (non-commercial use only)" if re.search(r"non-?\s?commercial|\bnc\b", licence, re.I) else ""
    print(f"BreezeRT listens at {scheme}://{host}:{port}/")
    print(f"voice {runtime.spec.name}, licence {licence}{restricted}, on {runtime.device}", flush=True)
    if Mode.PLAIN not in runtime.spec.modes and not config.manner.voice:
        print("it only speaks like somebody else: --ref-voice, or each caller, says like whom", file=sys.stderr)
    if config.access.token is not None:
        print("the page asks for the token, or takes it from its address: append #token=...", file=sys.stderr)
    if config.tls_cert is None and not is_loopback(config.access.host):
        print("without --tls-cert and --tls-key the token crosses the network in the clear", file=sys.stderr)


def bound(host: str, port: int) -> socket.socket:
    """A TCP socket that holds the port and does not listen yet: nobody waits in line while the voice loads."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ServeError(f"the host {host} cannot be found: {error.strerror}") from error
    sock = socket.socket(family, kind, proto)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise ServeError(f"port {port} on {host} is in use: choose another one with --port") from error
        raise ServeError(f"cannot bind to {host} port {port}: {error.strerror}") from error
    return sock


def tls_context(config: ServeConfig) -> ssl.SSLContext | None:
    """The certificate, where one was given. Raises ServeError."""
    if config.tls_cert is None and config.tls_key is None:
        return None
    if config.tls_cert is None or config.tls_key is None:
        raise ServeError("TLS needs both --tls-cert and --tls-key")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.tls_cert, config.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ServeError(f"the certificate {config.tls_cert} or its key cannot be used: {error}") from error
    return context


def access(
    host: str, token: str | None, token_file: Path | None, hosts: list[str], origins: list[str], rate: float
) -> Access:
    """The rules that the options ask for. Raises ServeError."""
    if token is not None and token_file is not None:
        raise ServeError("give --token or --token-file, not both")
    try:
        if token_file is not None:
            token = token_file.read_text().strip()
        return Access(host, token, tuple(hosts), tuple(origins), rate)
    except OSError as error:
        raise ServeError(f"the token file {token_file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ServeError(f"the token file {token_file} must be text in UTF-8, found other bytes") from error
    except AccessError as error:
        raise ServeError(str(error)) from error
