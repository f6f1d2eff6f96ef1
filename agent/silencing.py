"""How long it takes to fall silent: from the first sign of a user's speech, or a stop, to the last audible packet.

It does not know who asked for silence or how it is brought about: instants are arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

from agent.protocol import SpeechSilenced


@dataclass(frozen=True, slots=True)
class Silencing:
    """One, in instants of the server's clock.

    A fade is shorter than a packet, so the next packet is the last with sound in it, or has none."""

    asked_at: float
    """When it was decided."""
    flushed_at: float
    """From here on only the fade is left to send."""
    noticed_at: float | None = None
    """The end of the first frame that is speech; None where nobody spoke."""

    def seconds(self, silent_at: float) -> float:
        """Of all links together, where `silent_at` is the instant of the last audible packet."""
        return silent_at - (self.asked_at if self.noticed_at is None else self.noticed_at)

    def told(self, silent_at: float) -> SpeechSilenced:
        """Link by link."""
        return SpeechSilenced(
            flush_ms=1000 * (self.flushed_at - self.asked_at),
            wire_ms=1000 * (silent_at - self.flushed_at),
            turn_ms=None if self.noticed_at is None else 1000 * (self.asked_at - self.noticed_at),
        )
