"""A call's own recordings: what it sends with `voice.create` becomes a voice, one after the other, and is told so.

It does not know channels: messages come in decoded, and go out through callables.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from collections.abc import Callable

from agent.protocol import MAX_REASON_CHARS, Error, VoiceCreate, VoiceCreated
from agent.voices import RETRY_AFTER, Voices, VoicesBusy, in_their_words
from engine.checks import RequestError
from engine.core import ErrorCode

log = logging.getLogger(__name__)

AUDIO = "audio must be a file in base64; a larger one goes to POST /voices"


class VoiceMaking:
    """One call's. To be used on the event loop, and closed."""

    def __init__(self, voices: Voices, send: Callable[[VoiceCreated], None], report: Callable[[Error], None]) -> None:
        self._voices, self._send, self._report = voices, send, report
        self._task: asyncio.Task[None] | None = None

    def take(self, create: VoiceCreate) -> None:
        """Answers with voice.created or an error, now or later."""
        if self._task is not None and not self._task.done():
            self._fail(create, ErrorCode.BUSY, "a recording of this call is being worked on: send it again afterwards")
            return
        try:
            data = base64.b64decode(create.audio, validate=True)
        except (binascii.Error, ValueError):
            self._fail(create, ErrorCode.BAD_REQUEST, AUDIO, "audio")
            return
        self._task = asyncio.get_running_loop().create_task(self._make(create, data))

    async def _make(self, create: VoiceCreate, data: bytes) -> None:
        try:
            made = await self._voices.make(data, create.text)
        except RequestError as error:
            self._fail(create, ErrorCode.BAD_REQUEST, *in_their_words(error))
        except VoicesBusy as error:
            self._fail(create, error.code, str(error), retry_after=error.retry_after)
        except Exception:  # whoever asked is not to wait for ever
            log.exception("a recording could not be worked on")
            why = "the recording could not be worked on: send it again later"
            self._fail(create, ErrorCode.BUSY, why, retry_after=RETRY_AFTER)
        else:
            self._send(VoiceCreated(id=create.id, voice=made.id, seconds=made.seconds))

    def _fail(
        self, create: VoiceCreate, code: ErrorCode, why: str, field: str | None = None, retry_after: float | None = None
    ) -> None:
        wait = None if retry_after is None else 1000 * retry_after
        event = str(create.__struct_config__.tag)
        self._report(
            Error(
                code=code, message=why[:MAX_REASON_CHARS], id=create.id, event=event, field=field, retry_after_ms=wait
            )
        )

    def close(self) -> None:
        """Gives up what is being worked on."""
        if self._task is not None:
            self._task.cancel()
