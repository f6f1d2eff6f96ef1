"""The command `breezert`: serve, bench browser, and the engine's own commands. It imports WebRTC only to serve."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from engine import __main__ as engine_commands
from engine.command import add_voice_options, runtime_config
from engine.options import number, patience, port, positive, seconds

PROGRAM = "breezert"
COMMANDS = {
    "serve": "talk to a voice in the browser",
    "probe": "how any WebRTC voice agent treats who speaks over it",
    "bench browser": "what is heard in a real Chromium",
    "bench bargein": "how fast the agent falls silent when somebody speaks over it",
    "bench page": "what the demo page costs, and what its caller hears of each policy",
    "bench transport": "how evenly packets leave, and how soon a microphone is heard",
}
"""What is not the engine's."""
TELL_SECONDS = 0.1
"""Between two tellings of the engine's steps and metrics: a page that shows them is to be up to date."""


def serve_parser() -> argparse.ArgumentParser:
    """The options of `serve`. Unknown ones are errors."""
    from agent.answering import add_options
    from agent.serve import ServeConfig
    from agent.whep import IceServer

    def ice_server(url: str) -> IceServer:
        try:
            return IceServer(url)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    default = ServeConfig()
    parser = argparse.ArgumentParser(prog=f"{PROGRAM} serve", allow_abbrev=False, description="Serve voice calls.")
    add = parser.add_argument
    add(
        "--host",
        default=default.access.host,
        help="address to bind; other than loopback needs a token (default: %(default)s)",
    )
    add("--port", type=port, default=default.port, help="0 takes a free one (default: %(default)s)")
    add_voice_options(parser)
    add("--token", help="clients must send it as a Bearer token; --token-file keeps it out of the process list")
    add("--token-file", type=Path, metavar="FILE", help="holds the token and nothing else")
    add("--tls-cert", type=Path, metavar="FILE", help="PEM certificate chain")
    add("--tls-key", type=Path, metavar="FILE")
    add(
        "--allow-host", action="append", default=[], metavar="NAME", help="a name the server is asked under; repeatable"
    )
    add(
        "--allow-origin", action="append", default=[], metavar="ORIGIN", help="another page that may use it; repeatable"
    )
    add(
        "--ice-server",
        action="append",
        default=[],
        type=ice_server,
        metavar="URL",
        help="stun: or turn: without a user's name, that players which call by WHEP are told of; repeatable",
    )
    add(
        "--max-peers",
        type=positive,
        default=default.limits.max_peers,
        help="calls at once (default: %(default)s)",
    )
    add(
        "--max-queued",
        type=positive,
        default=default.limits.max_queued,
        help="utterances that one call may have waiting (default: %(default)s)",
    )
    add(
        "--max-wait",
        type=patience,
        default=default.runtime.max_wait,
        metavar="SECONDS",
        help="what a new caller may have to wait, as predicted, until one more voice makes nobody stutter; who would "
        "wait longer is refused as busy: 0 refuses at once, inf serves everybody, late or not (default: %(default)s)",
    )
    add(
        "--max-rate",
        type=number,
        default=default.access.rate,
        help="requests a second of one address (default: %(default)s)",
    )
    add(
        "--drain",
        type=seconds,
        default=default.drain,
        metavar="SECONDS",
        help="what is being said may take so long after SIGTERM (default: %(default)s)",
    )
    add_options(parser)
    add("--voices", type=Path, metavar="FOLDER", help="whose voices may be spoken with by name: see `voice`")
    add("--ref-voice", metavar="NAME", help="speak like this one of --voices, unless a call says otherwise")
    add("--speaker", metavar="NAME", help="who speaks, likewise, of a voice that knows several (default: its first)")
    add("--spoken-language", metavar="NAME", help="of what is said, likewise, where the voice knows several")
    add("--instruction", metavar="TEXT", help="how to speak, likewise, where the voice understands instructions")
    add(
        "--demo",
        action="store_true",
        help="for show: callers may add synthetic listeners, change the policy and spoil their own network",
    )
    add("--verbose", action="store_true", help="log requests and calls on standard error")
    return parser


def serve(argv: Sequence[str]) -> int:
    """Runs the server until a signal ends it."""
    from agent import serve as server
    from agent.answering import answering as asked
    from agent.calls import CallLimits
    from agent.manner import Manner
    from agent.trouble import SettingsError

    args = serve_parser().parse_args(argv)
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s", level=logging.WARNING)
    logging.getLogger("agent").setLevel(logging.INFO if args.verbose else logging.WARNING)
    try:
        access = server.access(
            args.host, args.token, args.token_file, args.allow_host, args.allow_origin, args.max_rate
        )
        limits = CallLimits(max_peers=args.max_peers, max_queued=args.max_queued)
        runtime = replace(runtime_config(args), max_wait=args.max_wait, record=True, tell_seconds=TELL_SECONDS)
        config = server.ServeConfig(
            runtime,
            access,
            limits,
            args.port,
            args.tls_cert,
            args.tls_key,
            answering=asked(args),
            drain=args.drain,
            voices=args.voices,
            manner=Manner(
                speaker=args.speaker,
                language=args.spoken_language,
                instruction=args.instruction,
                voice=args.ref_voice,
            ),
            ice_servers=tuple(args.ice_server),
            demo=args.demo,
        )
        server.run(config)
    except (server.ServeError, SettingsError, ImportError) as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command. A user's mistake is one line on standard error and a non-zero exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["serve"]:
        return serve(argv[1:])
    if argv[:1] == ["probe"]:
        return int(import_module("agent.probe.command").main(argv[1:]))
    if argv[:1] == ["bench"] and argv[1:2] and f"bench {argv[1]}" in COMMANDS:
        bench = import_module(f"agent.bench_{argv[1]}")
        return int(bench.main(argv[2:]))
    return engine_commands.main(argv, PROGRAM, COMMANDS)


if __name__ == "__main__":
    sys.exit(main())
