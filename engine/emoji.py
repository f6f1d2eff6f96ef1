"""Takes emoji out of a text, or says their names. It does not know what else stands in the text."""

from __future__ import annotations

import re
import unicodedata

CALLED = {
    "❤": "heart", "👍": "thumbs up", "👎": "thumbs down", "🙏": "folded hands", "✅": "check mark", "✔": "check mark",
    "❌": "cross mark", "👏": "clapping hands", "💯": "one hundred", "🙂": "smiling face", "🙁": "sad face",
    "👋": "waving hand", "💪": "strong arm", "😍": "heart eyes", "🤔": "thinking face", "😂": "tears of joy",
    "🤣": "rolling on the floor laughing", "😭": "crying face", "⭐": "star", "⚠": "warning", "👌": "okay",
}  # fmt: skip
"""Where people call one otherwise than Unicode does."""
PLAIN = "©®™‼⁉↔↕↖↗↘↙→←↑↓⟶⇒⇔ℹ〰〽Ⓜ㊗㊙"
"""Emoji by Unicode's table, but rather symbols of a text."""
EMOJI = re.compile(
    "[\U0001f1e6-\U0001f1ff\U0001f300-\U0001faff\U0001f004\U0001f0cf\U0001f18e\U0001f191-\U0001f19a\U0001f201-\U0001f251"
    "\u231a\u231b\u23e9-\u23fa\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u27bf\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c"
    "\u2b50\u2b55]"
)
JOINTS = re.compile("[\ufe0e\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]|(?<=\ufe0f)\u200d")
"""What changes the emoji before it: variation selectors, the keycap, skin tones, tags."""
ARROWS = "➔➜"


def without(text: str) -> str:
    """The text without its emoji; one that stood between two words leaves a space."""
    return EMOJI.sub(lambda match: match[0] if match[0] in ARROWS else " ", JOINTS.sub("", text))


def names(text: str) -> str:
    """What the emoji of the text are called, each once, in order; empty where there is none."""
    found = dict.fromkeys(EMOJI.findall(JOINTS.sub("", text)))
    return ", ".join(dict.fromkeys(filter(None, map(name, found))))


def name(emoji: str) -> str:
    """Grinning face; a flag is a pair of letters, and only called a flag."""
    if "\U0001f1e6" <= emoji <= "\U0001f1ff":
        return "flag"
    full = CALLED.get(emoji) or unicodedata.name(emoji, "").lower()
    return re.sub(r"^(?:heavy|white heavy|black) |[^a-z ]| sign$", "", full)
