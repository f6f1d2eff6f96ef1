"""The demo page's files, as they were installed. It does not know what they do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from aiohttp import web

from agent.guard import Handler

FOLDER = Path(__file__).resolve().parent.parent / "web"
INDEX = "index.html"
SUFFIXES = {".html", ".js", ".css", ".svg", ".png", ".ico", ".webmanifest"}


def files() -> Iterator[tuple[str, Handler]]:
    """A path and its handler for each file: only what is there at start-up can be asked for, so no path leads out."""
    for file in sorted(FOLDER.rglob("*")):
        if file.suffix in SUFFIXES:
            name = file.relative_to(FOLDER).as_posix()
            yield ("" if name == INDEX else name), _served(file)


def _served(file: Path) -> Handler:
    async def serve(request: web.Request) -> web.StreamResponse:
        return web.FileResponse(file)

    return serve
