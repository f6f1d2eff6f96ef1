"""How a text is said: by whom, in which language, like which voice; in all of a call, unless a message says otherwise.

It does not know which voices there are.
"""

from __future__ import annotations

import msgspec

from agent.protocol import SessionUpdate, Speak

FIRST_SPEAKER = "S0"


class Manner(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields as those of `speak`. What is left out is the voice's own."""

    speaker: str | None = None
    language: str | None = None
    instruction: str | None = None
    voice: str | None = None
    cfg_scale: float | None = None

    def of(self, message: Speak | SessionUpdate | Manner) -> Manner:
        """The message's, and where it says nothing, this."""
        said = {name: getattr(message, name) for name in self.__struct_fields__}
        return Manner(**{name: getattr(self, name) if value is None else value for name, value in said.items()})
