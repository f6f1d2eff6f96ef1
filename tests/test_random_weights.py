"""Random voices: the published model's sizes, numbers that stay numbers, and speech as long as was asked for."""

from collections.abc import Iterator

import pytest
import torch

from engine import random_weights
from engine.bench import fixed
from engine.bench_concurrency import plain_loop
from engine.checks import RequestError
from engine.core import Mode, Request, SamplingParams, Stage, Step, StepResult
from engine.executor import Executor, load
from engine.messages import RuntimeConfig
from engine.models.breeze_tts_2 import Breeze

CPU = torch.device("cpu")
TINY = RuntimeConfig(device="cpu", random_weights="tiny")


@pytest.fixture(scope="module")
def tiny() -> Breeze:
    return random_weights.load("tiny", device=CPU, dtype=torch.float32)


@pytest.fixture(scope="module")
def outline() -> Breeze:
    return random_weights.outline("breeze-tts-2")


def test_it_has_the_sizes_of_the_published_model(outline: Breeze) -> None:
    """3 466 363 713 parameters in the main file, of which two parts are never read, and 114 323 137 in the decoder."""
    main, codec = 0, 0
    for name, parameter in outline.named_parameters():
        assert parameter.is_meta, name
        if name.startswith("audio_tokenizer"):
            codec += parameter.numel()
        else:
            main += parameter.numel()
    assert main == 3_466_363_713 - 262_158 * 2048 - 79_308_609
    assert codec == 114_323_137 - 2 * 512 * 256, "without the two projections that only encoding reads"


def test_it_says_what_it_is(outline: Breeze) -> None:
    spec = outline.spec
    assert (spec.name, spec.licence) == ("random-breeze-tts-2", "Apache-2.0")
    assert (spec.sample_rate, spec.samples_per_frame, spec.num_codebooks) == (24_000, 1920, 16)
    assert (spec.max_positions, spec.max_text_chars) == (2048, 1440)
    assert spec.modes == frozenset(Mode)
    assert spec.sampling == SamplingParams(repetition_penalty=1.1)


def test_an_unknown_name_is_refused() -> None:
    names = "breeze-tts-2, qwen3-tts-0.6b, qwen3-tts-1.7b, tiny"
    with pytest.raises(ValueError, match=f"--random-weights must be one of {names}, got 'breeze-tts-3'"):
        random_weights.load("breeze-tts-3", device=CPU, dtype=torch.float32)


def test_the_numbers_are_the_same_every_time_and_bf16_where_the_published_ones_are(tiny: Breeze) -> None:
    again = random_weights.load("tiny", device=CPU, dtype=torch.bfloat16)
    for (name, one), (_, other) in zip(tiny.named_parameters(), again.named_parameters(), strict=True):
        assert torch.equal(one, other.float()), name
    kept = {name for name, value in again.named_parameters() if value.dtype == torch.float32}
    assert {name for name in kept if not name.startswith("audio_tokenizer")} == {
        "lm_head.weight",
        "depth_decoder.codebooks_head.weight",
    }
    assert {name for name, _ in again.named_parameters() if name.startswith("audio_tokenizer")} <= kept
    assert not any(value.is_meta for value in again.buffers())


def ids(model: Breeze, text: str) -> tuple[int, ...]:
    """Of a request's only segment."""
    (segment,) = model.prompt(Request(text, model.spec.sampling)).rows[0].segments
    assert segment.length
    return segment.ids  # type: ignore[union-attr]


def test_a_token_is_four_characters(outline: Breeze) -> None:
    assert len(ids(outline, "x" * 400)) == 2 + 100, "with <bos> and the speaker's tag"
    assert len(ids(outline, "x" * 401)) == 2 + 101
    assert ids(outline, "Hi.")[:2] == (2, 262_146)
    assert ids(outline, "abcdefgh") == ids(outline, "axyzexyz") != ids(outline, "bbcdefgh")
    assert len(ids(outline, "字a")) == 2 + 3, "three bytes"


def test_instructions_and_their_marks_are_tokens(outline: Breeze) -> None:
    first, second = outline.prompt(Request("Good.", outline.spec.sampling, instruction="Softly")).rows
    spoken = first.segments[0].ids  # type: ignore[union-attr]
    assert spoken[1:3] == (262_146, 262_156)
    assert spoken.index(262_157) == 5
    assert second.length == 1 + 1 + 2
    with pytest.raises(RequestError, match="marks audio"):
        outline.prompt(Request("<|AUDIO|>", outline.spec.sampling))


def spoken(sampling: SamplingParams, requests: int = 8) -> Iterator[tuple[Step, StepResult]]:
    """Everything that so many requests in lockstep give, of the tiny voice."""
    model, executor, limits = load(TINY)
    prompts = [model.prompt(Request("abcd" * (i + 1), sampling)) for i in range(requests)]
    assert isinstance(executor, Executor)
    for step in plain_loop(prompts, sampling, limits):
        yield step, executor.run(step)


def ends(sampling: SamplingParams) -> list[int]:
    """Frames at which an end was drawn."""
    drawn = [(step, result) for step, result in spoken(sampling) if step.stage is Stage.DECODE]
    return [step.rows[0].start + 1 for step, result in drawn for ended in result.ended if ended]


def test_speech_does_not_end_before_it_shall() -> None:
    """One class of 33 is the end: of 8 requests, some would draw it in 40 frames."""
    usual = SamplingParams(max_frames=40)
    assert ends(usual)
    assert not ends(fixed(usual, 40))


def test_what_it_says_is_noise_of_a_reasonable_size() -> None:
    chunks = [result for step, result in spoken(fixed(SamplingParams(), 20), 2) if step.stage is Stage.CODEC]
    assert [[len(pcm) for pcm in chunk.pcm] for chunk in chunks] == [[16 * 1920] * 2, [4 * 1920] * 2]
    for chunk in chunks:
        assert all(10 < abs(pcm.astype(float)).mean() < 10_000 for pcm in chunk.pcm)
        assert all(len(set(codes.ravel().tolist())) > 16 for codes in chunk.codes), "of 32: draws are not degenerate"
