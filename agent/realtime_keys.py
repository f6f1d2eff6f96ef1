"""Short-lived keys with which a page opens one call, without knowing the server's own token. It knows neither routes
nor calls.

Of a key only its hash is kept, and it is never logged.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from agent.realtime import Json
from engine.clock import Clock

PREFIX = "ek_"
KEY_SECONDS = 60.0
"""A key that nobody used by then is void."""
MAX_KEYS = 256
"""That are valid at once."""


@dataclass(frozen=True, slots=True)
class Key:
    """What a key is good for: one call, with these settings fixed."""

    digest: bytes = field(repr=False)
    fixed: Json
    expires_at: float


class KeysExhausted(Exception):
    """There are MAX_KEYS; `retry_after` in seconds, when the first of them is void."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"{MAX_KEYS} client keys are waiting to be used: try again later")
        self.retry_after = retry_after


class ClientKeys:
    """The keys that are valid."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._keys: list[Key] = []

    def make(self, fixed: Json, seconds: float = KEY_SECONDS) -> str:
        """A new key, for at most KEY_SECONDS. Raises KeysExhausted."""
        now = self._clock.now()
        self._drop_old(now)
        if len(self._keys) >= MAX_KEYS:
            raise KeysExhausted(min(key.expires_at for key in self._keys) - now)
        value = PREFIX + secrets.token_urlsafe(32)
        self._keys.append(Key(_digest(value), fixed, now + min(seconds, KEY_SECONDS)))
        return value

    def take(self, value: str) -> Key | None:
        """What the key is good for, if it is valid: from now on it is not."""
        self._drop_old(self._clock.now())
        digest, found = _digest(value), None
        for key in self._keys:  # all of them, so that the time taken says nothing
            if hmac.compare_digest(key.digest, digest):
                found = key
        if found is not None:
            self._keys.remove(found)
        return found

    def give_back(self, key: Key) -> None:
        """No call came of it: it is valid again, until it would have been void."""
        self._keys.append(key)

    def _drop_old(self, now: float) -> None:
        self._keys = [key for key in self._keys if key.expires_at > now]


def _digest(value: str) -> bytes:
    return hashlib.sha256(value.encode(errors="surrogateescape")).digest()
