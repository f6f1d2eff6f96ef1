"""What of an agent's voice can be heard: the sound in its packets, where it begins and ends, where it is padded.

It does not know scenarios, and blames nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from agent.opus import OpusDecoder
from agent.probe.recording import RATE, Packet, Pcm
from agent.toc import packet_ticks

BLOCK = 480
"""Samples of 10 ms, in which loudness is looked at."""
BLOCK_SECONDS = BLOCK / RATE
AUDIBLE = 98
"""A block with a larger amplitude is heard: 0.003 of full scale, as `bench bargein` and the page's meter have it."""
JOIN_SECONDS = 0.2
"""A shorter silence is a closure inside a word, and no pause."""

Flags = NDArray[np.bool_]
Instants = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of speech without a pause."""

    begins_at: float
    ends_at: float

    @property
    def seconds(self) -> float:
        return self.ends_at - self.begins_at


def audible(samples: Pcm) -> Flags:
    """Of each whole block, whether it is heard: bool [blocks]."""
    whole = np.abs(samples[: samples.size // BLOCK * BLOCK].astype(np.int32)).reshape(-1, BLOCK)
    return np.asarray(whole.max(axis=1, initial=0) > AUDIBLE)


def levels(samples: Pcm) -> NDArray[np.float64]:
    """RMS of each block of 10 ms; what does not fill one is left out."""
    whole = samples[: samples.size // BLOCK * BLOCK].astype(np.float64)
    return np.asarray(np.sqrt((whole.reshape(-1, BLOCK) ** 2).mean(axis=1)))


def spans(flags: Flags, at: Instants, join: float = JOIN_SECONDS) -> tuple[Span, ...]:
    """Of audible blocks, which begin at these instants; those with less than `join` between them are one."""
    begins = at[flags]
    if not begins.size:
        return ()
    ends = begins + BLOCK_SECONDS
    breaks = np.flatnonzero(begins[1:] - ends[:-1] >= join)
    first, last = np.append(0, breaks + 1), np.append(breaks, begins.size - 1)
    return tuple(Span(float(begins[a]), float(ends[b])) for a, b in zip(first, last, strict=True))


# ---- the packets, put in order and decoded --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Voice:
    """What was sent, int16 [samples] at 48 kHz: all packets that came, in the sender's order, one behind the other.

    starts: int64 [packets], where each begins; whole: whether it follows the one before without a loss."""

    packets: tuple[Packet, ...]
    samples: Pcm
    starts: NDArray[np.int64]
    whole: Flags

    @property
    def block_at(self) -> Instants:
        """When each block came: its packet's arrival, and how far behind that packet's begin it is."""
        begins = np.arange(self.samples.size // BLOCK) * BLOCK
        if not begins.size:
            return np.zeros(0)
        packet = np.searchsorted(self.starts, begins, side="right") - 1
        arrived = np.array([each.at for each in self.packets])
        return np.asarray(arrived[packet] + (begins - self.starts[packet]) / RATE)

    def sample_of(self, instant: float) -> int:
        """The first sample of the first packet that came at that instant or later."""
        after = [int(start) for start, each in zip(self.starts, self.packets, strict=True) if each.at >= instant]
        return min(after, default=self.samples.size)

    def at(self, sample: int) -> float:
        packet = int(np.searchsorted(self.starts, sample, side="right")) - 1
        return self.packets[packet].at + (sample - int(self.starts[packet])) / RATE


def voice(packets: Sequence[Packet]) -> Voice:
    """Of all sources, one after another as they first came. What Opus cannot decode is left out."""
    kept, parts, whole, starts = list[Packet](), list[Pcm](), list[bool](), list[int]()
    place = 0
    for source in dict.fromkeys(packet.source for packet in packets):
        decoder, last = OpusDecoder(RATE), None
        for number, packet in in_order([packet for packet in packets if packet.source == source]):
            samples = decoder.decode(packet.payload)
            if samples is None:
                continue
            kept.append(packet)
            parts.append(samples)
            starts.append(place)
            whole.append(last is not None and number == last + 1)
            place, last = place + samples.size, number
    joined = np.concatenate(parts) if parts else np.zeros(0, np.int16)
    return Voice(tuple(kept), joined, np.array(starts, np.int64), np.array(whole, np.bool_))


def in_order(packets: Sequence[Packet]) -> list[tuple[int, Packet]]:
    """One source's packets by sequence number, which is given without its turning over at 2**16; each once."""
    found = dict[int, Packet]()
    highest = packets[0].sequence if packets else 0
    for packet in packets:
        number = highest + (packet.sequence - highest + 0x8000) % 0x10000 - 0x8000
        found.setdefault(number, packet)
        highest = max(highest, number)
    return sorted(found.items())


# ---- zeros in the midst of speech -----------------------------------------------------------------------------------

DEEP = 12
"""Amplitude: digital silence is below -69 dB of full scale."""
DEEP_SAMPLES = 96
"""2 ms of digital silence at least: libopus' own ringing takes up most of a short pad."""


@dataclass(frozen=True, slots=True)
class Steepness:
    """How speech falls to digital silence and rises again: from and to an amplitude, in so many samples at most."""

    loud: int
    fall: int
    rise: int
    edge: int
    """What is put on begins that far behind a packet's beginning at most."""


STEEP = Steepness(300, round(0.035 * RATE), round(0.010 * RATE), round(0.002 * RATE))
"""Speech that is cut rings in libopus for up to 31 ms after its last loud sample. Speech that is put on is loud 6 ms
after its packet's beginning, of which the first 0.8 ms are silent (measured: 370 pads of 40 to 200 ms in two voices;
95 % are silent for less than 2 ms)."""
LESS_STEEP = Steepness(AUDIBLE, round(0.045 * RATE), round(0.015 * RATE), round(0.006 * RATE))
"""The same of quiet speech, once it is known that the server pads."""
MAX_PAD = RATE // 2
RINGING = round(0.031 * RATE)
"""From the first padded sample to digital silence, in SILK and hybrid packets: 31 ms in the middle (as above)."""
CELT_RINGING = round(0.009 * RATE)
FIRST_CELT = 16
"""Configuration from which on a packet is CELT only (RFC 6716, table 2)."""
EARLY_EDGE = round(0.0005 * RATE)
EDGE_CHANCE = 0.3
"""Of closures of speech, so many end where a packet begins: SILK has four sub-frames (23 % of 302, measured)."""
CHANCE = 0.1
LIKE_DB, VERY_LIKE_DB = 8.0, 6.0
"""How far the spectrum after a pad is from the one before it: 4 to 6 in the middle, after closures 11 (measured)."""
RARE_SECONDS, RARELY_LIKE_DB, RARE_CHANCE = 0.7, 14.0, 0.3
"""Where a voice has fewer than one such break in so much speech, its closures are not digital, and less will do."""
SURE_SAMPLES = round(0.055 * RATE)
BANDS = (100, 300, 500, 800, 1200, 1700, 2300, 3000, 4000, 5500, 8000)
EDGE_SAMPLES = 960


@dataclass(frozen=True, slots=True)
class Pad:
    """Digital silence in the midst of speech: begin and end in the samples of a Voice."""

    begin: int
    end: int
    on_edge: bool
    """What follows begins where a packet does."""
    unlike_db: float

    @property
    def samples(self) -> int:
        return self.end - self.begin


def pads(sent: Voice) -> tuple[Pad, ...]:
    """Zeros that a starved server sent in the midst of speech.

    They are told from the closures and pauses of speech by three signs. Speech falls to digital silence faster, and
    comes back faster, than it does by itself; that alone leaves closures of voices which are themselves digital (some
    three a second of espeak-ng, one a minute of a neural voice). So what follows must begin where a packet does, more
    often than chance would have it, and must sound like what was cut. One pad alone is believed only if it is long.
    """
    found = list(breaks(sent, STEEP))
    edge = [pad for pad in found if pad.on_edge]
    unlike = float(np.median([pad.unlike_db for pad in edge])) if edge else np.inf
    if len(edge) == len(found) == 1:
        pads_it = edge[0].samples >= SURE_SAMPLES and unlike <= VERY_LIKE_DB
    else:
        rare = BLOCK_SECONDS * int(np.count_nonzero(audible(sent.samples))) > RARE_SECONDS * len(found)
        like = unlike <= (RARELY_LIKE_DB if rare else LIKE_DB)
        pads_it = len(edge) >= 2 and like and by_chance(len(edge), len(found)) <= (RARE_CHANCE if rare else CHANCE)
    if not pads_it:
        return ()
    quiet = [pad for pad in breaks(sent, LESS_STEEP) if pad.on_edge and pad.end not in {each.end for each in edge}]
    return tuple(sorted([*edge, *quiet], key=lambda pad: pad.begin))


def by_chance(hits: int, among: int) -> float:
    """How likely so many closures, or more, begin anew where a packet does."""
    ways, chance = 1.0, 0.0
    for count in range(among + 1):
        if count >= hits:
            chance += ways * EDGE_CHANCE**count * (1 - EDGE_CHANCE) ** (among - count)
        ways *= (among - count) / (count + 1)
    return chance


def breaks(sent: Voice, steep: Steepness) -> Iterator[Pad]:
    """Everything between two loud samples that falls to digital silence and rises from it fast enough for a pad."""
    height = np.abs(sent.samples.astype(np.int32))
    loud = np.flatnonzero(height >= steep.loud)
    wide = np.flatnonzero((np.diff(loud) > EDGE_SAMPLES) & (np.diff(loud) < MAX_PAD))
    for last, first in zip(loud[wide], loud[wide + 1], strict=True):
        noise = np.flatnonzero(height[last + 1 : first] > DEEP) + last + 1
        silence = max(pairwise([last, *noise, first]), key=lambda ends: ends[1] - ends[0])
        fell, rose = int(silence[0]) + 1, int(silence[1])
        if rose - fell < DEEP_SAMPLES or fell - last > steep.fall or first - rose > steep.rise:
            continue
        packet = int(np.searchsorted(sent.starts, rose + EARLY_EDGE, side="right")) - 1
        if not sent.whole[packet] or first + EDGE_SAMPLES > sent.samples.size or last < EDGE_SAMPLES:
            continue
        yield _pad(sent, int(last), fell, rose, int(first), packet, steep.edge)


def _pad(sent: Voice, last: int, fell: int, rose: int, first: int, packet: int, edge: int) -> Pad:
    behind = rose - int(sent.starts[packet])
    on_edge = behind <= edge
    celt = sent.packets[packet].payload[0] >> 3 >= FIRST_CELT
    begin = max(fell - (CELT_RINGING if celt else RINGING), last - LESS_STEEP.fall)
    end = int(sent.starts[packet]) if on_edge else rose
    return Pad(min(begin, end), end, on_edge, unlike(sent.samples[: last + 1], sent.samples[first:]))


def unlike(before: Pcm, after: Pcm) -> float:
    """How far the spectra of 20 ms at that end and that begin are apart, whatever their loudness; dB."""
    difference = _spectrum(before[-EDGE_SAMPLES:]) - _spectrum(after[:EDGE_SAMPLES])
    return float(np.abs(difference - difference.mean()).mean())


def _spectrum(samples: Pcm) -> NDArray[np.float64]:
    power = np.abs(np.fft.rfft(samples * np.hanning(samples.size), 2048)) ** 2
    hz = np.fft.rfftfreq(2048, 1 / RATE)
    sums = [power[(hz >= low) & (hz < high)].sum() for low, high in pairwise(BANDS)]
    return np.asarray(10 * np.log10(np.array(sums) + 1e4))


# ---- the same sound again -------------------------------------------------------------------------------------------

ALIKE = 0.7
"""Correlation from which on two sounds are one: what a coder makes of speech has 0.9 and more, other speech up to 0.6
(both measured, of 0.4 s)."""
ALIKE_STEP = 0.5
"""The same of 20 ms, of which some are only hiss."""
STEP_SAMPLES, STRANGE_STEPS = 960, 4


@dataclass(frozen=True, slots=True)
class Match:
    """Where in a reference a sound begins, in samples (before 0 where the reference begins later), and how alike."""

    place: int
    alike: float


def match(sound: Pcm, reference: Pcm) -> Match:
    """The place of `sound` in `reference`; it may hang over at both ends of it by half its length."""
    if not sound.any() or not reference.any():
        return Match(0, 0.0)
    margin = sound.size // 2
    padded = np.pad(reference.astype(np.float64), margin)
    if padded.size < sound.size:
        padded = np.pad(padded, (0, sound.size - padded.size))
    size = 1 << (padded.size + sound.size).bit_length()
    spectrum = np.fft.rfft(padded, size) * np.conj(np.fft.rfft(sound.astype(np.float64), size))
    products = np.fft.irfft(spectrum, size)[: padded.size - sound.size + 1]
    energy = np.concatenate([[0.0], np.cumsum(padded**2)])
    there = energy[sound.size :] - energy[: -sound.size]
    floor = max(float(there.max()) * 1e-3, 1.0)
    alike = products / np.sqrt(np.maximum(there, floor) * (sound.astype(np.float64) ** 2).sum())
    best = int(alike.argmax())
    return Match(best - margin, float(alike[best]))


def same_for(sound: Pcm, reference: Pcm, place: int) -> int:
    """For how many samples `sound` goes on as `reference` does from that place on: 20 ms at a time, and silence is as
    everything."""
    count = min(sound.size, reference.size - place) // STEP_SAMPLES
    same, strange = 0, 0
    for start in range(0, count * STEP_SAMPLES, STEP_SAMPLES):
        here = sound[start : start + STEP_SAMPLES].astype(np.float64)
        there = reference[place + start : place + start + STEP_SAMPLES].astype(np.float64)
        power = (here**2).sum() * (there**2).sum()
        quiet = max(np.abs(here).max(), np.abs(there).max()) <= AUDIBLE
        strange = strange + 1 if not quiet and (here * there).sum() < ALIKE_STEP * np.sqrt(power) else 0
        if strange == STRANGE_STEPS:
            break
        if not strange:
            same = start + STEP_SAMPLES
    return same


WINDOW = 120
PRESENT = 0.25
"""Of the reference's power in 2.5 ms: a coder lets a little of what follows be heard before it begins."""


def missing_samples(sound: Pcm, reference: Pcm, place: int) -> int:
    """How much of the reference's beginning is not in `sound`, which begins at that place of it: from the first audible
    sample of the reference to the first 2.5 ms of it that are there."""
    loud = np.flatnonzero(np.abs(reference.astype(np.int32)) > AUDIBLE)
    begin = int(loud[0]) if loud.size else 0
    for start in range(begin, reference.size - WINDOW, WINDOW):
        there = reference[start : start + WINDOW].astype(np.float64)
        here = sound[max(0, start - place) : max(0, start + WINDOW - place)].astype(np.float64)
        if np.abs(there).max() > AUDIBLE and (here**2).sum() > PRESENT * (there**2).sum():
            return start - begin
    return 0


def ticks(packet: Packet) -> int:
    """Its length in samples."""
    return packet_ticks(packet.payload)
