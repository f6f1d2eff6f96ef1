"""The checks of Qwen3-TTS: prompts, backbone, code predictor and greedy runs against expected tensors.

It knows no dimensions. Beside the expected tensors the folder has `cases.json`, which says what each prompt is made of.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from engine.backbone import Backbone
from engine.config import Section
from engine.core import Limits, PromptRow, Reference, SamplingParams, TextSegment
from engine.ledger import EXACT, GREEDY, LOGITS, PAGE_SIZE, PROBABILITIES, STATES, Ledger, Row
from engine.models.qwen3_tts import AUTO, Qwen3TTS, Wish
from engine.sampling import Filter, SamplingRows, probabilities
from engine.speaker import SpeakerConfig, SpeakerEncoder, spectrogram
from engine.weights import load as load_weights
from engine.weights import outlines

PROMPTS = 2e-5
"""Tolerance of what the backbone receives."""
MELS = 1e-4
OFFICIAL_PENALTY = 1.05
"""Of a greedy run that does not say its own."""


@torch.inference_mode()
def check(model: Qwen3TTS, ledger: Ledger, folder: Path) -> list[Row]:
    """Every case, and then the tensors that none of them looked at. Raises CheckpointError."""
    cases = Section.read(folder / "cases.json")
    for name in cases:
        wish = read_wish(model, ledger, cases.section(name))
        check_prompt(model, ledger, f"m.{name}", wish)
        check_forced(model, ledger, f"m.{name}", wish)
        check_greedy(model, ledger, f"m.{name}", wish)
    check_sampling(ledger)
    if ledger.has("spk.mel"):
        check_speaker(speaker_of(folder / "checkpoint"), ledger)
    return ledger.rows()


def read_wish(model: Qwen3TTS, ledger: Ledger, case: Section) -> Wish:
    """What the case's prompt is laid out for."""
    frames, said = case.text("ref_codes", ""), case.text("ref_text", "")
    reference = Reference(said, tuple(map(tuple, frames_of(model, ledger, frames).tolist()))) if frames else None
    vector = ledger.states("xvec", model.width).tolist() if case.flag("x_vector", False) else []
    return Wish(
        text=case.text("text", ""),
        language=case.text("language", AUTO).lower(),
        speaker=case.text("speaker", "").lower(),
        instruction=case.text("instruct", ""),
        vector=tuple(vector),
        reference=reference,
        reads_on=not case.flag("non_streaming_text", False),
    )


def frames_of(model: Qwen3TTS, ledger: Ledger, name: str) -> Tensor:
    """Expected codes [N, K] that serve as input."""
    return ledger.ids(name, None, model.spec.num_codebooks, below=model.codec.config.codebook_size)


# ---- prompts ----


def check_prompt(model: Qwen3TTS, ledger: Ledger, name: str, wish: Wish) -> None:
    """Tokens, what the backbone receives for them, and the text that goes with frames."""
    layouts, group = model.layouts, f"{name} prompt"
    ids = {"input_ids": layouts.template(wish.text), "instruct_ids": layouts.instruction(wish.instruction)}
    ids["ref_ids"] = layouts.transcript(wish.reference.text if wish.reference else "")
    for key, ours in ids.items():
        if ledger.has(f"{name}.{key}"):
            ledger.compare(f"{name} ids", f"{name}.{key}", torch.tensor(ours), EXACT)
    row = layouts.row(wish)
    embeds, text = torch.split(embed(model, row), [row.length, row.trailing])
    ledger.compare(group, f"{name}.embeds", embeds, PROMPTS)
    ledger.compare(f"{name} ids", f"{name}.positions", torch.arange(row.length), EXACT)
    ledger.compare(group, "tts_pad_embed", text[-1], PROMPTS)
    # Ours ends with the mark for no text in every case; the official one only where there is nothing else.
    ledger.compare(group, f"{name}.trailing", text[: max(1, len(text) - 1)], PROMPTS)


def embed(model: Qwen3TTS, row: PromptRow) -> Tensor:
    """[text_end, H]: what the backbone receives, and behind it the text that goes with the frames."""
    (segment,) = row.segments
    assert isinstance(segment, TextSegment), "a prompt is text, and what is laid over it"
    embeds = model.encode_text(torch.tensor(segment.ids), torch.tensor([segment.length]), segment.length)
    for overlay in row.overlays:
        if overlay.vector:
            embeds[overlay.start] += torch.tensor(overlay.vector, dtype=embeds.dtype)
        if overlay.frames:
            embeds[overlay.start :][: len(overlay.frames)] += model.embed_frames(torch.tensor(overlay.frames))
    return embeds


# ---- frames ----


class Sequence:
    """A request's backbone sequence, advanced position by position; it has slot 1."""

    def __init__(self, model: Qwen3TTS, wish: Wish, num_frames: int, params: SamplingParams = GREEDY) -> None:
        row = model.layouts.row(wish)
        self.pages = -(-(row.length + num_frames) // PAGE_SIZE)
        self.embeds, self.text = torch.split(embed(model, row), [row.length, row.trailing])
        self.state = model.new_state(Limits(num_slots=1, num_pages=self.pages, page_size=PAGE_SIZE))
        self.state.kv.assign(1, range(1, 1 + self.pages))
        self.state.sampling.set(1, params)
        self._functions, self._model, self._fed = model.plain(), model, 0

    @property
    def sampling(self) -> SamplingRows:
        return self.state.sampling.rows(torch.tensor([1]))

    def prefill(self) -> Tensor:
        """The prompt's states, [L, H]."""
        positions = torch.arange(len(self.embeds))[None]
        valid = torch.ones_like(positions, dtype=torch.bool)
        kv = self.state.kv
        return self._functions.prefill(self.embeds[None], positions, valid, kv, torch.tensor([1]), self.pages)[0]

    def feed(self, codes: Tensor) -> tuple[Tensor, Tensor, int]:
        """One frame [K] -> what the backbone received for it [H], its state [H], and the position."""
        text, position = self.text[min(self._fed, len(self.text) - 1)][None], len(self.embeds) + self._fed
        self._fed += 1
        places, slots = torch.tensor([position]), torch.tensor([1])
        valid, kv = torch.ones(1, dtype=torch.bool), self.state.kv
        hidden = self._functions.decode(codes[None], text, places, valid, kv, slots, self.pages)[0]
        return self._model.feedback(codes[None], text)[0], hidden, position


def check_forced(model: Qwen3TTS, ledger: Ledger, name: str, wish: Wish) -> None:
    """The prompt, through every layer where those are expected, and then the teacher's frames, one by one."""
    frames = frames_of(model, ledger, "tf.frames")
    sequence = Sequence(model, wish, len(frames))
    states = sequence.prefill()
    for match in ledger.names(rf"{re.escape(name)}\.prefill_layer(\d+)"):
        ours = first_layers(model, int(match[1]))(sequence.embeds)
        ledger.compare(f"{name} layers", match[0], ours, STATES)
    ledger.compare(f"{name} states", f"{name}.prefill_hidden", states, STATES)
    ledger.compare(f"{name} logits", f"{name}.prefill_logits", model.first_logits(states[-1:])[0], LOGITS)
    received, fed, positions = zip(*(sequence.feed(frame) for frame in frames), strict=True)
    ledger.compare(f"{name} prompt", f"{name}.tf.feedback", torch.stack(received), PROMPTS)
    ledger.compare(f"{name} ids", f"{name}.tf.positions", torch.tensor(positions), EXACT)
    ledger.compare(f"{name} states", f"{name}.tf.hidden", torch.stack(fed), STATES)
    ledger.compare(f"{name} logits", f"{name}.tf.logits", model.first_logits(torch.stack(fed)), LOGITS)
    before = torch.stack((states[-1], *fed[:-1]))
    predicted = model.talker.code_predictor.logits(before, frames)[1]
    ledger.compare(f"{name} predictor", f"{name}.tf.predictor_logits", predicted, LOGITS)


def first_layers(model: Qwen3TTS, count: int) -> Callable[[Tensor], Tensor]:
    """The backbone's first layers without the last norm, embeds [L, H] -> [L, H]."""
    full = model.talker.model
    with outlines():
        cut = Backbone(replace(full.config, num_layers=count))
    kept = {name: value for name, value in full.state_dict().items() if name in cut.state_dict()}
    cut.load_state_dict(kept, assign=True)
    cut.norm = torch.nn.Identity()  # type: ignore[assignment]
    cut.eval()
    return lambda embeds: cut.causal(embeds[None])[0]


def check_greedy(model: Qwen3TTS, ledger: Ledger, name: str, wish: Wish) -> None:
    """greedy, and rpP.greedy for a repetition penalty P of its own: generation from nothing but the prompt."""
    for match in ledger.names(rf"{re.escape(name)}\.(?:rp([\d.]+)\.)?greedy\.frames"):
        run = match[0].removesuffix(".frames")
        penalty = float(match[1] or OFFICIAL_PENALTY)
        made = generate(model, wish, replace(GREEDY, repetition_penalty=penalty), steps_of(ledger, run))
        for key, ours in made.items():
            if ledger.has(f"{run}.{key}"):
                exact = not ours.is_floating_point()
                group, tolerance = ("codes", EXACT) if exact else ("greedy logits", LOGITS)
                ledger.compare(f"{name} {group}", f"{run}.{key}", ours, tolerance)


def steps_of(ledger: Ledger, run: str) -> int:
    """Codes 0 that are drawn, the last of which makes no frame."""
    return len(ledger.take(f"{run}.code0")) if ledger.has(f"{run}.code0") else len(ledger.take(f"{run}.frames")) + 1


def generate(model: Qwen3TTS, wish: Wish, params: SamplingParams, steps: int) -> dict[str, Tensor]:
    """Codes 0 up to the end of speech, `steps` at most, and the frames of all but the last, by the fixtures' names.

    frames [N, K], code0 [N + 1], logits and scores [N + 1, V], predictor_logits [N, K - 1, codes].
    """
    sequence = Sequence(model, wish, steps, params)
    hidden, books = sequence.prefill()[-1:], model.spec.num_codebooks
    made: dict[str, list[Tensor]] = {"frames": [], "code0": [], "logits": [], "scores": [], "predictor_logits": []}
    for step, rows in settings(sequence, steps):
        logits, number = model.first_logits(hidden), torch.tensor([step])
        code0 = model.first_code(hidden, rows, number)
        made["logits"].append(logits[0])
        made["scores"].append(model.first_scores(logits, rows, number)[0])
        made["code0"].append(code0[0])
        if bool(model.is_end(code0)) or step == steps - 1:
            break
        sequence.state.sampling.seen[1, code0] = True
        codes = model.frame(hidden, code0, rows, number)
        made["predictor_logits"].append(model.talker.code_predictor.logits(hidden, codes)[1][0])
        made["frames"].append(codes[0])
        hidden = sequence.feed(codes[0])[1][None]
    empty = {"frames": torch.empty(0, books, dtype=torch.int64), "predictor_logits": torch.empty(0, books - 1, 0)}
    return {key: torch.stack(values) if values else empty[key] for key, values in made.items()}


def settings(sequence: Sequence, steps: int) -> Iterator[tuple[int, SamplingRows]]:
    """Each step with the settings as they are then: what was said before is part of them."""
    for step in range(steps):
        yield step, sequence.sampling


# ---- who speaks ----


def speaker_of(checkpoint: Path) -> SpeakerEncoder:
    """The speaker encoder alone: a folder of tensors for all kinds of voice describes it in config.base.json."""
    base = checkpoint / "config.base.json"
    main = Section.read(base if base.exists() else checkpoint / "config.json")
    with outlines():
        encoder = SpeakerEncoder(SpeakerConfig.from_dict(main.section("speaker_encoder_config")))
    return load_weights(encoder, checkpoint, "speaker_encoder.", dtype=torch.float32, device="cpu").eval()


def check_speaker(encoder: SpeakerEncoder, ledger: Ledger) -> None:
    """A spectrogram to its vector, and a recording to both."""
    mel = ledger.states("spk.mel", None, encoder.config.mels)
    ledger.compare("speaker", "spk.xvec", encoder(mel[None])[0], STATES)
    samples = ledger.states("spk.wav", None)
    ledger.compare("spectrogram", "spk.wav_mel", spectrogram(samples, encoder.config), MELS)
    ledger.compare("speaker", "spk.wav_xvec", encoder.hear(samples), STATES)


# ---- sampling ----


def check_sampling(ledger: Ledger) -> None:
    """sampling.tT_kK_pP.probs: scores to the distribution that is drawn from."""
    for match in ledger.names(r"sampling\.t([\d.]+)_k(\d+)_p([\d.]+)\.probs"):
        filter = Filter.of([float(match[1])], [int(match[2])], [float(match[3])])
        ours = probabilities(ledger.states("sampling.scores", None)[None], filter)[0]
        ledger.compare("sampling", match[0], ours, PROBABILITIES)
