"""What is measured, defined once, and the accumulators for it. It does not know who measures, nor who reads.

Kept by one thread: whoever reads from another takes a snapshot there.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Sequence
from enum import StrEnum

WINDOW = 1024
"""Latest values of a measure that its quantiles are taken over."""
QUANTILES = (0.5, 0.95, 0.99)


class Count(StrEnum):
    """Things that happen; each only grows."""

    SUBMITTED = "requests_submitted_total"
    """Each of them ends in one of the next three."""
    FINISHED = "requests_finished_total"
    """Served to the end (end of speech or the length limit)."""
    CANCELLED = "requests_cancelled_total"
    REFUSED = "requests_refused_total"
    """Failed at submit: busy, too long or bad, whoever found that."""
    STEPS = "steps_total"
    BUSY = "device_busy_seconds_total"
    """Seconds that the device spent in steps; the rest of the time it idled."""
    OVERRUNS = "overruns_total"
    """Steps that took longer than the upper quantile that was predicted: about one in ten."""
    FRAMES = "frames_total"
    """Frames handed over as audio."""
    CHUNKS = "chunks_total"
    PREFIX_HITS = "prefix_hits_total"
    """Prompts of a voice whose beginning was in pages already."""
    PREFIX_MISSES = "prefix_misses_total"
    DEADLINE_MISSES = "deadline_misses_total"
    """Deadline miss: a chunk handed over after its deadline, the instant at which all that was delivered of its reply
    before it had been played, as far as the engine knew the listener's clock. Where text came too late for it, there is
    no deadline."""
    TEXT_WAITS = "text_waits_total"
    """Silences of listeners who ran dry because the text of their utterance, which is still being written, was late."""


class Measure(StrEnum):
    """Things that have a size; quantiles are kept of the latest values. Seconds, unless it says otherwise."""

    TTFA = "ttfa_seconds"
    """Time to first audio: submit to first PCM delivered. An utterance without audio has none."""
    RTF = "rtf"
    """Real-time factor: compute_seconds / audio seconds of a request, shared steps divided by their rows. Below 1 is
    faster than real time."""
    QUEUED = "queued_seconds"
    """Submit to the moment at which slots and pages were given."""
    ENCODING = "encoding_seconds"
    """Of a recording: submit to its codes."""
    PREDICTION_ERROR = "prediction_error"
    """What a step took more or less than its predicted mean, as a share of that."""
    LATENESS = "lateness_seconds"
    """How late a chunk was that missed its deadline."""


def lateness(arrived_at: float, first_at: float, audio_before: float) -> float:
    """Seconds by which a chunk comes after the `audio_before` seconds delivered earlier (by the listener's clock) have
    been played, if they are played without a pause from first_at on. Above zero it is a gap; the largest of a request
    is the extra buffer that would have avoided all of them."""
    return arrived_at - (first_at + audio_before)


def missing_seconds(arrivals: Sequence[tuple[float, float]]) -> float:
    """The extra buffer that would have avoided every gap, 0 if there was none; arrivals are (instant, seconds of audio)
    of the chunks of one utterance, in order. It plays from the first arrival on."""
    missing = audio = 0.0
    for arrived_at, seconds in arrivals:
        missing = max(missing, lateness(arrived_at, arrivals[0][0], audio))
        audio += seconds
    return missing


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of sorted, non-empty values: the smallest that more than this share of them do not exceed, or the largest."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Window:
    """The latest values of one measure, always in order of size too."""

    def __init__(self, size: int = WINDOW) -> None:
        self._latest: deque[float] = deque(maxlen=size)
        self._ordered: list[float] = []
        self.count = 0
        self.total = 0.0

    def add(self, value: float) -> None:
        if len(self._latest) == self._latest.maxlen:
            del self._ordered[bisect_left(self._ordered, self._latest[0])]
        self._latest.append(value)
        insort(self._ordered, value)
        self.count += 1
        self.total += value

    def quantile(self, share: float) -> float:
        """0 as long as there is no value."""
        return quantile(self._ordered, share) if self._ordered else 0.0


class Metrics:
    """All counts and measures of one engine or one agent."""

    def __init__(self) -> None:
        self._counts: Counter[Count] = Counter()
        self._windows: dict[Measure, Window] = {}

    def count(self, what: Count, by: float = 1) -> None:
        self._counts[what] += by  # type: ignore[assignment]  # Counter adds floats as well

    def observe(self, what: Measure, value: float) -> None:
        self._windows.setdefault(what, Window()).add(value)

    def snapshot(self) -> dict[str, float]:
        """Every count by its name; of every measure seen: name_count, name_sum and name_p50, _p95, _p99."""
        values = {count.value: float(self._counts[count]) for count in Count}
        for measure, window in self._windows.items():
            values[f"{measure}_count"] = float(window.count)
            values[f"{measure}_sum"] = window.total
            for share in QUANTILES:
                values[f"{measure}_p{round(100 * share)}"] = window.quantile(share)
        return values
