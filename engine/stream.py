"""One request's way through the stages: what it needs next, and what it has. It does not know other requests.

text -> prefill in parts -> [depth -> (codec | decode)] for each frame -> codec for what is left. A text that is still
being written has a text step of its own wherever the next frame needs what has come since the last one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf

from engine.core import (
    Admission,
    FinishReason,
    Limits,
    ModelSpec,
    Prefix,
    RequestStats,
    Row,
    Stage,
    Submit,
    Text,
    TextSegment,
)
from engine.open_text import RESERVE, OpenText
from engine.playback import Playback
from engine.room import Place

TEXT, PREFILL, DECODE, DEPTH, CODEC, _ = Stage  # Stage.X takes 0.1 us in Python 3.11, for every stream of every plan


def frame_limit(submit: Submit, spec: ModelSpec) -> int:
    """Frames that the request may have: its own limit, or what the model's positions leave after the prompt."""
    return min(submit.sampling.max_frames, spec.max_positions - submit.prompt.length - 1)


def shareable(submit: Submit, page_size: int) -> Prefix | None:
    """The prefix that all rows of the prompt have, in whole pages; the last position is never part of it."""
    rows = submit.prompt.rows
    prefixes = {row.prefix for row in rows}
    if len(prefixes) != 1 or (prefix := prefixes.pop()) is None:
        return None
    pages = min(prefix.length, *(row.length - 1 for row in rows)) // page_size
    return replace(prefix, length=pages * page_size) if pages else None


def pages_needed(submit: Submit, frames: int, page_size: int) -> tuple[int, ...]:
    """Pages of each prompt row for prompt and frames together."""
    return tuple(-(-(row.length + frames) // page_size) for row in submit.prompt.rows)


def opened(submit: Submit) -> OpenText | None:
    """What is known of the text, where more is to come."""
    row = submit.prompt.rows[0]
    if not row.open:
        return None
    assert len(submit.prompt.rows) == 1, "a text that is written meanwhile is read by one sequence"
    return OpenText(row.length, row.text_end)


@dataclass(slots=True, eq=False)
class Stream:
    """A request that was accepted. Everything it may ever need is reserved when it is admitted."""

    submit: Submit
    submitted_at: float
    ready_at: float
    """Since when nothing but room keeps it from starting: its arrival, or the end of what went before."""
    max_frames: int
    pages_needed: tuple[int, ...]
    guided: bool
    """It has two backbone sequences."""
    prompt_length: int
    text_tokens: int
    to_read: int
    """Tokens of its next text step: those of segments that are in shared pages already are left out."""
    frame_seconds: float
    prefix: Prefix | None = None
    """Of its prompt, in whole pages."""
    text: OpenText | None = None
    """Of one that was opened before its text was complete."""
    lacks_text: bool = False
    """Its next frame waits for text."""
    silent: bool = False
    """Its listener ran dry for want of text, and has not heard more since."""
    playback: Playback = field(default_factory=Playback)
    after: Stream | None = None
    """The utterance that this one continues, while that is still being generated."""
    continues: bool = False
    """Its start is known: the end of the utterance before it. Without that it has start priority."""
    place: Place | None = None
    """Its reply's, if that has begun: such a stream is never held back or refused for the sake of others."""
    slots: tuple[int, ...] = ()
    pages: tuple[tuple[int, ...], ...] = ()
    stage: Stage = TEXT
    """What generation needs next; meaningless once it is over."""
    prefilled: int = 0
    encoded: int = 0
    """Frames of a recording that the encoder has had."""
    made: int = 0
    """Frames that the depth decoder finished."""
    sent: int = 0
    """Frames handed over as audio."""
    chunks: int = 0
    reason: FinishReason | None = None
    """Why generation is over."""
    first_chunk_at: float | None = None
    served_at: float = 0.0
    """When its last step ended; until then, when it came."""
    last_chunk_seconds: float = 0.0
    stage_seconds: dict[Stage, float] = field(default_factory=lambda: dict.fromkeys(Stage, 0.0))

    @classmethod
    def accept(cls, submit: Submit, spec: ModelSpec, limits: Limits, now: float) -> Stream:
        frames = frame_limit(submit, spec)
        submitted_at = now if submit.submitted_at is None else submit.submitted_at
        return cls(
            submit,
            submitted_at,
            submitted_at,
            frames,
            pages_needed(submit, frames, limits.page_size),
            len(submit.prompt.rows) > 1,
            submit.prompt.length,
            submit.prompt.text_tokens,
            submit.prompt.text_tokens,
            spec.frame_seconds,
            prefix=shareable(submit, limits.page_size),
            text=opened(submit),
            served_at=submitted_at,
        )

    @property
    def request_id(self) -> int:
        return self.submit.request_id

    @property
    def num_rows(self) -> int:
        """Backbone sequences, and slots."""
        return len(self.pages_needed)

    @property
    def pending(self) -> int:
        """Frames made that are not audio yet."""
        return self.made - self.sent

    @property
    def starting(self) -> bool:
        """A new caller who has not heard anything yet."""
        return not (self.sent or self.continues)

    def due_at(self, max_lead: float) -> float:
        """When it may go on: minus infinity for now, infinity for not without an event. A stream that is far ahead of
        its listener is held between two chunks only."""
        if self.after is not None:
            return inf
        if self.made > self.sent:  # pending, without its call
            return -inf
        text_at = -inf if self.text is None else self._text_due_at(self.text)
        if text_at == inf or not (self.sent or self.continues):  # starting, without its call
            return text_at
        return max(text_at, self.playback.due_at(max_lead))

    def _text_due_at(self, text: OpenText) -> float:
        """When it may go on by what has come of its text."""
        if not self.slots:
            return -inf if text.begins else inf
        if self.lacks_text:
            return inf
        if text.enough(self.made, self.silent):
            return -inf
        return inf if self.silent else self.playback.due_at(RESERVE)

    def take_text(self, text: Text) -> None:
        """More of it has come."""
        assert self.text is not None, f"text for a request that was not opened: {text}"
        self.text.append(text.ids, text.done)
        self.text_tokens += len(text.ids)
        if not self.text.encoded:
            (row,) = self.submit.prompt.rows
            row = replace(row.with_text(text.ids), open=not text.done)
            self.submit = replace(self.submit, prompt=replace(self.submit.prompt, rows=(row,)))
            self.to_read += len(text.ids)
        self._read_on(self.text)

    def _read_on(self, text: OpenText) -> None:
        """Whether the next frame waits for text, or for a text step."""
        if not self.made or self.stage is DEPTH:
            return
        self.lacks_text = text.lacks(self.made)
        self.to_read = len(text.unread) or self.to_read
        self.stage = TEXT if text.reads(self.made) else DECODE

    @property
    def opens(self) -> bool:
        """It waits for text to begin with."""
        return self.text is not None and not (self.slots or self.text.begins)

    def fall_silent(self) -> None:
        """Its listener has run dry for want of text: it begins anew, as far as he can hear."""
        assert self.text is not None
        self.text.fall_silent()
        self.silent, self.chunks = True, 0

    def waits_since(self, max_lead: float) -> float:
        """Since when it could have had its slots: what comes later in a reply is not due before its time."""
        return max(self.ready_at, self.due_at(max_lead))

    @property
    def in_reply(self) -> bool:
        """While it waits: it continues an utterance that is alive, or that was heard just now."""
        return self.after is not None or self.place is not None

    @property
    def boundary(self) -> int:
        """The position up to which it may share pages; its prefill is parted there, shared or not, so that its codes do
        not depend on that."""
        return self.prefix.length if self.prefix else 0

    def hold(self, slots: tuple[int, ...], pages: tuple[int, ...], shared: tuple[int, ...] = ()) -> None:
        """Take possession of a slot for each prompt row, and of pages, which are dealt out to the rows in order; every
        row begins with the shared ones, which hold its prefix."""
        if self.text is not None:
            self.text.going = True
        dealt, own = iter(pages), (count - len(shared) for count in self.pages_needed)
        self.slots, self.pages = slots, tuple((*shared, *islice(dealt, count)) for count in own)
        if shared:
            self.prefilled, rows = self.boundary, self.submit.prompt.rows
            behind = (segment for row in rows for _, segment in row.behind(self.boundary))
            self.to_read = sum(segment.length for segment in behind if isinstance(segment, TextSegment))

    def row(self, stage: Stage, count: int) -> Row:
        """This request's part of a step."""
        number = self.submit.request_id
        if stage is DEPTH:
            return Row(number, self.slots, self.made)
        if stage is DECODE:
            return Row(number, self.slots, self.made - 1)
        if stage is CODEC:
            return Row(number, self.slots, self.sent, count)
        if stage is PREFILL:
            return Row(number, self.slots, self.prefilled, count, self.prefilled + count == self.prompt_length)
        if self.made:
            assert self.text is not None
            return Row(number, self.slots, self.text.encoded, count, text=tuple(self.text.unread))
        admission = Admission(self.submit.prompt, self.submit.sampling, self.pages, self.prefilled)
        return Row(number, self.slots, 0, count, admission=admission)

    def advance(self, stage: Stage, row: Row, ended: bool) -> None:
        """A step with this row was run; `ended` says that code 0 was the end of speech."""
        if stage is DEPTH:
            self.made += 1
            self.stage = DECODE
            if self.made == self.max_frames:
                self.reason = FinishReason.LENGTH
        elif stage is DECODE:
            self._drawn(ended)
        elif stage is CODEC:
            self.sent += row.count
            self.chunks += 1
        elif stage is PREFILL:
            self.prefilled += row.count
            if row.final:
                self._drawn(ended)
        elif not self.made:
            self.stage = PREFILL
        if self.text is not None:
            self._follow_text(self.text, stage, row)

    def _follow_text(self, text: OpenText, stage: Stage, row: Row) -> None:
        """The same for what is known of its text."""
        if stage is TEXT:
            text.encode(len(row.text) or self.submit.prompt.rows[0].text_end)
        self._read_on(text)
        text.going = not self.lacks_text and (text.going or stage is not CODEC)

    def _drawn(self, ended: bool) -> None:
        self.stage = DEPTH
        if ended:
            self.reason = FinishReason.END

    def stats(self, now: float) -> RequestStats:
        seconds = self.sent * self.frame_seconds
        costs = dict(self.stage_seconds)
        return RequestStats(self.submitted_at, self.first_chunk_at, now, self.sent, seconds, costs, self.text_tokens)
