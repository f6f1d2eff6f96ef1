"""The requests whose text is still being written: what their callers append becomes events for the scheduler. It knows
no model and no tokens.

A text that nobody goes on with is taken to be complete after a while, or its slot would be held for ever.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from engine.checks import RequestError
from engine.clock import Clock
from engine.core import ErrorCode, Refused, Text
from engine.messages import PATIENCE, TextPiece
from engine.models import Reading

log = logging.getLogger(__name__)

SILENCE = PATIENCE + 1.0
"""Seconds without a piece after which a text is complete: the runtime takes none after PATIENCE, but one that it took
just before may still be on its way."""


@dataclass(slots=True)
class OpenRequest:
    """One of them."""

    epoch: int
    reading: Reading
    heard_at: float
    """When something came of it last."""


class OpenRequests:
    """Those of one engine. One thread opens and reads them; another may drop them, when they have ended."""

    def __init__(self, put: Callable[[Text | Refused], None], clock: Clock) -> None:
        self._put, self._clock = put, clock
        self._open: dict[int, OpenRequest] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, request_id: int, epoch: int, reading: Reading) -> None:
        """From now on its pieces are read."""
        self._open[request_id] = OpenRequest(epoch, reading, self._clock.now())

    def drop(self, request_id: int) -> None:
        """It has ended: what still comes of its text is nobody's."""
        self._open.pop(request_id, None)

    def take(self, piece: TextPiece) -> None:
        """More of a text. What cannot go on it ends that request, and nobody else's."""
        request = self._open.get(piece.request_id)
        if request is None:
            log.debug("request %d takes no more text", piece.request_id)
            return
        request.heard_at = self._clock.now()
        self._read(piece, request)

    def _read(self, piece: TextPiece, request: OpenRequest) -> None:
        number, reading = piece.request_id, request.reading
        try:
            ids = reading.append(piece.text) + (reading.end() if piece.done else ())
        except RequestError as error:
            self.drop(number)
            self._put(Refused(number, request.epoch, ErrorCode.BAD_REQUEST, str(error), error.field))
            return
        except Exception:  # that one's failure, not everybody's
            log.exception("the text of request %d cannot be read", number)
            self.drop(number)
            self._put(Refused(number, request.epoch, ErrorCode.BAD_REQUEST, "its text cannot be read", "text"))
            return
        if piece.done:
            self.drop(number)
        if ids or piece.done:
            self._put(Text(number, ids, piece.done, piece.came_at))

    @property
    def patience(self) -> float | None:
        """Seconds until the next of them is taken to be complete; None: there is none."""
        left = min((request.heard_at for request in list(self._open.values())), default=inf) + SILENCE
        return None if left == inf else max(0.0, left - self._clock.now())

    def expire(self) -> None:
        """Ends the texts that nobody has gone on with."""
        silent_since = self._clock.now() - SILENCE
        for number, request in list(self._open.items()):
            if request.heard_at <= silent_since:
                log.warning("no text came for request %d in %g s: it is taken to be complete", number, SILENCE)
                self._read(TextPiece(number, "", True), request)
