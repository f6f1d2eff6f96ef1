"""Breeze TTS 2: reads its checkpoint folder, lays out its prompts and offers the functions of a model.

It does not know batches, slots or when a function is called: the executor does. Source: the official model card
and code, breezeblue-ai/breeze-tts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from engine import modes, prompts
from engine.backbone import Backbone, BackboneConfig
from engine.checks import RequestError
from engine.codec import UNUSED, CodecConfig, CodecDecoder
from engine.codec_encoder import CodecEncoder, encodes
from engine.codec_encoder import find as find_encoder
from engine.config import Section
from engine.core import (
    Limits,
    Mode,
    ModelSpec,
    Prompt,
    PromptRow,
    ReferenceSegment,
    Request,
    TextSegment,
)
from engine.depth import DepthConfig, DepthDecoder
from engine.generation import Defaults, read_generation, read_sampling
from engine.kv_cache import PagedKV
from engine.models import Functions, Parts, Reading, State
from engine.normalise import LANGUAGES
from engine.sampling import SamplingRows, SamplingState, draw, guide, penalise, uniforms
from engine.text import TextConfig, TextEncoder
from engine.weights import WHOLE_FOLDER, CheckpointError, outlines, stored
from engine.weights import load as load_weights

MODEL_TYPE = "breeze"
LICENCE = "Breeze TTS 2 weights and their outputs: research and non-commercial use only"
"""Of the published weights, and so of every folder that does not name a licence of its own."""
GUIDED_SCALE = 4.0
"""Guidance where there is an instruction and nobody says otherwise."""
SPEAKERS = tuple(f"S{i}" for i in range(10))
INS_BOS, INS_EOS = "<ins_bos>", "<ins_eos>"
AUDIO_MARKS = ("<|AUDIO|>", "<|audio_eos|>")
"""The official code finds reference audio by these, so no text may hold them."""

SKIPPED = (
    "embed_text_tokens.weight",  # the backbone reads text states, never token ids
    "codec_model.*",  # a codec of another family, unused
    "backbone_model.embed_tokens.embed_audio_tokens.weight",  # a copy of the depth decoder's table
    "audio_tokenizer.encoder.*",  # reference audio to codes: loaded by itself
    *UNUSED,
)
FLOAT32 = ("lm_head.*", "depth_decoder.codebooks_head*", "audio_tokenizer.*")
ONLY = {
    "backbone_model_type": "qwen3",
    "text_encoder_proj_type": "linear",
    "tie_codebooks_embeddings": True,
    "codebook_eos_token_id": 0,
}
"""Options with one value here."""
OFFICIAL_SAMPLING: Defaults = {
    "temperature": ("temperature", 0.9),
    "depth_temperature": ("depth_decoder_temperature", 0.9),
    "top_k": ("top_k", 50),
    "depth_top_k": ("depth_decoder_top_k", 50),
    "top_p": ("top_p", 1.0),
    "depth_top_p": ("depth_decoder_top_p", 1.0),
    "repetition_penalty": ("repetition_penalty", 1.1),
    "cfg_scale": ("guidance_scale", None),
    "min_frames": ("min_new_tokens", 0),
    "max_frames": ("max_new_tokens", 1500),
}
GREEDY_FLAGS = {"do_sample": "temperature", "depth_decoder_do_sample": "depth_temperature"}
"""What of generation_config.json, where false, means temperature 0."""


@dataclass(frozen=True, slots=True)
class BreezeConfig:
    """The stages' dimensions, as the folder says them."""

    text: TextConfig
    backbone: BackboneConfig
    depth: DepthConfig
    codec: CodecConfig


class Breeze(nn.Module):
    """The model; parameter names as in the checkpoint, the codec's with the folder's name before them.

    Every function takes B requests as R sequences: R = B, or R = 2B, all conditional ones and then all
    unconditional ones in the same order. H = width, K = codebooks, V = vocab_size.
    """

    float32 = FLOAT32
    reserved: Tensor
    """[V + 1] bool: ids of code 0 that are neither a code nor the end."""
    end: Tensor
    """[V + 1] bool: the end."""

    def __init__(
        self, config: BreezeConfig, spec: ModelSpec, tokenizer: Tokenizer, encoder: CodecEncoder | None = None
    ) -> None:
        super().__init__()
        self._encoder = (encoder,)  # not as a module of its own: it is loaded by itself, and keeps its own dtype
        self.config = config
        self.spec = spec
        self.layouts = Layouts(tokenizer, spec, config.codec.codebook_size)
        self.text_encoder = TextEncoder(config.text)
        self.text_encoder_proj = nn.Linear(config.text.hidden_size, config.backbone.hidden_size, bias=False)
        self.backbone_model = Backbone(config.backbone)
        self.lm_head = nn.Linear(config.backbone.hidden_size, self.end_id + 1, bias=False)
        self.depth_decoder = DepthDecoder(config.depth)
        self.audio_tokenizer = nn.ModuleDict({"decoder": CodecDecoder(config.codec)})
        classes = torch.arange(self.end_id + 1, device="cpu")
        reserved = (classes >= config.codec.codebook_size) & (classes < self.end_id)
        self.register_buffer("reserved", reserved, persistent=False)
        self.register_buffer("end", classes == self.end_id, persistent=False)

    @property
    def encoder(self) -> CodecEncoder | None:
        return self._encoder[0]

    @property
    def speaker_encoder(self) -> None:
        """A recording's codes and transcript say enough."""

    @property
    def device(self) -> torch.device:
        return self.text_encoder_proj.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of everything but heads and codec, which are fp32."""
        return self.text_encoder_proj.weight.dtype

    @property
    def width(self) -> int:
        return self.config.backbone.hidden_size

    @property
    def reads_on(self) -> bool:
        """All text is in the prompt."""
        return False

    @property
    def position_bytes(self) -> int:
        """Of the keys and values of one backbone position."""
        layers = self.config.backbone
        return 2 * layers.num_layers * layers.num_kv_heads * layers.head_dim * self.dtype.itemsize

    @property
    def codec(self) -> CodecDecoder:
        decoder = self.audio_tokenizer["decoder"]
        assert isinstance(decoder, CodecDecoder)
        return decoder

    @property
    def parts(self) -> Parts:
        text, depth = self.text_encoder, self.depth_decoder
        return Parts(
            text=(text, self.text_encoder_proj),
            backbone=(self.backbone_model, self.lm_head),
            depth=depth,
            depth_layers=depth.model.layers,
            codec=self.codec,
            tokens=text.embed_tokens,
            codes=(depth.model.embed_tokens,),
        )

    @property
    def end_id(self) -> int:
        """The class of code 0 that ends speech: one beyond the vocabulary of codes and reserved ids."""
        return self.config.depth.vocab_size

    def prompt(self, request: Request) -> Prompt:
        """What the backbone shall receive for the request. Raises RequestError."""
        return self.layouts.prompt(request)

    def reading(self, request: Request) -> Reading:
        """Its text encoder sees the whole text at once, so that no text may be open. Raises RequestError."""
        modes.check_mode(request, self.spec)
        raise AssertionError(f"a request whose text is open, got {request}")

    def new_state(self, limits: Limits) -> State:
        """State for `limits`, with page 0 and slot 0 besides, which belong to nobody."""
        slots = limits.num_slots + 1
        kv = PagedKV.allocate(
            self.config.backbone,
            num_pages=limits.num_pages + 1,
            page_size=limits.page_size,
            num_slots=slots,
            max_positions=self.spec.max_positions,
            dtype=self.dtype,
            device=self.device,
        )
        sampling = SamplingState.allocate(slots, self.end_id + 1, self.device)
        return State(kv, sampling, self.codec.init_state(slots, self.device))

    def encode_text(self, ids: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """ids [T] of segments one after the other, lengths [B] of up to `longest` tokens, 0 of none -> [T, H]."""
        states: Tensor = self.text_encoder_proj(self.text_encoder(ids, lengths, longest))
        return states

    def embed_frames(self, codes: Tensor) -> Tensor:
        """codes [..., K] -> [..., H]: the backbone's audio table is the depth decoder's."""
        return self.depth_decoder.embed_frames(codes)

    def backbone(
        self, embeds: Tensor, positions: Tensor, valid: Tensor, kv: PagedKV, slots: Tensor, num_pages: int
    ) -> Tensor:
        """embeds [R, T, H], positions and valid [R, T], slots [R] -> [R, T, H]; valid ones enter kv."""
        states: Tensor = self.backbone_model(embeds, positions, valid, kv, slots, num_pages)
        return states

    def decode(
        self,
        codes: Tensor,
        text: Tensor | None,
        positions: Tensor,
        valid: Tensor,
        kv: PagedKV,
        slots: Tensor,
        num_pages: int,
    ) -> Tensor:
        """codes [B, K] of the last frame, positions, valid and slots [R] -> [R, H]; both of a pair get its codes."""
        embeds = self.embed_frames(codes).repeat(len(slots) // len(codes), 1)
        return self.backbone(embeds[:, None], positions[:, None], valid[:, None], kv, slots, num_pages)[:, 0]

    def first_code(self, hidden: Tensor, rows: SamplingRows, frame: Tensor) -> Tensor:
        """hidden [R, H] of each sequence's last position, frame [B] -> code 0 of that frame, [B]."""
        scores = self.first_scores(self.first_logits(hidden), rows, frame)
        return draw(scores, rows.first, uniforms(rows.seed, frame, 1)[:, 0])

    def first_logits(self, hidden: Tensor) -> Tensor:
        """hidden [R, H] -> the head's word on code 0 and the end of speech, [R, V + 1] fp32."""
        logits: Tensor = self.lm_head(hidden.float())
        return logits

    def first_scores(self, logits: Tensor, rows: SamplingRows, frame: Tensor) -> Tensor:
        """logits [R, V + 1] -> [B, V + 1]: guided, then penalised, then without what may not be drawn."""
        scores = guided(logits, rows)
        if rows.any_penalty:
            scores = penalise(scores, rows.seen, rows.repetition_penalty)
        banned = self.reserved
        if rows.any_min_frames:
            banned = banned | self.end & (frame < rows.min_frames)[:, None]
        return scores.masked_fill(banned, -torch.inf)

    def frame(self, hidden: Tensor, code0: Tensor, rows: SamplingRows, frame: Tensor) -> Tensor:
        """hidden [R, H], code0 [B], frame [B] -> the frame's codes [B, K]."""
        uniform = uniforms(rows.seed, frame, self.spec.num_codebooks)

        def choose(logits: Tensor, codebook: int) -> Tensor:
            # Reserved ids are the last ones: left out, they cannot be drawn.
            scores = guided(logits, rows)[:, : self.config.codec.codebook_size]
            return draw(scores, rows.depth, uniform[:, codebook])

        codes: Tensor = self.depth_decoder(hidden, code0, choose)
        return codes

    def is_end(self, code0: Tensor) -> Tensor:
        """code0 [B] -> bool [B], true where speech ends and there is no frame."""
        return code0 == self.end_id

    def plain(self) -> Functions:
        """The stages in PyTorch's own operations."""
        return Functions(self.encode_text, self.backbone, self.decode, self.first_code, self.frame, self.codec.step)

    def fused(self) -> Functions:
        """The stages by fused kernels, where they fit this voice."""
        from engine.fused_breeze import fused  # Triton is not there where only the CPU is

        return fused(self)


def guided(logits: Tensor, rows: SamplingRows) -> Tensor:
    """logits [R, V] -> [B, V]: the two sequences of each request as one, if there are two."""
    if logits.shape[0] == rows.cfg_scale.shape[0]:
        return logits
    conditional, unconditional = logits.chunk(2)
    return guide(conditional, unconditional, rows.cfg_scale)


class Layouts:
    """Turns requests into prompts: the four layouts, and everything that a request can get wrong."""

    def __init__(self, tokenizer: Tokenizer, spec: ModelSpec, codebook_size: int) -> None:
        self._tokenizer = tokenizer
        self._spec = spec
        self._codebook_size = codebook_size
        self._reader = prompts.Reader(tokenizer)
        self._speakers = speakers(tokenizer)

    def prompt(self, request: Request) -> Prompt:
        """One row, or with guidance two: the second lacks the instruction. Raises RequestError."""
        self._check(request)
        scale = self._scale(request)
        rows = self._rows(request, scale)
        prompt = Prompt(rows, scale if len(rows) > 1 else 1.0)
        prompts.check_room(request, prompt.length, self._spec)
        return prompt

    def _scale(self, request: Request) -> float:
        """1 without an instruction: both rows would be the same."""
        if not request.instruction:
            return 1.0
        asked = request.sampling.cfg_scale
        return GUIDED_SCALE if asked is None else asked

    def _rows(self, request: Request, scale: float) -> tuple[PromptRow, ...]:
        if scale == 0.0:
            return (self._row(request, ""),)
        instructed = self._row(request, request.instruction)
        return (instructed,) if scale == 1.0 else (instructed, self._row(request, ""))

    def _row(self, request: Request, instruction: str) -> PromptRow:
        tag = self._tag(request.speaker)
        span = f"{INS_BOS}{instruction}{INS_EOS}" if instruction else ""
        speech = self._segment(f"{tag}{span}{request.text}")
        if request.reference is None:
            return PromptRow((speech,))
        transcript = self._segment(f"{tag}{request.reference.text}")
        recording = ReferenceSegment(request.reference.frames)
        # Each segment is encoded by itself, and the backbone looks back only: these two are the voice's alone.
        prefix = prompts.prefix(transcript.length + recording.length, recording.frames, transcript.ids)
        return PromptRow((transcript, recording, speech), prefix=prefix)

    def _tag(self, speaker: str) -> str:
        tags = {"": ""} | {form: f"[{name}]" for name in self._speakers for form in (name, f"[{name}]")}
        if speaker not in tags:
            known = ", ".join(self._speakers)
            raise RequestError(
                f"speaker must be one of {known} or empty, got {speaker!r}; choose one of them", "speaker"
            )
        return tags[speaker]

    def _segment(self, text: str) -> TextSegment:
        return TextSegment(tuple(self._tokenizer.encode(text).ids))

    def _check(self, request: Request) -> None:
        modes.check_mode(request, self._spec)
        self._check_text("text", request.text)
        if request.instruction:
            self._check_text("instruction", request.instruction)
        if request.reference is not None:
            self._check_text("reference text", request.reference.text)
            prompts.check_frames(request.reference, self._spec.num_codebooks, self._codebook_size)

    def _check_text(self, what: str, text: str) -> None:
        prompts.check_text(what, text, self._spec, self._reader, AUDIO_MARKS, "marks audio")


def speakers(tokenizer: Tokenizer) -> tuple[str, ...]:
    """Those whose tags the tokenizer knows as one token, or drops: another tag would be read aloud."""
    reader = prompts.Reader(tokenizer)
    return tuple(name for name in SPEAKERS if len(reader.ids(f"[{name}]")) <= 1)


def load(folder: Path, *, device: torch.device, dtype: torch.dtype) -> Breeze:
    """Loads a checkpoint folder of the official layout. Raises CheckpointError on whatever is wrong with it."""
    main, audio = Section.read(folder / "config.json"), Section.read(folder / "audio_tokenizer" / "config.json")
    tokenizer = load_tokenizer(folder / "tokenizer.json")
    config = read_config(folder, main, audio)
    audio_tensors = stored(folder / "audio_tokenizer")
    encoder = find_encoder(audio, audio_tensors, device=device)
    spec = read_spec(folder, main, audio, config, tokenizer)
    spec = replace(spec, encodes=Mode.CLONE in spec.modes and encodes(encoder, spec))
    with outlines():
        model = Breeze(config, spec, tokenizer, encoder if spec.encodes else None)
    codec = {f"audio_tokenizer.{name}": tensor for name, tensor in audio_tensors.items()}
    tensors = stored(folder) | codec
    return load_weights(model, tensors, dtype=dtype, device=device, skip=SKIPPED, float32=FLOAT32).eval()


def load_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer, without padding or truncation. Raises CheckpointError."""
    if not file.is_file():
        raise CheckpointError(f"{file}: is not there; {WHOLE_FOLDER}")
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{file}: damaged, expected a tokenizer ({error}); fetch it again") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def read_config(folder: Path, main: Section, audio: Section) -> BreezeConfig:
    """The stages' dimensions. The top level's own dimensions describe another backbone and are not read."""
    main.require(ONLY)
    config = BreezeConfig(
        TextConfig.from_dict(main.section("text_encoder_config")),
        BackboneConfig.from_dict(main.section("backbone_config")),
        DepthConfig.from_dict(main.section("depth_decoder_config")),
        CodecConfig.from_dict(audio.section("decoder_config")),
    )
    width, depth, codec = config.backbone.hidden_size, config.depth, config.codec
    for what, values in {
        "backbone width": (
            width,
            main.integer("hidden_size"),
            main.integer("audio_embed_size"),
            depth.audio_embed_size,
            depth.backbone_hidden_size,
        ),
        "vocab_size": (main.integer("vocab_size"), depth.vocab_size),
        "number of codebooks": (main.integer("num_codebooks"), depth.num_codebooks, codec.num_codebooks),
        "codebook_size": (main.section("codec_config").integer("codebook_size"), codec.codebook_size),
    }.items():
        if len(set(values)) > 1:
            raise CheckpointError(f"{folder}: its configs must agree on {what}, found {values}; {WHOLE_FOLDER}")
    if codec.codebook_size > depth.vocab_size:
        raise main.misfit("vocab_size", f"at least codebook_size = {codec.codebook_size}")
    return config


def read_spec(folder: Path, main: Section, audio: Section, config: BreezeConfig, tokenizer: Tokenizer) -> ModelSpec:
    """What everybody may know of the voice."""
    prompts.check_vocabulary(folder / "tokenizer.json", tokenizer, config.text.vocab_size)
    modes = read_modes(main, tokenizer)
    spec = ModelSpec(
        name=main.text("name", folder.resolve().name) or folder.resolve().name,
        licence=main.text("license", LICENCE) or LICENCE,
        sample_rate=audio.integer("output_sample_rate", low=8000, high=192_000),
        samples_per_frame=config.codec.samples_per_frame,
        num_codebooks=config.depth.num_codebooks,
        max_positions=min(main.integer("max_position_embeddings"), config.backbone.max_positions),
        modes=modes,
        sampling=read_sampling(folder, OFFICIAL_SAMPLING, GREEDY_FLAGS),
        normalise=read_normalise(folder),
        speakers=speakers(tokenizer),
        guided=Mode.DESIGN in modes,
    )
    return replace(spec, max_text_chars=text_limit(spec, tokenizer))


def text_limit(spec: ModelSpec, tokenizer: Tokenizer) -> int:
    """See prompts.text_limit."""
    around = len(tokenizer.encode("[S0]").ids)
    return prompts.text_limit(spec, around, len(tokenizer.encode(f"[S0]{prompts.SAMPLE}").ids) - around)


def read_modes(main: Section, tokenizer: Tokenizer) -> frozenset[Mode]:
    """References need an audio token, instructions the two tokens around them."""
    reference = main.integer("audio_token_id", low=-1, default=-1) >= 0
    instruction = None not in (tokenizer.token_to_id(INS_BOS), tokenizer.token_to_id(INS_EOS))
    needs = {
        Mode.PLAIN: True,
        Mode.DESIGN: instruction,
        Mode.CLONE: reference,
        Mode.DIRECTION: instruction and reference,
    }
    return frozenset(mode for mode, there in needs.items() if there)


def read_normalise(folder: Path) -> str:
    """The language in which texts are written out, of the voices that were trained on such texts; official ones were
    not."""
    given = read_generation(folder)
    language = given.text("normalise", "")
    if language and language not in LANGUAGES:
        raise given.misfit("normalise", f"one of {', '.join(LANGUAGES)}, or nothing")
    return language
