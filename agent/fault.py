"""Says where a message is at fault: the name of its event and the path of the field. It knows no protocol."""

from __future__ import annotations

import re
from typing import Any

import msgspec


class Named(msgspec.Struct, frozen=True):
    """What any event has."""

    type: Any = None
    event_id: Any = None


MAX_KEY_CHARS = 64
"""Of a key that may be anything."""
UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises."""

_named = msgspec.json.Decoder(Named)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def named(raw: bytes) -> Named | None:
    """How the event calls itself; None where it is no JSON object."""
    try:
        return _named.decode(raw)
    except UNREADABLE:
        return None


def longest(raw: bytes) -> str | None:
    """The key whose value takes most of the event: it is at fault where the whole is too long. None where the event is
    no JSON object."""
    try:
        fields = _fields.decode(raw)
    except UNREADABLE:
        return None
    longest_key = max(fields, key=lambda key: len(bytes(fields[key])), default=None)
    return longest_key and longest_key[:MAX_KEY_CHARS]


def field_of(message: str, root: str = "") -> str | None:
    """The path of the field at fault, in msgspec's words for it, below `root`."""
    at = re.search(r" - at `\$\.?([^`]*)`$", message)
    key = re.search(r"(?:missing required|contains unknown) field `([^`]+)`", message)
    path = [root, at[1] if at else "", key[1] if key else ""]
    return ".".join(filter(None, path)) or None
