"""Takes server-sent events out of bytes as they come in. It does not know what they say, nor who sends them.

The format is that of the HTML standard, section 9.2.6 "Interpreting an event stream": lines end with CR, LF or both, a
colon begins a comment, a blank line ends an event. One thing is more lenient: an event without its blank line counts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_EVENT_BYTES = 1024 * 1024
LINE_END = re.compile(rb"\r\n|\r|\n")
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its data lines joined with LF, its name empty unless one was sent."""

    data: str
    name: str = ""


class TooLongError(ValueError):
    """An event, or a line, of more than MAX_EVENT_BYTES."""


class EventStream:
    """Bytes in, events out; how the bytes are cut makes no difference. Text that is not UTF-8 is replaced."""

    def __init__(self) -> None:
        self._rest, self._started, self._after_cr = list[bytes](), False, False
        self._rest_bytes = self._event_bytes = 0
        self._data, self._name = list[str](), ""

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes. Raises TooLongError."""
        *lines, rest = LINE_END.split(self._after(data))
        if lines:
            lines[0] = self._line(lines[0])
        found = [event for line in lines if (event := self._take(line)) is not None]
        self._rest.append(rest)
        self._rest_bytes += len(rest)
        self._check()
        return found

    def end(self) -> list[Event]:
        """What was not completed by a blank line when the stream ended."""
        return [event for line in (self._line(b""), b"") if (event := self._take(line)) is not None]

    def _after(self, data: bytes) -> bytes:
        """Without the LF of a CR LF that was cut apart."""
        if not data:
            return data
        rest = data.removeprefix(b"\n") if self._after_cr else data
        self._after_cr = rest.endswith(b"\r")
        return rest

    def _line(self, end: bytes) -> bytes:
        """A whole line, from what came before and its end."""
        line = b"".join([*self._rest, end])
        self._rest, self._rest_bytes = [], 0
        return line

    def _check(self) -> None:
        if self._rest_bytes + self._event_bytes > MAX_EVENT_BYTES:
            raise TooLongError(f"an event has at most {MAX_EVENT_BYTES} bytes")

    def _take(self, line: bytes) -> Event | None:
        if not self._started:
            line, self._started = line.removeprefix(BOM), True
        if not line:
            return self._dispatch()
        field, _, value = line.decode(errors="replace").partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
            self._event_bytes += len(line)
            self._check()
        elif field == "event":
            self._name = value
        return None

    def _dispatch(self) -> Event | None:
        event = Event("\n".join(self._data), self._name) if self._data else None
        self._data, self._name, self._event_bytes = [], "", 0
        return event
