"""prefixes.py and shared pages: nothing leaks, no stream sees another's, and what is shared changes no code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from queue import Queue

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_engine import Engine, free
from voices import KINDS, voice

from engine.core import (
    Admission,
    Cancel,
    Chunk,
    Failed,
    Finished,
    FinishReason,
    Limits,
    Output,
    Prefix,
    Prompt,
    PromptRow,
    Reference,
    ReferenceSegment,
    Request,
    Row,
    SamplingParams,
    Stage,
    Step,
    StepResult,
    Submit,
    TextSegment,
)
from engine.pages import PageAllocator
from engine.prefixes import Prefixes
from engine.runtime import Runtime, RuntimeConfig

SIZE = 4
LIMITS = Limits(num_slots=4, num_pages=40, page_size=SIZE, max_queued=100, max_prefill_tokens=10)
FRAMES = 6


# ---- pages with several holders ----


def test_a_page_is_free_once_each_holder_has_given_it_back() -> None:
    pages = PageAllocator(3)
    taken = pages.allocate(2) or ()
    pages.share(taken)
    pages.free(taken)
    assert (pages.num_free, [pages.holders(page) for page in taken]) == (1, [1, 1])
    pages.free(taken)
    assert pages.num_free == 3
    with pytest.raises(AssertionError, match="cannot be freed"):
        pages.free(taken)
    with pytest.raises(AssertionError, match="cannot be shared"):
        pages.share(taken)


def test_what_nobody_uses_goes_first_and_the_least_lately_used_of_it() -> None:
    pages = PageAllocator(6)
    prefixes, owners = Prefixes(pages), {}
    for key in (b"a", b"b", b"c"):
        owners[key] = pages.allocate(2) or ()
        prefixes.keep(key, owners[key])
        pages.free(owners[key])
    used = prefixes.take(b"a", 1)
    assert (prefixes.idle(), prefixes.idle(beside=b"b"), prefixes.num_pages) == (4, 2, 6)
    prefixes.make_room(1)
    assert (prefixes.find(b"b"), prefixes.find(b"c"), pages.num_free) == ((), owners[b"c"], 2)
    prefixes.make_room(6)
    assert (prefixes.find(b"a"), len(prefixes), pages.num_free) == (used, 1, 4), "who speaks is not robbed"


def test_the_second_of_one_key_is_not_kept_beside_the_first() -> None:
    pages = PageAllocator(4)
    prefixes, first, second = Prefixes(pages), pages.allocate(2) or (), pages.allocate(2) or ()
    prefixes.keep(b"a", first)
    prefixes.keep(b"a", second)
    assert (prefixes.find(b"a"), pages.holders(second[0])) == (first, 1)


class Counted(PageAllocator):
    """Counts how often it is asked for a page."""

    asked = 0

    def holders(self, page: int) -> int:
        self.asked += 1
        return super().holders(page)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["speak", "end", "room"])), max_size=60))
def test_what_is_idle_is_known_without_counting_it(asked: list[tuple[int, str]]) -> None:
    """Ten voices of one to four pages; each speaker has one page besides."""
    pages = Counted(30)
    prefixes, speaking = Prefixes(pages), list[tuple[int, ...]]()
    for number, what in asked:
        key, size = bytes([number]), 1 + number % 4
        if what == "speak":
            shared = prefixes.take(key, 1) if prefixes.find(key) else ()
            own = pages.allocate(size + 1 - len(shared))
            if own is not None:
                prefixes.keep(key, own[:size])
            speaking.append((*shared, *(own or ())))
        elif what == "end" and speaking:
            pages.free(speaking.pop(number % len(speaking)))
        elif what == "room":
            prefixes.make_room(3 * number)
        unused = {key: len(kept) for key, kept in prefixes._kept.items() if pages.holders(kept[0]) == 1}
        pages.asked = 0
        assert prefixes.idle() == sum(unused.values())
        assert prefixes.idle(beside=key) == sum(unused.values()) - unused.get(key, 0)
        assert pages.asked <= 1
    for held in speaking:
        pages.free(held)
    assert prefixes.idle() == prefixes.num_pages == 30 - pages.num_free


# ---- a scheduler with a device that knows what lies in every page ----


@dataclass(frozen=True)
class Voice:
    """A transcript and a recording: what everybody who speaks like it begins with."""

    number: int
    tokens: int
    frames: int

    def prompt(self, words: int, rows: int) -> Prompt:
        """Each row says something else behind it, as with guidance."""
        mine = TextSegment((self.number,) * self.tokens), ReferenceSegment(((self.number,),) * self.frames)
        prefix = Prefix(bytes([self.number]), self.tokens + self.frames + 1)
        speech = (TextSegment((100 + words,) * (words + row)) for row in range(rows))
        return Prompt(tuple(PromptRow((*mine, said), prefix=prefix) for said in speech))


def contents(row: PromptRow) -> list[object]:
    """What the backbone receives in each position of a prompt."""
    positions: list[object] = []
    for place, segment in enumerate(row.segments):
        told = segment.ids if isinstance(segment, TextSegment) else (*segment.frames, "eos")
        positions += [(place, i, each) for i, each in enumerate(told)]
    return positions


@dataclass
class Memory(Engine):
    """Its device writes down what it was given, by page, and reads all of it again with each step."""

    limits: Limits = LIMITS
    pages: dict[tuple[int, int], object] = field(default_factory=dict)
    admitted: dict[int, Admission] = field(default_factory=dict)
    encoded: dict[int, int] = field(default_factory=dict)
    """Text tokens and frames that its text step had."""

    def result(self, step: Step) -> StepResult:
        for row in step.rows:
            match step.stage:
                case Stage.TEXT:
                    self.begin(row)
                case Stage.PREFILL:
                    self.enter(row, row.start, row.count)
                case Stage.DECODE:
                    self.feed(row)
        return super().result(step)

    def begin(self, row: Row) -> None:
        assert row.admission is not None
        self.admitted[row.request_id] = row.admission
        behind = [list(one.behind(row.admission.shared)) for one in row.admission.prompt.rows]
        texts = (s.length for one in behind for _, s in one if isinstance(s, TextSegment))
        assert row.count == sum(texts), "what is in shared pages is not encoded again"
        self.encoded[row.request_id] = row.count

    def enter(self, row: Row, start: int, count: int) -> None:
        admission = self.admitted[row.request_id]
        assert start >= admission.shared, "what is shared is written once"
        for prompt, pages in zip(admission.prompt.rows, admission.pages, strict=True):
            told = contents(prompt)
            for position in range(start, min(start + count, len(told))):
                self.write(pages, position, told[position])
            self.check(prompt, pages, min(start + count, len(told)), [])

    def feed(self, row: Row) -> None:
        admission = self.admitted[row.request_id]
        frames = [(row.request_id, frame) for frame in range(row.start + 1)]
        for number, (prompt, pages) in enumerate(zip(admission.prompt.rows, admission.pages, strict=True)):
            said = [(number, *frame) for frame in frames]
            self.write(pages, prompt.length + row.start, said[-1])
            self.check(prompt, pages, prompt.length, said)

    def write(self, pages: Sequence[int], position: int, what: object) -> None:
        self.pages[pages[position // SIZE], position % SIZE] = what

    def check(self, prompt: PromptRow, pages: Sequence[int], length: int, said: Sequence[object]) -> None:
        """All that attention looks at is this stream's own, or its voice's."""
        expected = [*contents(prompt)[:length], *said]
        there = [self.pages[pages[place // SIZE], place % SIZE] for place in range(len(expected))]
        assert there == expected

    def ask(self, number: int, voice: Voice, words: int = 3, rows: int = 1) -> None:
        self.frames[number] = FRAMES
        sampling = SamplingParams(max_frames=2 * FRAMES)
        self.outputs += self.submit(Submit(number, voice.prompt(words, rows), sampling))


ANNA, BERT = Voice(1, 5, 9), Voice(2, 3, 4)


def test_the_second_with_a_voice_begins_behind_its_pages() -> None:
    """Fifteen positions of Anna's are three whole pages of four."""
    engine = Memory()
    engine.ask(1, ANNA)
    engine.drain()
    engine.ask(2, ANNA, words=7)
    engine.drain()
    first, second = engine.admitted[1], engine.admitted[2]
    assert (first.shared, second.shared) == (0, 12)
    assert first.pages[0][:3] == second.pages[0][:3]
    assert engine.encoded == {1: 5 + 3, 2: 7}
    values = engine.scheduler.snapshot(engine.now)
    assert (values["prefix_hits_total"], values["prefix_misses_total"], values["prefix_pages"]) == (1, 1, 3)
    assert free(engine) == (LIMITS.num_slots, LIMITS.num_pages), "what nobody uses counts as free"


def test_prefill_is_parted_where_pages_are_shared_whether_they_are_or_not() -> None:
    engine, starts = Memory(), {}
    for number in (1, 2):
        engine.ask(number, ANNA)
        while (step := engine.step()) is not None:
            if step.stage is Stage.PREFILL:
                starts.setdefault(number, []).append((step.rows[0].start, step.rows[0].count))
    assert starts == {1: [(0, 10), (10, 2), (12, 6)], 2: [(12, 6)]}


def test_with_guidance_both_rows_share() -> None:
    engine = Memory()
    engine.ask(1, ANNA, rows=2)
    engine.drain()
    engine.ask(2, ANNA, rows=2)
    engine.ask(3, ANNA)
    engine.drain()
    assert {pages[:3] for number in (2, 3) for pages in engine.admitted[number].pages} == {
        engine.admitted[1].pages[0][:3]
    }
    assert engine.served() == [1, 2, 3]


def test_nobody_shares_what_is_not_complete() -> None:
    engine = Memory()
    engine.ask(1, ANNA)
    step = engine.until(Stage.PREFILL, 1)
    assert step.rows[0].count == 10
    engine.ask(2, ANNA)
    engine.until(Stage.TEXT, 2)
    assert engine.admitted[2].shared == 0
    engine.drain()
    assert free(engine) == (LIMITS.num_slots, LIMITS.num_pages)


def test_cancelled_while_it_fills_them_its_pages_are_not_kept() -> None:
    engine = Memory()
    engine.ask(1, ANNA)
    engine.until(Stage.PREFILL, 1)
    engine.cancel(1)
    engine.ask(2, BERT)
    engine.drain()
    values = engine.scheduler.snapshot(engine.now)
    assert values["prefix_pages"] == 2, "Bert's alone"


def test_cancelled_later_they_are_kept() -> None:
    engine = Memory()
    engine.ask(1, ANNA)
    engine.until(Stage.DEPTH, 1)
    engine.cancel(1)
    engine.ask(2, ANNA)
    engine.drain()
    assert engine.admitted[2].shared == 12


def test_under_pressure_pages_that_nobody_uses_make_room() -> None:
    """Anna takes eight pages for prompt and frames, and leaves three."""
    engine = Memory(limits=replace(LIMITS, num_pages=8))
    for number, one in enumerate((ANNA, BERT, ANNA, BERT)):
        engine.ask(number, one)
        engine.drain()
    assert [engine.admitted[number].shared for number in range(4)] == [0, 0, 0, 0]
    assert engine.served() == [0, 1, 2, 3]


def test_what_is_shared_needs_so_much_less_room() -> None:
    """Ten pages: one stream takes eight, of which two can share three."""
    engine = Memory(limits=replace(LIMITS, num_pages=13))
    engine.ask(1, ANNA)
    engine.drain()
    engine.ask(2, ANNA)
    engine.ask(3, ANNA)
    engine.until(Stage.DEPTH, 3)
    assert 2 not in engine.served()


voices = st.builds(Voice, st.integers(0, 5), st.just(0), st.just(0)).map(
    lambda voice: replace(voice, tokens=1 + voice.number, frames=3 * voice.number)
)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), voices, st.integers(1, 9), st.sampled_from([1, 1, 2])),
        st.tuples(st.just("cancel"), st.integers(0, 25)),
        st.tuples(st.just("step"), st.integers(1, 12)),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(actions, st.sampled_from([16, 24, 40]))
def test_whoever_comes_and_goes_no_stream_sees_anothers_and_nothing_leaks(
    asked: list[tuple[object, ...]], num_pages: int
) -> None:
    engine = Memory(limits=replace(LIMITS, num_pages=num_pages))
    numbers = list[int]()
    for number, (what, *values) in enumerate(asked):
        match what, values:
            case "ask", [Voice() as voice, int(words), int(rows)]:
                numbers.append(number)
                engine.ask(number, voice, words, rows)
            case "cancel", [int(who)]:
                engine.outputs += engine.scheduler.apply(Cancel(who), engine.now)
            case "step", [int(steps)]:
                for _ in range(steps):
                    engine.step()
    engine.drain()
    for number in numbers:
        end = engine.end(number)
        served = isinstance(end, Finished) and end.reason is FinishReason.END
        assert not served or sum(len(chunk.codes) for chunk in engine.chunks(number)) == FRAMES
    assert free(engine) == (LIMITS.num_slots, num_pages)


@pytest.mark.parametrize("num_pages", [40, 200])
def test_ten_thousand_voices_leave_no_more_than_there_are_pages(num_pages: int) -> None:
    pages = PageAllocator(num_pages)
    prefixes = Prefixes(pages)
    for number in range(10_000):
        prefixes.make_room(5)
        own = pages.allocate(5)
        assert own is not None
        prefixes.keep(number.to_bytes(8, "big"), own[:4])
        pages.free(own)
        assert len(prefixes) <= num_pages // 4
    assert prefixes.idle() + pages.num_free == num_pages


# ---- real weights ----


def reference(runtime: Runtime, seed: int, frames: int, text: str) -> Reference:
    codes = tuple(tuple((seed * 7 + 3 * i + k) % 19 for k in range(runtime.spec.num_codebooks)) for i in range(frames))
    return Reference(text, codes)


def spoken(runtime: Runtime, *requests: Request) -> list[list[list[int]]]:
    """The codes of each, submitted together."""
    outputs = Queue[Output]()
    numbers = [runtime.submit(request, outputs.put) for request in requests]
    codes: dict[int, list[list[int]]] = {number: [] for number in numbers}
    missing = set(numbers)
    while missing:
        match outputs.get(timeout=60):
            case Chunk() as chunk:
                codes[chunk.request_id] += chunk.codes.tolist()
            case Finished() as end:
                missing.remove(end.request_id)
            case Failed() as failed:
                raise AssertionError(failed)
    return [codes[number] for number in numbers]


def test_other_models_share_what_comes_before_the_text(tmp_path: Path) -> None:
    """A clone of Qwen3-TTS: its speaker, the words of the recording, and the frames that lie over them."""
    limits = Limits(num_slots=4, num_pages=200, page_size=4, batches=(4,))
    config = RuntimeConfig(voice("qwen3_tts.base", tmp_path), "cpu", in_process=True, limits=limits, max_wait=inf)
    with Runtime.start(config) as runtime:
        sampling = replace(runtime.spec.sampling, max_frames=5, min_frames=5)
        frames = reference(runtime, 1, 30, "good day to you, my friend").frames
        anna, bert = (Reference("good day to you, my friend", frames, (x,) * 64) for x in (0.5, -0.5))
        asked = [Request(text, sampling, reference=one) for text in ("hello there", "ok") for one in (anna, bert)]
        first = [spoken(runtime, request)[0] for request in asked]
        assert [spoken(runtime, request)[0] for request in asked] == first
        assert len({str(codes) for codes in first}) == len(first)
        assert spoken(runtime, *asked) == first
        spoken(runtime, asked[0])
        assert runtime.snapshot()["prefix_hits_total"] >= 4


@pytest.fixture(scope="module")
def tiny() -> Iterator[Runtime]:
    """One shape of batches, within which codes are equal to the bit."""
    limits = Limits(num_slots=16, num_pages=400, batches=(16,))
    config = RuntimeConfig(KINDS["breeze_tts_2"], "cpu", in_process=True, limits=limits, max_wait=inf)
    with Runtime.start(config) as runtime:
        yield runtime


@pytest.mark.parametrize("instruction", ["", "slow and sad"])
def test_shared_or_not_a_voice_speaks_the_same_codes(tiny: Runtime, instruction: str) -> None:
    """Also beside others with its voice and with another's, and after both."""
    sampling = replace(tiny.spec.sampling, max_frames=6, min_frames=6)
    anna, bert = (reference(tiny, seed, 40, text) for seed, text in ((1, "good day to you"), (2, "see you soon")))
    asked = [
        Request(text, sampling, "S0", instruction, voice) for text in ("hello there", "ok") for voice in (anna, bert)
    ]
    before = tiny.snapshot()
    first = [spoken(tiny, request)[0] for request in asked]
    again = [spoken(tiny, request)[0] for request in asked]
    assert again == first
    assert len({str(codes) for codes in first}) == len(first), "each says something else"
    assert spoken(tiny, *asked, *reversed(asked)) == [*first, *reversed(first)]
    _, end = tiny.stream(replace(asked[0], sampling=replace(sampling, max_frames=1, min_frames=1)))
    assert isinstance(end, Finished)
    after = tiny.snapshot()
    assert after["prefix_hits_total"] - before.get("prefix_hits_total", 0) >= 10
