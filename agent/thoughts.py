"""Leaves out what a model thinks before it answers. It does not know the model, nor what becomes of the answer.

Servers that do not take reasoning apart (llama.cpp and LM Studio without the option for it) send it at the beginning of
the content, as <think>...</think>, the way Qwen 3 and DeepSeek R1 write it; it is not to be spoken.
"""

from __future__ import annotations

BEGIN, END = "<think>", "</think>"


class Thoughts:
    """Text in, text without a thought at its beginning out; how the text is cut makes no difference."""

    def __init__(self) -> None:
        self._held = ""
        self._passing = False
        """Nothing more is left out."""

    def push(self, delta: str) -> str:
        """What of the text so far is known to be no thought, and was not given out yet."""
        if self._passing:
            return delta
        self._held = (self._held + delta).lstrip()
        if self._held.startswith(BEGIN):
            return self._thought()
        return "" if BEGIN.startswith(self._held) else self._pass(self._held)

    def _thought(self) -> str:
        """What follows the thought. Of one that goes on, only what may be the beginning of its end is kept."""
        thought, end, answer = self._held.partition(END)
        if not end:
            self._held = BEGIN + thought[len(BEGIN) :][-len(END) :]
        return self._pass(answer.lstrip())

    def _pass(self, answer: str) -> str:
        if answer:
            self._passing, self._held = True, ""
        return answer

    def end(self) -> str:
        """What was held back and is no thought, when the text has ended."""
        held, self._held = self._held, ""
        return "" if held.startswith(BEGIN) else held
