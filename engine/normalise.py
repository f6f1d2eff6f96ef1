"""Turns a written text into one that is read aloud as it stands: no digits, symbols, markup or emoji are left.

It does not know the voice, nor what language the text is in: that is an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from engine import emoji, english, markdown

LANGUAGES: Mapping[str, Callable[[str], str]] = {"en": english.read}
"""What reads plain text, by the language's two letters. A text in any other language stays as it is."""
ENDS = (".", "?", "!", ":", ",")


def normalise(text: str, language: str = "en") -> str:
    """The text as it is said, in one line; `language` is a tag of BCP 47, of which the first part counts.

    Normalising it again changes nothing. It is empty only where there is nothing to say: no letter, digit, symbol with
    a name or emoji. It takes time in proportion to the text, and raises nothing, whatever the text.
    """
    read = LANGUAGES.get(language.partition("-")[0].lower())
    if read is None:
        return text
    plain = read(" ".join(sentences(markdown.lines(emoji.without(text)))))
    return plain if speakable(plain) else read(emoji.names(text)) or read(text)


def sentences(lines: Iterable[str]) -> Iterator[str]:
    """The lines that say something, each but the last with an end, so that no two of them run together."""
    said = [line for line in lines if speakable(line)]
    for line in said[:-1]:
        yield line if line.endswith(ENDS) else f"{line}."
    yield from said[-1:]


def speakable(text: str) -> bool:
    """Whether there is anything to say."""
    return any(char.isalnum() for char in text)
