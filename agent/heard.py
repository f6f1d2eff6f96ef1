"""Says what a listener has heard of an utterance: how far into its audio, and which of its words.

It knows neither calls nor voices nor time: what was sent, what the listener tells and what was said are arguments.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from engine.normalise import normalise

PCM = NDArray[np.int16]
"""Mono samples, shape [samples]."""

# ---- how far --------------------------------------------------------------------------------------------------------

USUAL_BUFFER_SECONDS = 0.035
"""What a browser's jitter buffer holds on a steady network, where it does not say (measured in Chromium: 32-35 ms)."""
MOST_BUFFER_SECONDS = 2.0
"""What is believed of a listener's report: Chromium's buffer holds no more."""


@dataclass(frozen=True, slots=True)
class BufferTotals:
    """The listener's jitterBufferDelay and jitterBufferEmittedCount (W3C webrtc-stats), totals since the call began."""

    delay_seconds: float = 0.0
    """Summed over all samples that were emitted."""
    emitted_samples: int = 0

    def buffer_seconds(self, before: BufferTotals) -> float:
        """How long a sample was held, of those emitted since `before`. Where nobody can tell, what is usual."""
        emitted, delay = self.emitted_samples - before.emitted_samples, self.delay_seconds - before.delay_seconds
        if emitted <= 0 or not 0.0 <= delay < math.inf:
            return USUAL_BUFFER_SECONDS
        return min(delay / emitted, MOST_BUFFER_SECONDS)


def heard_samples(sent_samples: int, sample_rate: int, buffer_seconds: float, round_trip_seconds: float = 0.0) -> int:
    """Samples of an utterance that came out of the listener's jitter buffer by now, between 0 and `sent_samples`.

    `sent_samples` were handed to the network, the last of them now; they take half the round trip, and then what the
    buffer holds. A delay that is no number above 0 is none.
    """
    one_way_seconds = round_trip_seconds / 2
    delay = sum(seconds for seconds in (buffer_seconds, one_way_seconds) if seconds > 0)
    on_the_way = math.ceil(min(delay * sample_rate, sent_samples) - 1e-6)  # a product of floats may be a bit above
    return max(0, sent_samples - on_the_way)


# ---- where it is silent ---------------------------------------------------------------------------------------------

WINDOW_SECONDS = 0.01
SILENCE_SECONDS = 0.12
"""A silence that is no pause for breath is shorter: that before a plosive takes at most 100 ms."""
SILENCE = 10 ** (-35 / 20)
"""Of the loud windows' level: what is below is silent. Between words that are joined it is rarely below -30 dB."""
QUIETEST_SPEECH = 330.0
"""RMS, -40 dB of full scale: nothing that is quieter counts as a loud window."""

Silences = Sequence[tuple[float, float]]
"""Begin and end of each in seconds of audio, in order."""


class Loudness:
    """An utterance's level in windows of 10 ms, gathered chunk by chunk."""

    def __init__(self, sample_rate: int) -> None:
        self.sample_rate = sample_rate
        self._window = round(WINDOW_SECONDS * sample_rate)
        self._rest: PCM = np.zeros(0, np.int16)
        self._levels: list[float] = []

    def push(self, pcm: PCM) -> None:
        """The next chunk, int16 [samples], of any length."""
        pcm = np.concatenate([self._rest, pcm])
        whole = pcm.size - pcm.size % self._window
        windows = pcm[:whole].astype(np.float64).reshape(-1, self._window)
        self._levels += np.sqrt((windows**2).mean(axis=1)).tolist()
        self._rest = pcm[whole:]

    @property
    def seconds(self) -> float:
        """Of audio, in whole windows."""
        return len(self._levels) * WINDOW_SECONDS

    def silences(self) -> Silences:
        """Those of at least SILENCE_SECONDS, and any at the very beginning."""
        levels = np.array(self._levels)
        if not levels.size:
            return ()
        loud = levels >= SILENCE * max(QUIETEST_SPEECH, float(np.quantile(levels, 0.95)))
        edges = np.flatnonzero(np.diff(np.concatenate([[True], loud, [True]]).astype(np.int8)))
        runs = edges.reshape(-1, 2) * WINDOW_SECONDS
        return [(begin, end) for begin, end in runs.tolist() if begin == 0 or end - begin > SILENCE_SECONDS - 1e-9]


def spoken_seconds(position: float, silences: Silences) -> float:
    """Seconds of audio up to `position`, without the silences."""
    return position - sum(min(position, end) - begin for begin, end in silences if begin < position)


# ---- which words ----------------------------------------------------------------------------------------------------

WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af][^\w\s]*|[^\s\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]+")
"""What is between spaces, with its punctuation; a Chinese, Japanese or Korean character is a word by itself."""
PAUSED = re.compile(r"[,.;:?!…，。；：？！、—–][^\w\s]*$|^[—–-]+$")
"""At the end of a word: after it a pause is to be expected."""
VOWELS = re.compile(r"[aeiouyà-æè-ïò-öø-ýœ]+")
SILENT_E = re.compile(r"(?<=[a-z]{2})e$")
PLAIN = re.compile(r"[^\w\s]*[A-Z]?[a-zà-öø-ÿ'’-]+[^\w\s]*")
"""A word that is read as it is written."""
LETTER = re.compile(r"[^\W\d_]")

WORD_SECONDS, SYLLABLE_SECONDS, CONSONANT_SECONDS, FINAL_SECONDS = 0.078, 0.064, 0.028, 0.084
"""What a word takes, and more for each of its syllables and consonants, and for being the last before a pause: fitted
to the embedded voice's words. That leaves 0.07 s of error in a word, and 6 % in the rate of an utterance."""
DIGIT_SECONDS = 0.3
OTHER_SECONDS = 0.2
"""A character that is no Latin letter, where one is a syllable."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a text: text[:end] ends with it."""

    end: int
    seconds: float
    """That it is expected to take."""
    pause: bool
    """Whether one is to be expected after it."""


def words(text: str, language: str = "") -> list[Word]:
    """The text's words in order. Punctuation that stands alone belongs to the word before it. `language`: in which the
    voice has numbers and symbols written out, if it has."""
    found: list[Word] = []
    for match in WORD.finditer(text):
        word, pause = match.group(), PAUSED.search(match.group()) is not None
        seconds = read_seconds(word, language)
        if seconds:
            found.append(Word(match.end(), seconds + pause * FINAL_SECONDS, pause))
        elif found:
            last = found.pop()
            found.append(Word(match.end(), last.seconds, last.pause or pause))
    return found


def read_seconds(word: str, language: str) -> float:
    """What the word takes to say as the voice reads it: $3.50 is five words."""
    if not language or PLAIN.fullmatch(word):
        return expected_seconds(word)
    return sum(map(expected_seconds, normalise(word, language).split())) or expected_seconds(word)


def expected_seconds(word: str) -> float:
    """What the word takes to say, without lengthening and pause; 0 for one that has neither letter nor digit."""
    letters = "".join(LETTER.findall(word.lower()))
    digits = sum(character.isdigit() for character in word)
    if not letters and not digits:
        return 0.0
    other = sum(ord(letter) > 0x24F for letter in letters)
    vowels = VOWELS.findall(SILENT_E.sub("", letters))
    consonants = len(letters) - other - len("".join(VOWELS.findall(letters)))
    latin = len(letters) > other
    syllables = max(1, len(vowels)) if latin else 0
    return (
        (WORD_SECONDS if latin else 0.0)
        + SYLLABLE_SECONDS * syllables
        + CONSONANT_SECONDS * consonants
        + DIGIT_SECONDS * digits
        + OTHER_SECONDS * other
    )


SPREAD = 0.02
"""Squared seconds by which a second of speech is off."""
MISPLACED = 2.0
"""What it costs to leave out a pause where punctuation asks for one, or to make one where none is written: as much as
this half a squared deviation, in units of SPREAD."""
MOST_WORDS = 64
"""Between two stops of the voice, unless there are few stops: it bounds what a long text takes."""
TRUST_SECONDS = 2.0
"""Of expected speech: as much weight has the voice's usual rate against what was measured in this utterance."""
HEARD_SHARE = 0.5
"""A word was heard when so much of it was played."""


def heard_text(
    text: str,
    position_samples: int,
    loudness: Loudness,
    complete: bool,
    usual_rate: float = 1.0,
    language: str = "",
) -> str:
    """The beginning of `text` that was heard by `position_samples` of its audio, up to the end of a word.

    `loudness` is that of all audio there is of it by now, of which more may lie behind the position: `complete` says
    that the voice came to the text's end with it (not so if it was cancelled or cut). `usual_rate` is the voice's, from
    spoken_rate of earlier utterances, `language` as in `words`. No recogniser is asked: each word is taken to last as
    long as its syllables and consonants want, and the audio's silences put that right. `agent/bench_heard.py` measures
    the error.
    """
    silences = loudness.silences()
    spoken = spoken_seconds(min(position_samples / loudness.sample_rate, loudness.seconds), silences)
    said, end = words(text, language), 0
    ends = spoken_ends(said, silences, loudness.seconds, complete, usual_rate)
    for word, (begins, finished) in zip(said, pairwise([0.0, *ends]), strict=True):
        if begins + HEARD_SHARE * (finished - begins) >= spoken:
            break
        end = word.end
    return text[:end]


def spoken_rate(text: str, loudness: Loudness) -> float:
    """Spoken seconds of a complete utterance for each that was expected: above 1, the voice speaks more slowly."""
    expected = sum(word.seconds for word in words(text))
    return measured_rate(expected, spoken_seconds(loudness.seconds, loudness.silences()))


def measured_rate(expected: float, spoken: float, usual: float = 1.0) -> float:
    """`spoken` for each second that was `expected`; the usual rate weighs as much as TRUST_SECONDS of speech."""
    return (spoken + TRUST_SECONDS * usual) / (expected + TRUST_SECONDS)


def spoken_ends(
    said: Sequence[Word], silences: Silences, seconds: float, complete: bool, usual_rate: float = 1.0
) -> list[float]:
    """The end of each word in spoken seconds: what is most likely for `seconds` of audio with these silences.

    Where a pause is, a word ends; between pauses all words go at one rate. What the audio does not reach yet goes on
    at the rate so far.
    """
    if not said:
        return []
    stops = [
        spoken_seconds(begin, silences) for begin, end in silences if begin > 0 and (end < seconds or not complete)
    ]
    stops = stops[: len(said) - 1]
    ends = np.cumsum([0.0, *(word.seconds for word in said)])
    if complete:
        stops.append(spoken_seconds(seconds, silences))
        usual_rate = measured_rate(float(ends[-1]), stops[-1], usual_rate)
    expected, spoken = ends[[0, *words_before(stops, said, complete, usual_rate)]], [0.0, *stops]
    beyond = np.maximum(0.0, ends[1:] - expected[-1]) * measured_rate(float(expected[-1]), spoken[-1], usual_rate)
    return [float(end) for end in np.interp(ends[1:], expected, spoken) + beyond]


def words_before(stops: Sequence[float], said: Sequence[Word], complete: bool, rate: float) -> list[int]:
    """For each stop of the voice, in spoken seconds, how many words come before it: what costs least.

    `complete`: the last stop is the end of all words; `rate` is how many spoken seconds an expected one takes. Dynamic
    programming over pairs of stop and word, as in dynamic time warping: each stop follows another word, and the stretch
    since the one before is to be as long as expected (cost: squared deviation by SPREAD, halved).
    """
    count = len(said)
    longest = min(count, max(MOST_WORDS, 2 * count // max(1, len(stops))))
    ends = np.cumsum([0.0, *(word.seconds for word in said)])
    asked = np.array([0.0, *(float(word.pause) for word in said)])
    start = (
        np.arange(count + 1)[:, None] - 1 - np.arange(longest)
    )  # [word, choice]: the stretch's first, if not negative
    expected = rate * (ends[:, None] - ends[start])
    passed = (np.cumsum(asked) - asked)[:, None] - np.cumsum(asked)[start]
    passed = np.where(start >= 0, MISPLACED * passed, math.inf)
    weight = 1 / (2 * SPREAD * np.maximum(expected, 0.1))
    cost = np.where(ends > 0, math.inf, 0.0)
    before: list[NDArray[np.intp]] = []
    for begin, end in pairwise([0.0, *stops]):
        reached = cost[start] + passed + weight * (end - begin - expected) ** 2
        before.append(reached.argmin(axis=1))
        cost = reached.min(axis=1) + MISPLACED * (1 - asked)
    path = [count if complete else int(cost.argmin())]
    for choice in reversed(before):
        path.append(path[-1] - 1 - int(choice[path[-1]]))
    return path[::-1][1:]
