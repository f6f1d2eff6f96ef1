"""Compares a checkpoint with expected tensors that another implementation made, group by group.

It knows no dimensions: what the files hold says what is checked, and a tensor that nothing checked is a failure. The
folder holds `checkpoint/` and `expected*.safetensors` in float32, made on a CPU with weights upcast exactly. The checks
here are those of Breeze TTS 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from engine import device as devices
from engine import models, verify_qwen3_tts
from engine.backbone import Backbone
from engine.codec import CodecDecoder
from engine.core import Limits, PromptRow, ReferenceSegment, SamplingParams, TextSegment
from engine.ledger import EXACT, GREEDY, LOGITS, PAGE_SIZE, PROBABILITIES, STATES, Ledger, Row, distance
from engine.models import State
from engine.models.breeze_tts_2 import Breeze, guided
from engine.models.qwen3_tts import Qwen3TTS
from engine.sampling import Filter, SamplingRows, probabilities
from engine.weights import CheckpointError, outlines

OFFICIAL_PENALTY = 1.1
"""Of a greedy run that does not say its own."""
CHUNKS = (1, 2, 4, 8, 16)


def verify(folder: Path) -> list[Row]:
    """Checks the folder on the CPU in float32. Raises CheckpointError on missing, damaged or incomplete files."""
    ledger, device = Ledger(read_expected(folder)), devices.choose("cpu")
    devices.set_threads(device, None)
    model = models.load(folder / "checkpoint", device=device, dtype=torch.float32)
    return CHECKS[type(model)](model, ledger, folder)


def read_expected(folder: Path) -> dict[str, Tensor]:
    """All tensors of expected*.safetensors."""
    files = sorted(folder.glob("expected*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder}: expected expected*.safetensors beside checkpoint/, found none")
    tensors: dict[str, Tensor] = {}
    for file in files:
        try:
            tensors |= load_file(file)
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file}: damaged, expected safetensors ({error}); fetch it again") from error
    return tensors


@torch.inference_mode()
def check(model: Breeze, ledger: Ledger) -> list[Row]:
    """Every check, and then the tensors that none of them looked at."""
    speech = check_text, check_prompts, check_backbone, check_depth, check_greedy, check_sampling
    for part in (*speech, check_codec, check_encoder):
        part(model, ledger)
    return ledger.rows()


# ---- text and prompts ----


def check_text(model: Breeze, ledger: Ledger) -> None:
    """te.NAME: embedding, every layer, last states and their projection, of all names in one pack."""
    names = [match[1] for match in ledger.names(r"te\.(.+)\.ids")]
    if not names:
        return
    ids = [ledger.ids(f"te.{name}.ids", None, below=model.config.text.vocab_size) for name in names]
    lengths = torch.tensor([len(row) for row in ids])
    states = text_states(model, torch.cat(ids), lengths)
    parts = {key: torch.split(state, lengths.tolist()) for key, state in states.items()}
    for place, name in enumerate(names):
        for key, part in parts.items():
            if ledger.has(f"te.{name}.{key}"):
                ledger.compare(f"te.{name}", f"te.{name}.{key}", part[place], STATES)
        if ledger.has(f"te.{name}.len"):
            ledger.compare(f"te.{name}", f"te.{name}.len", lengths[place], STATES)


def text_states(model: Breeze, ids: Tensor, lengths: Tensor) -> dict[str, Tensor]:
    """ids [T] of segments one after the other, lengths [B] -> by the fixtures' names our states [T, width].

    The last layer is recorded after the final norm."""
    encoder = model.text_encoder
    states: dict[str, Tensor] = {}

    def keep(name: str) -> Callable[..., None]:
        return lambda module, inputs, output: states.update({name: output})

    places = [encoder.embed_tokens, *encoder.layers[:-1], encoder.norm]
    hooks = [place.register_forward_hook(keep(f"layer{i}")) for i, place in enumerate(places)]
    projected = model.encode_text(ids, lengths, int(lengths.max()))
    for hook in hooks:
        hook.remove()
    return {**states, "hidden": states[f"layer{len(places) - 1}"], "projected": projected}


def check_prompts(model: Breeze, ledger: Ledger) -> None:
    """prompt.MODE.ROW.embeds: what the backbone receives, from token ids and reference codes."""
    for match in ledger.names(r"(prompt\..+)\.embeds"):
        ledger.compare(match[1], match[0], embed(model, prompt_row(model, ledger, match[1])), STATES)


def prompt_row(model: Breeze, ledger: Ledger, name: str) -> PromptRow:
    """The prompt called `name`: a segment of text wherever text_mask is 1, the reference wherever it is 0."""
    ids = ledger.ids(f"{name}.ids", None, below=model.config.text.vocab_size).tolist()
    mask = ledger.ids(f"{name}.text_mask", len(ids), below=2).tolist()
    segments: list[TextSegment | ReferenceSegment] = []
    for is_text, run in groupby(zip(mask, ids, strict=True), key=itemgetter(0)):
        text = TextSegment(tuple(id_ for _, id_ in run))
        segments.append(text if is_text else reference_segment(model, ledger))
    lengths = [segment.length for segment in segments if isinstance(segment, TextSegment)]
    ledger.compare(name, f"{name}.text_lens", torch.tensor(lengths), STATES)
    return PromptRow(tuple(segments))


def reference_segment(model: Breeze, ledger: Ledger) -> ReferenceSegment:
    return ReferenceSegment(tuple(map(tuple, frames_of(model, ledger, "prompt.ref_codes").tolist())))


def frames_of(model: Breeze, ledger: Ledger, name: str) -> Tensor:
    """Expected codes [N, K] that serve as input."""
    return ledger.ids(name, None, model.spec.num_codebooks, below=model.codec.config.codebook_size)


def columns_of(model: Breeze, ledger: Ledger, name: str) -> Tensor:
    """Expected codes [1, K, T] that serve as input of the codec."""
    return ledger.ids(name, 1, model.spec.num_codebooks, None, below=model.codec.config.codebook_size)


def embed(model: Breeze, prompt: PromptRow) -> Tensor:
    """[L, H]: text states, reference frames, and a frame of zeros where the reference ends."""
    return torch.cat([embed_segment(model, segment) for segment in prompt.segments])


def embed_segment(model: Breeze, segment: TextSegment | ReferenceSegment) -> Tensor:
    if isinstance(segment, TextSegment):
        return model.encode_text(torch.tensor(segment.ids), torch.tensor([segment.length]), segment.length)
    end = (0,) * model.spec.num_codebooks
    return model.embed_frames(torch.tensor([*segment.frames, end]))


# ---- backbone and depth ----


class Sequences:
    """The backbone sequences of one request, advanced together; the request has slot 1."""

    def __init__(
        self, model: Breeze, lengths: Sequence[int], num_frames: int, params: SamplingParams, cfg_scale: float
    ) -> None:
        pages = -(-(max(lengths) + num_frames) // PAGE_SIZE)
        limits = Limits(num_slots=len(lengths), num_pages=len(lengths) * pages, page_size=PAGE_SIZE)
        self._model = model
        self._num_pages = pages
        self._slots = torch.arange(1, len(lengths) + 1)
        self._ends = torch.tensor(lengths)
        self.state: State = model.new_state(limits)
        for row in range(len(lengths)):
            self.state.kv.assign(1 + row, range(1 + row * pages, 1 + (row + 1) * pages))
        self.state.sampling.set(1, params, cfg_scale)

    @property
    def sampling(self) -> SamplingRows:
        return self.state.sampling.rows(torch.tensor([1]))

    def prefill(self, embeds: Sequence[Tensor]) -> Tensor:
        """Prompts [L, H], padded at their ends -> the states of their last positions, [R, H]."""
        return self.prefill_all(embeds)[torch.arange(len(embeds)), self._ends - 1]

    def prefill_all(self, embeds: Sequence[Tensor]) -> Tensor:
        """Prompts [L, H], padded at their ends -> all states [R, T, H]."""
        padded = torch.nn.utils.rnn.pad_sequence(list(embeds), batch_first=True)
        positions = torch.arange(padded.shape[1]).expand(padded.shape[:2])
        return self._advance(padded, positions, positions < self._ends[:, None])

    def feed(self, codes: Tensor) -> Tensor:
        """One frame [K] to every sequence -> states [R, H]."""
        embeds = self._model.embed_frames(codes).expand(len(self._ends), 1, -1)
        positions = self._ends[:, None].clone()
        self._ends += 1
        return self._advance(embeds, positions, torch.ones_like(positions, dtype=torch.bool))[:, 0]

    def _advance(self, embeds: Tensor, positions: Tensor, valid: Tensor) -> Tensor:
        kv = self.state.kv
        return self._model.backbone(embeds, positions, valid, kv, self._slots, self._num_pages)


def check_backbone(model: Breeze, ledger: Ledger) -> None:
    """bb.NAME: the prompt through every layer, then the teacher's frames one by one; each from expected inputs."""
    for match in ledger.names(r"(bb\..+)\.prefill_layer0"):
        name = match[1]
        frames = frames_of(model, ledger, "tf.frames")
        embeds = embed(model, prompt_row(model, ledger, name.replace("bb.", "prompt.", 1)))
        ledger.compare(name, match[0], embeds, STATES)
        embeds = ledger.states(match[0], None, model.width)
        sequences = Sequences(model, [len(embeds)], len(frames), GREEDY, 1.0)
        hidden = sequences.prefill_all([embeds])[0]
        fed = torch.cat([sequences.feed(frame) for frame in frames])
        for layer, states in layer_states(model, embeds, hidden):
            ledger.compare(name, f"{name}.prefill_layer{layer}", states, STATES)
        ledger.compare(name, f"{name}.prefill_hidden", hidden, STATES)
        ledger.compare(name, f"{name}.decode_hidden", fed, STATES)
        ledger.compare(f"{name} logits", f"{name}.prefill_logits", model.first_logits(hidden[-1]), LOGITS)
        ledger.compare(f"{name} logits", f"{name}.decode_logits", model.first_logits(fed), LOGITS)


def layer_states(model: Breeze, embeds: Tensor, hidden: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The number of each backbone layer and its output [L, H]; the last one's is after the final norm."""
    full = model.backbone_model
    for count in range(1, full.config.num_layers):
        with outlines():
            cut = Backbone(replace(full.config, num_layers=count))
        kept = {name: value for name, value in full.state_dict().items() if name in cut.state_dict()}
        cut.load_state_dict(kept, assign=True)
        cut.norm = torch.nn.Identity()  # type: ignore[assignment]
        yield count, cut.eval().causal(embeds[None])[0]
    yield full.config.num_layers, hidden


def check_depth(model: Breeze, ledger: Ledger) -> None:
    """depth.NAME: states and logits of the teacher's frames, each from the backbone's expected state before it."""
    for match in ledger.names(r"(depth\..+)\.logits"):
        name = match[1]
        source = name.replace("depth.", "bb.", 1)
        frames = frames_of(model, ledger, "tf.frames")
        first = ledger.states(f"{source}.prefill_hidden", None, model.width)[-1:]
        later = ledger.states(f"{source}.decode_hidden", len(frames), model.width)[:-1]
        states, logits = model.depth_decoder.logits(torch.cat((first, later)), frames)
        ledger.compare(name, f"{name}.hidden", states, LOGITS)
        ledger.compare(name, f"{name}.logits", logits, LOGITS)


# ---- generation ----


def check_greedy(model: Breeze, ledger: Ledger) -> None:
    """greedy.MODE.cfgS.rpP, or greedy.NAME with prompt_ids of its own: generation from nothing but the prompt."""
    runs = [match[1] for match in ledger.names(r"(greedy\..+)\.frames")]
    frames = {run: check_run(model, ledger, run) for run in runs}
    for match in ledger.names(r"e2e\.(.+)_(cfg[\d.]+)\.codes"):
        ours = [made.t()[None] for run, made in frames.items() if run.startswith(f"greedy.{match[1]}.{match[2]}.")]
        expected = ledger.take(match[0])
        best = min(ours, key=lambda made: distance(made, expected), default=torch.empty(0))
        ledger.compare("e2e codes", match[0], best, EXACT)


def check_run(model: Breeze, ledger: Ledger, run: str) -> Tensor:
    """One greedy run; returns its frames [N, K]."""
    scale, penalty = setting(run, "cfg", 1.0), setting(run, "rp", OFFICIAL_PENALTY)
    steps = len(ledger.take(f"{run}.code0_processed"))
    params = replace(GREEDY, repetition_penalty=penalty)
    made = generate(model, run_prompts(model, ledger, run, scale), params, scale, steps)
    for key, ours in made.items():
        if ledger.has(f"{run}.{key}"):
            exact = not ours.is_floating_point()
            ledger.compare(f"{run} {'codes' if exact else 'logits'}", f"{run}.{key}", ours, EXACT if exact else LOGITS)
    return made["frames"]


def setting(run: str, key: str, otherwise: float) -> float:
    """The number after .cfg or .rp in a run's name."""
    match = re.search(rf"\.{key}(\d+(?:\.\d+)?)(?=\.|$)", run)
    return float(match[1]) if match else otherwise


def run_prompts(model: Breeze, ledger: Ledger, run: str, scale: float) -> list[PromptRow]:
    """The run's sequences: with guidance the conditional one, then the unconditional one."""
    if ledger.has(f"{run}.prompt_ids"):
        ids = ledger.ids(f"{run}.prompt_ids", None, below=model.config.text.vocab_size)
        return [PromptRow((TextSegment(tuple(ids.tolist())),))]
    wanted = {1.0: ["cond"], 0.0: ["uncond"]}.get(scale, ["cond", "uncond"])
    return [prompt_row(model, ledger, f"prompt.{run.split('.')[1]}.{row}") for row in wanted]


def generate(
    model: Breeze, prompts: Sequence[PromptRow], params: SamplingParams, cfg_scale: float, steps: int
) -> dict[str, Tensor]:
    """One utterance of at most `steps` frames, frame by frame on the model's functions, by the fixtures' names.

    frames [N, K], ended_by_eos [], code0_raw_logits [S, R, V + 1], code0_guided and code0_processed [S, V + 1],
    depth_guided_logits [N, K - 1, V]; S = N, or N + 1 if the speech ended.
    """
    sequences = Sequences(model, [prompt.length for prompt in prompts], steps, params, cfg_scale)
    hidden = sequences.prefill([embed(model, prompt) for prompt in prompts])
    raw, frames, depth, ended = [], [], [], False
    for step in range(steps):
        rows, number = sequences.sampling, torch.tensor([step])
        raw.append((model.first_logits(hidden), rows, number))
        code0 = model.first_code(hidden, rows, number)
        ended = bool(model.is_end(code0))
        if ended:
            break
        sequences.state.sampling.seen[1, code0] = True
        codes = model.frame(hidden, code0, rows, number)
        logits = model.depth_decoder.logits(hidden, codes.expand(len(prompts), -1))[1]
        depth.append(guided(logits.flatten(1), rows).view(logits.shape[1:]))
        frames.append(codes[0])
        hidden = sequences.feed(codes[0])
    return {
        "frames": stack(frames, model.spec.num_codebooks),
        "ended_by_eos": torch.tensor(int(ended)),
        "code0_raw_logits": torch.stack([logits for logits, _, _ in raw]),
        "code0_guided": torch.cat([guided(logits, rows) for logits, rows, _ in raw]),
        "code0_processed": torch.cat([model.first_scores(*scored) for scored in raw]),
        "depth_guided_logits": stack(depth, model.spec.num_codebooks - 1, model.end_id),
    }


def stack(tensors: list[Tensor], *shape: int) -> Tensor:
    """The tensors, each of `shape`, as one; empty if there are none."""
    return torch.stack(tensors) if tensors else torch.empty(0, *shape, dtype=torch.int64)


def check_sampling(model: Breeze, ledger: Ledger) -> None:
    """sampling.tT_kK_pP.probs: scores to the distribution that is drawn from."""
    for match in ledger.names(r"sampling\.t([\d.]+)_k(\d+)_p([\d.]+)\.probs"):
        filter = Filter.of([float(match[1])], [int(match[2])], [float(match[3])])
        ours = probabilities(ledger.states("sampling.input_scores", None)[None], filter)[0]
        ledger.compare("sampling", match[0], ours, PROBABILITIES)


# ---- codec ----


def check_codec(model: Breeze, ledger: Ledger) -> None:
    """wW.NAME: stages and samples with a window of W frames; wW.wavN decodes codesN, the stages the shortest codes."""
    windows = sorted({int(match[1]) for match in ledger.names(r"w(\d+)\..+")})
    if windows:
        configured = model.codec.config.sliding_window
        ledger.note("configured window", min(abs(window - configured) for window in windows), EXACT)
    for window in windows:
        codec = with_window(model.codec, window)
        check_stages(model, codec, ledger, f"w{window}")
        for match in ledger.names(rf"w{window}\.wav(\d+)"):
            codes = columns_of(model, ledger, f"codes{match[1]}")
            ledger.compare(f"w{window} whole", match[0], codec(codes)[0], STATES)
            ledger.compare(f"w{window} streamed", match[0], streamed(codec, codes), STATES)
        for match in ledger.names(rf"w{window}\.wav(\d+)_chunked.*"):
            ours = codec(columns_of(model, ledger, f"codes{match[1]}"))[0]
            ledger.contrast(f"{match[0]} (wrong by design)", match[0], ours, STATES)
    for match in ledger.names(r"(e2e\..+)\.wav"):
        ours = streamed(model.codec, columns_of(model, ledger, f"{match[1]}.codes"))
        ledger.compare("e2e audio", match[0], ours, STATES)


def check_stages(model: Breeze, codec: CodecDecoder, ledger: Ledger, prefix: str) -> None:
    """Expected stages may stop after some columns: everything is causal."""
    shortest = min((match[0] for match in ledger.names(r"codes\d+")), key=lambda name: int(name[5:]), default=None)
    for name, stage in codec.stages(columns_of(model, ledger, shortest)) if shortest else ():
        if ledger.has(f"{prefix}.{name}"):
            ours = stage[0].t() if name == "transformer_out" else stage[0]
            ours = ours[..., : ledger.take(f"{prefix}.{name}").shape[-1]]
            ledger.compare(f"{prefix} stages", f"{prefix}.{name}", ours, STATES)


def with_window(codec: CodecDecoder, window: int) -> CodecDecoder:
    """The same weights, but each frame sees `window` frames."""
    with outlines():
        other = CodecDecoder(replace(codec.config, sliding_window=window))
    other.load_state_dict(codec.state_dict(), assign=True)
    return other.eval()


def streamed(codec: CodecDecoder, codes: Tensor) -> Tensor:
    """codes [1, K, T] -> samples, decoded in chunks as a listener gets them."""
    state, slot = codec.init_state(2, codes.device), torch.tensor([1])
    sizes = [*CHUNKS, *[CHUNKS[-1]] * codes.shape[2]]
    pieces, start = [], 0
    for size in sizes:
        chunk = codes[:, :, start : start + size]
        if not chunk.shape[2]:
            break
        pieces.append(codec.step(chunk.transpose(1, 2), state, slot)[0])
        start += size
    return torch.cat(pieces)


def check_encoder(model: Breeze, ledger: Ledger) -> None:
    """enc.NAME: a recording to codes, stage by stage; its codes in one piece, and frame by frame."""
    encoder = model.encoder
    if encoder is None or not ledger.has("enc.wav"):
        return
    samples = ledger.states("enc.wav", None)
    for name, stage in encoder.stages(samples[None]):
        if ledger.has(f"enc.{name}"):
            ours = stage[0].t() if name == "transformer_out" else stage[0]
            ledger.compare("enc stages", f"enc.{name}", ours, STATES)
    if ledger.has("enc.codes"):
        ledger.compare("enc whole", "enc.codes", encoder(samples[None])[0], EXACT)
        ledger.compare("enc in pieces", "enc.codes", encoder.rows([samples], 1)[0], EXACT)


# ---- the command ----

CHECKS: Mapping[type, Callable[[Any, Ledger, Path], list[Row]]] = {
    Breeze: lambda model, ledger, folder: check(model, ledger),
    Qwen3TTS: verify_qwen3_tts.check,
}
"""By the kind of model."""


def report(folder: Path, console: Console) -> int:
    """Prints a row a group; returns 1 if any failed. Raises CheckpointError if the folder cannot be checked at all."""
    rows = verify(folder)
    console.print(table(rows))
    failed = [row.group for row in rows if not row.ok]
    console.print(f"{len(failed)} of {len(rows)} groups failed" if failed else f"all {len(rows)} groups agree")
    return 1 if failed else 0


def table(rows: Sequence[Row]) -> Table:
    """Group, largest error, tolerance, verdict."""
    made = Table("group", "largest error", "tolerance", "")
    for row in rows:
        bound = f"{'>' if row.differs else '≤'} {row.tolerance:g}"
        made.add_row(row.group, f"{row.error:.3g}", bound, "ok" if row.ok else "[red]FAILED[/red]")
    return made
