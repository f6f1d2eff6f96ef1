"""Says how often a client may ask: a bucket each, filled at a steady rate. It knows neither requests nor the time."""

from __future__ import annotations

from dataclasses import dataclass

MAX_CLIENTS = 4096
"""Buckets that are kept; beyond it the fullest half goes, whose owners asked for least."""


@dataclass(slots=True)
class Bucket:
    """What one client had left at an instant."""

    tokens: float
    at: float


class Allowance:
    """`rate` requests a second for each client, `burst` of them at once."""

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._buckets: dict[str, Bucket] = {}

    def take(self, client: str, now: float) -> float:
        """0 when the client may go on, else the seconds after which it may."""
        bucket = self._buckets.get(client)
        if bucket is None:
            self._make_room(now)
            bucket = self._buckets[client] = Bucket(self._burst, now)
        bucket.tokens, bucket.at = self._level(bucket, now), now
        if bucket.tokens < 1.0:
            return (1.0 - bucket.tokens) / self._rate
        bucket.tokens -= 1.0
        return 0.0

    def _level(self, bucket: Bucket, now: float) -> float:
        return min(self._burst, bucket.tokens + (now - bucket.at) * self._rate)

    def _make_room(self, now: float) -> None:
        if len(self._buckets) < MAX_CLIENTS:
            return
        fullest = sorted(self._buckets, key=lambda client: self._level(self._buckets[client], now), reverse=True)
        for client in fullest[: MAX_CLIENTS // 2]:
            del self._buckets[client]
