"""Says where a message is at fault: the name of its event and the path of the field. It knows no protocol."""

from __future__ import annotations

import re
from typing import Any

import msgspec


class Named(msgspec.Struct, frozen=True):
    """What any event has."""

    type: Any = None
    event_id: Any = None


UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises."""

_named = msgspec.json.Decoder(Named)


def named(raw: bytes) -> Named | None:
    """How the event calls itself; None where it is no JSON object."""
    try:
        return _named.decode(raw)
    except UNREADABLE:
        return None


def field_of(message: str, root: str = "") -> str | None:
    """The path of the field at fault, in msgspec's words for it, below `root`."""
    at = re.search(r" - at `\$\.?([^`]*)`$", message)
    key = re.search(r"(?:missing required|contains unknown) field `([^`]+)`", message)
    path = [root, at[1] if at else "", key[1] if key else ""]
    return ".".join(filter(None, path)) or None
