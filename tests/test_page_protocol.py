"""The page and the server speak of the same messages: web/protocol.js against agent/protocol.py, name by name.

It runs no browser: the tables in protocol.js are written as plain JSON for this purpose.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import msgspec

from agent import protocol

EVENTS = protocol.EVENTS[protocol.CHANNEL]
WEB = Path(__file__).parents[1] / "web"
Table = dict[str, list[str]]


def page_table(name: str) -> Table:
    found = re.search(rf"const {name} = (\{{.*?\n\}});", (WEB / "protocol.js").read_text(), re.DOTALL)
    assert found, f"web/protocol.js has no table {name}"
    table: Table = json.loads(found[1])
    return table


def server_table(events: Mapping[str, type[msgspec.Struct]]) -> Table:
    return {
        name: [field.encode_name + ("" if field.required else "?") for field in msgspec.structs.fields(message)]
        for name, message in events.items()
    }


def page_constant(name: str) -> str:
    found = re.search(rf"export const {name} = (.*);", (WEB / "protocol.js").read_text())
    assert found, f"web/protocol.js has no constant {name}"
    return found[1]


def test_client_messages_have_the_same_names_and_fields() -> None:
    assert page_table("CLIENT") == server_table(EVENTS.client)


def test_server_messages_have_the_same_names_and_fields() -> None:
    assert page_table("SERVER") == server_table(EVENTS.server)


def test_channel_and_limit_are_the_same() -> None:
    assert json.loads(page_constant("CHANNEL")) == protocol.CHANNEL
    assert json.loads(page_constant("MAX_MESSAGE_BYTES")) == protocol.MAX_MESSAGE_BYTES


def test_the_page_reads_only_fields_and_types_of_the_table() -> None:
    script = (WEB / "main.js").read_text() + (WEB / "call.js").read_text()
    fields = {field.rstrip("?") for fields in page_table("SERVER").values() for field in fields}
    read = set(re.findall(r"\bmessage\??\.(\w+)", script)) - {"type"}
    cases = set(re.findall(r'case "([\w.]+\.\w+|error|pong)":', script))
    assert read and read <= fields
    assert cases and cases <= set(page_table("SERVER"))


def test_the_page_names_nothing_outside_its_own_server() -> None:
    allowed = {"http://www.w3.org/2000/svg", "https://www.w3.org/TR/webrtc-stats/"}
    for path in WEB.iterdir():
        addresses = set(re.findall(r"(?:https?|wss?):/[^\s\"')]+", path.read_text()))
        assert addresses <= allowed, path.name


def test_the_page_has_no_inline_script_or_style() -> None:
    html = (WEB / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|<script(?![^>]*\ssrc=)", html)
