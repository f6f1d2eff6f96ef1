"""The plain data that every layer of the engine shares: requests, steps, results, events.

It knows neither torch nor time: instants come from a Clock, tensors stay inside the executor.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from math import inf

import numpy as np
from numpy.typing import NDArray

from engine.checks import LARGEST_ID, check, check_id, check_range, is_number, is_whole

PCM = NDArray[np.int16]
"""Mono samples at ModelSpec.sample_rate, shape [samples]."""
Codes = NDArray[np.int16]
"""Codec ids, shape [frames, codebooks]."""
Samples = NDArray[np.float32]
"""Of a recording, mono at ModelSpec.sample_rate in [-1, 1], shape [samples]."""

MOST_SAMPLES = 2**53
"""Of one request's audio that can have been played: more no float counts exactly."""
MOST_SECONDS = 1e15
"""Of an instant or a duration that anybody tells: beyond, a float has no fractions of a second."""
RECORDED_RATE = 24_000
"""Samples a second of recordings that become codes."""
MOST_RECORDED = 2_000_000
"""Samples of a recording: more than a minute of them."""
KNOWN_VOICES = 64
"""Recordings of which something is kept, so that who speaks like them again need not be looked through again."""
MOST_OF_A_VECTOR = 1e6
"""Of a number in a speaker's vector: no encoder says more."""


class Stage(StrEnum):
    """A kind of device work. PREFILL and DECODE are the two phases of the backbone; ENCODE turns a recording into
    codes, and is no part of an utterance."""

    TEXT = "text"
    PREFILL = "prefill"
    DECODE = "decode"
    DEPTH = "depth"
    CODEC = "codec"
    ENCODE = "encode"


SPEAKING = tuple(stage for stage in Stage if stage is not Stage.ENCODE)
"""The stages of an utterance."""


class Mode(StrEnum):
    """What a request brings beside its text: nothing, an instruction, a recording to speak like, or both."""

    PLAIN = "plain"
    DESIGN = "design"
    CLONE = "clone"
    DIRECTION = "direction"


class FinishReason(StrEnum):
    """Why a request's audio ended."""

    END = "end"
    """The model chose its end-of-speech class."""
    LENGTH = "length"
    """max_frames or the model's last position was reached."""
    CANCELLED = "cancelled"


class ErrorCode(StrEnum):
    """Why a request failed; the names go over the wire unchanged."""

    BAD_REQUEST = "bad_request"
    TOO_LONG = "too_long"
    BUSY = "busy"
    ENGINE_DIED = "engine_died"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How codes are drawn. A temperature below 0.001 is greedy; top_k 0 and top_p 1 are off.

    `cfg_scale` None means the default of the request's mode. Raises RequestError on values that are out of range or of
    another type.
    """

    temperature: float = 0.9
    depth_temperature: float = 0.9
    top_k: int = 50
    depth_top_k: int = 50
    top_p: float = 1.0
    depth_top_p: float = 1.0
    repetition_penalty: float = 1.0
    cfg_scale: float | None = None
    seed: int = 42
    min_frames: int = 0
    max_frames: int = 1500

    def __post_init__(self) -> None:
        scale = 1.0 if self.cfg_scale is None else self.cfg_scale
        for name, value, low, high in (
            ("temperature", self.temperature, 0.0, 10.0),
            ("depth_temperature", self.depth_temperature, 0.0, 10.0),
            ("top_k", self.top_k, 0, 2**31 - 1),
            ("depth_top_k", self.depth_top_k, 0, 2**31 - 1),
            ("top_p", self.top_p, 1e-6, 1.0),
            ("depth_top_p", self.depth_top_p, 1e-6, 1.0),
            ("repetition_penalty", self.repetition_penalty, 0.1, 10.0),
            ("cfg_scale", scale, 0.0, 20.0),
            ("seed", self.seed, 0, LARGEST_ID),
            ("max_frames", self.max_frames, 1, 2**31 - 1),
            ("min_frames", self.min_frames, 0, self.max_frames),
        ):
            check_range(name, value, low, high)


@dataclass(frozen=True, slots=True)
class Reference:
    """A recording to speak like: its transcript and its codec frames, each of `num_codebooks` ids, and what a speaker
    encoder made of it, for voices that have one. Raises RequestError on values of another type; which ids there are,
    how long the vector is, and what may be left empty, the voice knows."""

    text: str
    frames: tuple[tuple[int, ...], ...]
    vector: tuple[float, ...] = ()
    """The speaker's."""

    def __post_init__(self) -> None:
        check(isinstance(self.text, str), "reference text", "text", self.text)
        check(isinstance(self.frames, tuple), "reference frames", "a tuple of frames", self.frames)
        for number, frame in enumerate(self.frames):
            whole = isinstance(frame, tuple) and all(map(is_whole, frame))
            check(whole, f"reference frame {number}", "a tuple of whole numbers", frame)
        numbers = isinstance(self.vector, tuple) and all(
            is_number(x) and abs(x) <= MOST_OF_A_VECTOR for x in self.vector
        )
        check(numbers, "reference vector", "a tuple of numbers that are not huge", self.vector)

    def __reduce__(self) -> tuple[object, ...]:
        """What many requests carry to the engine's process is packed and unpacked once."""
        return same_reference, (self.text, _packed(self.frames), self.vector)


@lru_cache(KNOWN_VOICES)
def _packed(frames: tuple[tuple[int, ...], ...]) -> bytes:
    return pickle.dumps(frames)


@lru_cache(KNOWN_VOICES)
def _unpacked(packed: bytes) -> tuple[tuple[int, ...], ...]:
    frames: tuple[tuple[int, ...], ...] = pickle.loads(packed)
    return frames


@lru_cache(KNOWN_VOICES)
def same_reference(text: str, frames: bytes | tuple[tuple[int, ...], ...], vector: tuple[float, ...]) -> Reference:
    """The reference of these, packed or not: the very same one where it was asked for lately, since looking through
    half a minute of frames takes longer than to begin to speak may."""
    return Reference(text, _unpacked(frames) if isinstance(frames, bytes) else frames, vector)


@dataclass(frozen=True, slots=True)
class Request:
    """One utterance, as its caller asks for it.

    `epoch` is the caller's: it comes back on every chunk, so that audio from before an interruption can be told.
    `follows` is the request_id of the utterance that this one continues: it then has a known start, the end
    of that one, instead of start priority. Raises RequestError on values of another type.
    """

    text: str
    sampling: SamplingParams
    speaker: str = "S0"
    instruction: str = ""
    reference: Reference | None = None
    epoch: int = 0
    follows: int | None = None
    language: str = ""
    """Of the text, out of ModelSpec.languages; empty: the voice tells by itself."""
    open: bool = False
    """More text is to come: `text` is its beginning, which may be empty. Where ModelSpec.open_text."""

    def __post_init__(self) -> None:
        for name in ("text", "speaker", "instruction", "language"):
            check(isinstance(getattr(self, name), str), name, "text", getattr(self, name))
        check(isinstance(self.sampling, SamplingParams), "sampling", "SamplingParams", self.sampling)
        check(isinstance(self.open, bool), "open", "true or false", self.open)
        recorded = self.reference is None or isinstance(self.reference, Reference)
        check(recorded, "reference", "a Reference or None", self.reference)
        check_id("epoch", self.epoch)
        if self.follows is not None:
            check_id("follows", self.follows)

    @property
    def mode(self) -> Mode:
        if self.reference is None:
            return Mode.DESIGN if self.instruction else Mode.PLAIN
        return Mode.DIRECTION if self.instruction else Mode.CLONE


@dataclass(frozen=True, slots=True)
class TextSegment:
    """Token ids that the text encoder sees alone, from its own position 0."""

    ids: tuple[int, ...]

    @property
    def length(self) -> int:
        return len(self.ids)


@dataclass(frozen=True, slots=True)
class ReferenceSegment:
    """Reference frames; one audio-EOS position follows the last."""

    frames: tuple[tuple[int, ...], ...]

    @property
    def length(self) -> int:
        return len(self.frames) + 1


@dataclass(frozen=True, slots=True)
class Overlay:
    """What is added to the text of a prompt's positions from `start` on: reference frames, which the codec also takes
    as what was heard before; or a speaker's vector, at one position."""

    start: int
    frames: tuple[tuple[int, ...], ...] = ()
    vector: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Prefix:
    """The beginning of a prompt that is the voice's and not the text's. Where keys are equal, so is all that the
    backbone receives in these positions, and with that what it keeps of them."""

    key: bytes
    length: int


@dataclass(frozen=True, slots=True)
class PromptRow:
    """What one backbone sequence receives, in order."""

    segments: tuple[TextSegment | ReferenceSegment, ...]
    overlays: tuple[Overlay, ...] = ()
    trailing: int = 0
    """So many of the last tokens are not of the prompt: of a model whose text goes on while it speaks, one is added to
    each frame that is fed back, and the last of them to all further frames. Below zero: so many of the prompt are still
    to come."""
    open: bool = False
    """More text is to come, behind the last segment."""
    prefix: Prefix | None = None

    @property
    def length(self) -> int:
        return self.text_end - self.trailing

    @property
    def text_end(self) -> int:
        """Positions of prompt and trailing text, as far as it has come."""
        return sum(segment.length for segment in self.segments)

    @property
    def text_tokens(self) -> int:
        return sum(s.length for s in self.segments if isinstance(s, TextSegment))

    def behind(self, position: int) -> Iterator[tuple[int, TextSegment | ReferenceSegment]]:
        """Each segment that does not end before the position, with its own first one."""
        start = 0
        for segment in self.segments:
            if start + segment.length > position:
                yield start, segment
            start += segment.length

    def with_text(self, ids: tuple[int, ...]) -> PromptRow:
        """The same once more text has come."""
        *before, last = self.segments
        assert isinstance(last, TextSegment), f"a text goes on behind text, not behind {last}"
        return replace(self, segments=(*before, TextSegment(last.ids + ids)), trailing=self.trailing + len(ids))


@dataclass(frozen=True, slots=True)
class Prompt:
    """A request's backbone sequences: one, or with guidance two (conditional, unconditional)."""

    rows: tuple[PromptRow, ...]
    cfg_scale: float = 1.0

    @property
    def length(self) -> int:
        return max(row.length for row in self.rows)

    @property
    def text_tokens(self) -> int:
        return sum(row.text_tokens for row in self.rows)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What everybody outside the model's own file may know about it."""

    name: str
    licence: str
    sample_rate: int
    samples_per_frame: int
    num_codebooks: int
    max_positions: int
    """Backbone positions a request may use, prompt and frames together."""
    modes: frozenset[Mode]
    sampling: SamplingParams
    """The checkpoint's own defaults."""
    max_text_chars: int = 2000
    """Of a text as it is given, and as it is read, with its numbers written out, where `normalise` says so."""
    normalise: str = ""
    """The language (BCP 47) in which numbers, symbols and markup are written out before the voice reads a text; empty:
    it gets texts as they are."""
    speakers: tuple[str, ...] = ()
    """Who can speak, the voice's own first; empty: nobody but the one."""
    languages: tuple[str, ...] = ()
    """What a request may name; empty: none."""
    guided: bool = False
    """Whether an instruction may take a second backbone sequence (classifier-free guidance)."""
    encodes: bool = False
    """Whether a recording can be turned into a Reference: its encoders are there, and fit."""
    vector_width: int = 0
    """Numbers of the speaker's vector that a Reference must have; 0: the voice reads none."""
    open_text: bool = False
    """Whether a request may be opened before its text is complete: it speaks while the text is being written."""

    @property
    def frame_seconds(self) -> float:
        return self.samples_per_frame / self.sample_rate


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of everything the engine holds. Slot 0 and page 0 belong to nobody and are not counted."""

    num_slots: int = 8
    """Backbone rows at once: a request takes one, with guidance two."""
    num_pages: int = 512
    page_size: int = 16
    """Backbone positions a page."""
    max_queued: int = 64
    """Requests that wait for a slot; one more is refused as busy. Those that continue a reply have as many places of
    their own, so that new callers cannot have a reply refused in its middle."""
    max_prefill_tokens: int = 256
    """Prompt positions of one request in one prefill step."""
    max_step_seconds: float = 0.1
    """Predicted seconds of one step, and with that what a new caller can find himself waiting behind: chunks, prefill
    parts and batches grow no larger. The smallest of each may take longer."""
    max_lead: float = 4.0
    """Seconds of audio ahead of the playhead beyond which a stream is held between two chunks, on an idle engine too:
    a barge-in then wastes little. Not for a request that never had a playhead, like a file that is written."""
    max_wait: float = inf
    """Predicted seconds that a new caller may have to wait until one more stream breaks no deadline; a longer wait is
    refused as busy. Infinity: nobody is held back for others' deadlines, nor refused before the queue is full."""
    max_batch: Mapping[Stage, int] = field(default_factory=lambda: dict.fromkeys(Stage, 8))
    """Requests a step, by stage, guided or not."""
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    """The ladder of batch shapes: a step with fewer requests is padded to the next."""


@dataclass(frozen=True, slots=True)
class Admission:
    """All that the executor needs to know of a request, handed over with its text step."""

    prompt: Prompt
    sampling: SamplingParams
    pages: tuple[tuple[int, ...], ...]
    """Page ids, one tuple for each of the prompt's rows, enough for prompt and frames."""
    shared: int = 0
    """Positions at the beginning whose keys and values are in their pages already."""


@dataclass(slots=True)  # not frozen: that would take 0.6 us more for each row of each step
class Row:
    """One request's part of a step; nobody changes it.

    start and count are positions in the prompt for PREFILL, frame indices for DECODE (the frame that is fed back),
    DEPTH (the frame that is made), CODEC (the frames that become audio) and ENCODE (of the recording); TEXT has 0 and
    its token count, or the position and the count of what has come since.
    """

    request_id: int
    slots: tuple[int, ...]
    """One slot for each of the prompt's rows; the first also holds depth, codec and sampling state. ENCODE: a place for
    a recording's past."""
    start: int = 0
    count: int = 1
    final: bool = False
    """PREFILL: the prompt ends here, so code 0 of frame 0 is drawn. ENCODE: the recording ends here."""
    admission: Admission | None = None
    """TEXT only: of a request that begins."""
    text: tuple[int, ...] = ()
    """TEXT only: what has come of the text of one that has begun."""
    samples: Samples | None = field(default=None, compare=False, repr=False)
    """ENCODE only: those of the frames."""
    recording: Samples | None = field(default=None, compare=False, repr=False)
    """ENCODE, where the recording ends: all of it."""


DOUBLED = frozenset({Stage.PREFILL, Stage.DECODE, Stage.DEPTH})
"""Stages that run two sequences for each request with guidance."""


def num_sequences(stage: Stage, requests: int, guided: bool) -> int:
    """Sequences that a step runs: if any of its requests is guided, backbone and depth decoder run two for each."""
    return 2 * requests if guided and stage in DOUBLED else requests


@dataclass(slots=True)
class Step:
    """One unit of device work, of at least one row: one stage for some requests. All rows of a CODEC step have the same
    count. Nobody changes it, so that what its cost depends on is found once, and not by everyone who asks."""

    stage: Stage
    rows: tuple[Row, ...]
    sequences: int = field(init=False, repr=False, compare=False)
    length: int = field(init=False, repr=False, compare=False)
    """The longest row: tokens for TEXT and PREFILL, frames for CODEC and ENCODE, 1 elsewhere."""

    def __post_init__(self) -> None:
        guided = True in [len(row.slots) > 1 for row in self.rows]
        self.sequences = num_sequences(self.stage, len(self.rows), guided)
        self.length = max([row.count for row in self.rows])

    @property
    def batch(self) -> int:
        return len(self.rows)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What comes back from the device, a value a row; empty where the stage has nothing to say."""

    ended: tuple[bool, ...] = ()
    """PREFILL and DECODE: code 0 was the end of speech (False for a prefill that is not final)."""
    pcm: tuple[PCM, ...] = ()
    """CODEC."""
    codes: tuple[Codes, ...] = ()
    """CODEC: the frames that the audio was made from. ENCODE: those that the samples became."""
    vectors: tuple[tuple[float, ...], ...] = ()
    """ENCODE, for a voice that reads them: who speaks in the recordings that end here, nothing of the others."""


@dataclass(frozen=True, slots=True)
class Submit:
    """A tokenised request enters."""

    request_id: int
    prompt: Prompt
    sampling: SamplingParams
    epoch: int = 0
    follows: int | None = None
    submitted_at: float | None = None
    """When its caller handed it in (the engine's clock, CLOCK_MONOTONIC); None: at the moment."""


@dataclass(frozen=True, slots=True, eq=False)
class Encode:
    """A recording enters, to become codes. Raises RequestError for what is no recording."""

    request_id: int
    samples: Samples
    submitted_at: float | None = None
    """As in Submit."""

    def __post_init__(self) -> None:
        check_id("request_id", self.request_id)
        samples = self.samples
        flat = isinstance(samples, np.ndarray) and samples.dtype == np.float32 and samples.ndim == 1
        check(flat, "samples", "a row of float32", samples)
        check(0 < samples.size <= MOST_RECORDED, "samples", f"from 1 to {MOST_RECORDED}", samples.size)
        check(bool(np.isfinite(samples).all()), "samples", "numbers", samples)


@dataclass(frozen=True, slots=True)
class Text:
    """More text of an open request, as tokens; `done` is the last of it. Ignored where nobody waits for it."""

    request_id: int
    ids: tuple[int, ...]
    done: bool = False
    came_at: float | None = None
    """When its caller handed it in, as in Submit."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A request that failed on its way to the scheduler, which counts and answers it; or one that is open, and whose
    text cannot go on."""

    request_id: int
    epoch: int
    code: ErrorCode
    message: str
    field: str | None = None
    """Of the request, where one is to blame."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Nothing more of this request is wanted, nor of one that was made whole listened to. Unknown ids are ignored."""

    request_id: int

    def __post_init__(self) -> None:
        check_id("request_id", self.request_id)


@dataclass(frozen=True, slots=True)
class Playhead:
    """Where the listener's playback clock stands in one request's audio; never in one that waits behind another.

    played_samples were played at instant `at` (the engine's clock, CLOCK_MONOTONIC); while `running` is false the clock
    stands still (paused, rebuffering). `jitter` is how late, in seconds, deliveries to this listener may come. Raises
    RequestError on values that are out of range or of another type.
    """

    request_id: int
    played_samples: int
    at: float
    running: bool = True
    jitter: float = 0.0

    def __post_init__(self) -> None:
        check_id("request_id", self.request_id)
        check_range("played_samples", self.played_samples, 0, MOST_SAMPLES)
        check_range("at", self.at, -MOST_SECONDS, MOST_SECONDS)
        check(isinstance(self.running, bool), "running", "true or false", self.running)
        check_range("jitter", self.jitter, 0.0, MOST_SECONDS)


Event = Submit | Text | Encode | Refused | Cancel | Playhead


@dataclass(frozen=True, slots=True)
class Queued:
    """A request was accepted that cannot begin yet: no slot is free, or one more stream would break a deadline."""

    request_id: int
    epoch: int
    wait: float
    """Predicted seconds until it begins."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """PCM handed over. Chunks of a request come in order, each frame once.

    `final` is set where the end was known when the chunk was made. The model may also choose it after everything was
    handed over, or before the first frame: the end of a stream is Finished (or Failed), which follows in every case.
    """

    request_id: int
    epoch: int
    first_frame: int
    pcm: PCM
    codes: Codes
    slack: float
    """Seconds between the predicted arrival of the next chunk and the instant at which the audio delivered so far runs
    out, if it is played without a pause from its first delivery (or as the playhead says). Infinity on the last, and
    where the next one waits for text."""
    final: bool = False
    made_at: float | None = None
    """When the engine handed it over (its clock, CLOCK_MONOTONIC): what it takes from then on to arrive is delivery
    jitter. None: not told."""
    text_late: bool = False
    """Its text came too late for it: a silence before it is not the engine's."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """What a recording became; Finished follows."""

    request_id: int
    codes: Codes
    vector: tuple[float, ...] = ()
    """Who speaks in it, for a voice that reads that; see Reference."""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Instants and costs of one request. TTFA = first_chunk_at - submitted_at; RTF = compute_seconds / audio."""

    submitted_at: float
    """Of one that was opened with less: when there was text enough to begin."""
    first_chunk_at: float | None
    finished_at: float
    num_frames: int
    """Frames handed over as audio."""
    audio_seconds: float
    stage_seconds: Mapping[Stage, float]
    """Time of the steps that this request took part in, shared steps divided by their rows."""
    text_tokens: int = 0
    """Of its prompt, all rows together."""

    @property
    def ttfa(self) -> float | None:
        return None if self.first_chunk_at is None else self.first_chunk_at - self.submitted_at

    @property
    def rtf(self) -> float | None:
        return sum(self.stage_seconds.values()) / self.audio_seconds if self.audio_seconds else None


@dataclass(frozen=True, slots=True)
class Finished:
    """The last word on a request that was served."""

    request_id: int
    epoch: int
    reason: FinishReason
    stats: RequestStats


@dataclass(frozen=True, slots=True)
class Failed:
    """The last word on a request that was not, or not fully, served."""

    request_id: int
    epoch: int
    code: ErrorCode
    message: str
    retry_after: float | None = None
    """Seconds after which a busy engine may have room."""
    field: str | None = None
    """Of the request, where one is to blame."""


End = Finished | Failed
"""One of them is the last output of every request."""
Output = Queued | Chunk | Encoded | End
