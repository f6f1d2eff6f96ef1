"""How much is known of a text that is still being written, and what the listener hears meanwhile. It knows neither
words nor devices: text is counted in tokens.

A model that reads on adds one token of text to each frame that it is fed, so its speech can be made as far as its text
has come. The comfort rule, in tokens, which are frames (80 ms with most voices):

  - Speech begins once there is text for BEGIN frames, or once the text is complete.
  - A stream whose text has run out is not run, and nobody waits for it. While its listener still has audio it goes on
    with BATCH tokens, or with fewer when only RESERVE seconds are left to play.
  - If he runs dry, that silence is the text's: no deadline of the engine is missed. Speech goes on once there is text
    for twice as many frames as it went on with before, at most MOST, or once the text is complete: a text that comes
    more slowly than it is spoken then makes few long pauses rather than many short ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

BEGIN = 3
"""Of a text that comes at 20 tokens a second, the next one is there 50 ms after these 240 ms have begun to play."""
BATCH = 8
"""What has come is encoded in a step of its own: with each token alone, 128 streams would take 2,560 steps a second."""
RESERVE = 0.5
MOST = 48


@dataclass(slots=True)
class OpenText:
    """Of one request. Positions are those of its backbone sequence: prompt, then a token a frame."""

    prompt_length: int
    known: int
    """Positions of which the text has come."""
    done: bool = False
    encoded: int = 0
    """Positions of which the device has the text."""
    unread: list[int] = field(default_factory=list)
    """What it does not have yet, since it had the beginning."""
    going: bool = False
    """It is being spoken, until what has come runs out."""
    needed: int = BEGIN
    """Frames that there must be text for, to go on after a silence."""

    def frames(self, made: int) -> float:
        """How many more there is text for, after so many."""
        return inf if self.done else max(0, self.known - self.prompt_length + 1 - made)

    def lacks(self, made: int) -> bool:
        """Whether not even the next frame can be made, which the first is not."""
        return not self.frames(made)

    def reads(self, made: int) -> bool:
        """Whether the device must have more text before that frame."""
        return bool(self.unread) and self.prompt_length + made > self.encoded

    @property
    def begins(self) -> bool:
        """Whether there is enough to begin with."""
        return self.frames(0) >= BEGIN

    def append(self, ids: Sequence[int], done: bool) -> None:
        self.known += len(ids)
        self.done = done
        if self.encoded:
            self.unread += ids

    def encode(self, count: int) -> None:
        """The device has so many positions more, of the beginning or of what was unread."""
        self.encoded += count
        del self.unread[:count]

    def fall_silent(self) -> None:
        """The listener has run dry, because no text was there."""
        self.needed = min(MOST, 2 * self.needed)

    def enough(self, made: int, silent: bool) -> bool:
        """Whether it goes on whatever its listener still has; `silent`: nothing."""
        return self.going or self.frames(made) >= (self.needed if silent else BATCH)
