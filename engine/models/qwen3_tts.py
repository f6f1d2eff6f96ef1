"""Qwen3-TTS-12Hz: reads its checkpoint folders, lays out its prompts and offers the functions of a model.

It does not know batches, slots or when a function is called: the executor does. Five voices are published: 0.6B and
1.7B, Base (clones) and CustomVoice (named speakers), and 1.7B VoiceDesign; their weights are Apache-2.0. Source: the
model cards and code of QwenLM/Qwen3-TTS; the report, arXiv:2601.15621.

Everything that the backbone ("talker") receives is the sum of two tracks: a text token's embedding, projected, and a
codec embedding (a control id, a frame, a speaker). In a prompt the two stand side by side, one pair a position. Where
the text is longer than the prompt it goes on behind it, one token a frame. Its rotary positions have three axes, of
which a text to speech model uses one: with three equal coordinates the sections of rope_scaling change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import AddedToken, Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE
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
    Overlay,
    Prefix,
    Prompt,
    PromptRow,
    Reference,
    Request,
    TextSegment,
)
from engine.depth import MAX_CODEBOOKS, DepthConfig, FrameDecoder
from engine.generation import Defaults, read_sampling
from engine.growing_text import GrowingText
from engine.kv_cache import PagedKV
from engine.models import Functions, Parts, State
from engine.norm import RMSNorm
from engine.sampling import SamplingRows, SamplingState, draw, penalise, uniforms
from engine.speaker import SpeakerConfig, SpeakerEncoder
from engine.transformer import Layers, read_layers
from engine.weights import WHOLE_FOLDER, CheckpointError, FusedEmbedding, FusedLinear, outlines, read_json, stored
from engine.weights import load as load_weights

MODEL_TYPE = "qwen3_tts"
LICENCE = "Apache-2.0"
"""Of the published weights (their model cards), and so of every folder that does not name another."""
CODEC = "speech_tokenizer"
"""The folder of the codec, and the first part of its tensors' names here."""
SKIPPED = (f"{CODEC}.encoder.*", *UNUSED)
"""A recording to codes: loaded by itself."""
UNHEARD = "speaker_encoder.*"
"""What voices that are no clones do without, if their folder has it."""
FLOAT32 = (f"{CODEC}.*",)
MAX_POSITIONS = 2048
"""Of a request here: nearly three minutes in one piece. Each slot has memory for all of them, and the published 32768
would take sixteen times as much."""
MIN_FRAMES = 2
"""The official code never lets speech end before, whatever its settings say."""
CONTROLS = 1024
"""The last ids of the talker's vocabulary are no codes: none but the end may be drawn."""
AUTO = "auto"
"""The language that the voice tells by itself."""
ROLE, TAIL = 3, 5
"""Tokens of the template before a text, and behind it."""
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where Qwen2's tokenizer parts a text, before it merges bytes (its tokenizer.json, Apache-2.0)."""
MEANING = "has a meaning of its own"
"""What the special tokens have in a prompt."""
ONLY = {"tokenizer_type": "qwen3_tts_tokenizer_12hz"}
"""Options with one value here."""
OFFICIAL_SAMPLING: Defaults = {
    "temperature": ("temperature", 0.9),
    "depth_temperature": ("subtalker_temperature", 0.9),
    "top_k": ("top_k", 50),
    "depth_top_k": ("subtalker_top_k", 50),
    "top_p": ("top_p", 1.0),
    "depth_top_p": ("subtalker_top_p", 1.0),
    "repetition_penalty": ("repetition_penalty", 1.05),
    "max_frames": ("max_new_tokens", 2048),
}
GREEDY_FLAGS = {"do_sample": "temperature", "subtalker_dosample": "depth_temperature"}
"""What of generation_config.json, where false, means temperature 0."""
MODES = {
    "base": {Mode.CLONE},
    "custom_voice": {Mode.PLAIN, Mode.DESIGN},
    "voice_design": {Mode.PLAIN, Mode.DESIGN},
}
"""What each kind of voice can be asked for."""
WITHOUT_INSTRUCTIONS = "0b6"
"""The size of those that were not trained on instructions, though they accept them (the official code drops them)."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The ids that a prompt is made of beside its text."""

    pad: int
    begin: int
    end: int
    """Of the text's vocabulary: no text, before the first frame, after the last word."""
    codec_pad: int
    codec_begin: int
    codec_end: int
    think: int
    nothink: int
    think_begin: int
    think_end: int
    """Of the talker's: no frame, before the first frame, the end of speech, and around the language."""
    languages: Mapping[str, int]
    speakers: Mapping[str, int]
    dialects: Mapping[str, str]
    """A speaker's language where Chinese, or none, is asked for."""

    @classmethod
    def read(cls, main: Section) -> Marks:
        """From config.json. Raises CheckpointError."""
        talker = main.section("talker_config")
        texts, codes = talker.integer("text_vocab_size"), talker.integer("vocab_size")
        text = {key: main.integer(f"tts_{name}_token_id", low=0, high=texts - 1) for key, name in TEXT_MARKS.items()}
        codec = {key: talker.integer(f"codec_{name}_id", low=0, high=codes - 1) for key, name in CODEC_MARKS.items()}
        return cls(
            **text,
            **codec,
            languages=_ids(talker.section("codec_language_id"), codes),
            speakers=_ids(talker.section("spk_id", {}), codes),
            dialects=_dialects(talker),
        )

    @property
    def spoken(self) -> tuple[str, ...]:
        """The languages that a request may name."""
        return (AUTO, *(name for name in self.languages if not name.endswith("dialect")))


TEXT_MARKS = {"pad": "pad", "begin": "bos", "end": "eos"}
CODEC_MARKS = {
    "codec_pad": "pad",
    "codec_begin": "bos",
    "codec_end": "eos_token",
    "think": "think",
    "nothink": "nothink",
    "think_begin": "think_bos",
    "think_end": "think_eos",
}
"""Marks' fields, and the middle of their keys in config.json."""


def _ids(section: Section, size: int) -> dict[str, int]:
    return {name.lower(): section.integer(name, low=0, high=size - 1) for name in section}


def _dialects(talker: Section) -> dict[str, str]:
    given, languages = talker.section("spk_is_dialect", {}), talker.section("codec_language_id")
    dialects = {name.lower(): dialect for name, dialect in given.items() if dialect}
    for name, dialect in dialects.items():
        if dialect not in languages:
            raise given.misfit(name, f"false or one of {', '.join(languages)}")
    return dialects


@dataclass(frozen=True, slots=True)
class QwenConfig:
    """The stages' dimensions, as the folder says them."""

    backbone: BackboneConfig
    depth: DepthConfig
    codec: CodecConfig
    text_width: int
    text_vocab: int
    codec_vocab: int
    """Ids of code 0 and control ids."""
    speaker: SpeakerConfig | None
    """Of voices that are clones."""


class TalkerModel(Backbone):
    """The backbone, and what its two tracks are looked up in; names as below `talker.model.`."""

    def __init__(self, config: QwenConfig) -> None:
        super().__init__(config.backbone)
        self.text_embedding = nn.Embedding(config.text_vocab, config.text_width)
        self.codec_embedding = nn.Embedding(config.codec_vocab, config.backbone.hidden_size)


class TextProjection(nn.Module):
    """A text token's embedding in the talker's width."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(width, width)
        self.linear_fc2 = nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return out


class PredictorModel(nn.Module):
    """The weights below the heads, and a table for each codebook but the first, as wide as the talker."""

    def __init__(self, config: DepthConfig) -> None:
        super().__init__()
        tables = {f"codec_embedding.{i}": config.vocab_size for i in range(config.num_codebooks - 1)}
        self.codec_embedding = FusedEmbedding(config.audio_embed_size, tables)
        self.layers = Layers(config, qk_norm=True)
        self.norm = RMSNorm(config.hidden_size, config.eps)


class CodePredictor(FrameDecoder):
    """The depth decoder; names as below `talker.code_predictor.`. Code 0 is looked up in the talker's own table."""

    model: PredictorModel

    def __init__(self, config: DepthConfig, first: nn.Embedding) -> None:
        super().__init__(config)
        self.model = PredictorModel(config)
        heads = {f"lm_head.{i}": config.vocab_size for i in range(config.num_codebooks - 1)}
        self.lm_head = FusedLinear(config.hidden_size, heads)
        same = config.hidden_size == config.backbone_hidden_size
        self.small_to_mtp_projection = None if same else nn.Linear(config.backbone_hidden_size, config.hidden_size)
        self._first = (first,)  # not as a module of its own: it is the talker's
        self.offsets: Tensor
        offsets = torch.arange(config.num_codebooks - 1, device="cpu") * config.vocab_size
        self.register_buffer("offsets", offsets, persistent=False)

    def embed_frames(self, codes: Tensor) -> Tensor:
        """codes [..., K] -> the sum of their embeddings, added in float32 and rounded once, [..., H]."""
        embeds = torch.cat((self._first[0](codes[..., :1]), self._later(codes[..., 1:])), -2)
        return embeds.sum(-2, dtype=torch.float32).to(embeds.dtype)

    @property
    def projection(self) -> nn.Linear | None:
        return self.small_to_mtp_projection

    def embedded(self, codes: Tensor) -> Tensor:
        return torch.cat((self._first[0](codes[:, :1]), self._later(codes[:, 1:])), 1)

    def inputs(self) -> list[Tensor]:
        size = self.config.vocab_size
        first, later = self._first[0].weight[:size], self.model.codec_embedding.weight[:-size]
        return [self.project(table) for table in (first, *torch.split(later, size))]

    def heads(self) -> list[Tensor]:
        """In the dtype of the layers, as in the official code."""
        return [head.t() for head in torch.split(self.lm_head.weight, self.config.vocab_size)]

    def _later(self, codes: Tensor) -> Tensor:
        """codes [..., n] from codebook 1 on -> [..., n, H]."""
        embeds: Tensor = self.model.codec_embedding(codes + self.offsets[: codes.shape[-1]])
        return embeds


class Talker(nn.Module):
    """Backbone, text projection, head and depth decoder, under the names of the checkpoint."""

    def __init__(self, config: QwenConfig) -> None:
        super().__init__()
        width = config.backbone.hidden_size
        self.model = TalkerModel(config)
        self.text_projection = TextProjection(config.text_width, width)
        self.codec_head = nn.Linear(width, config.codec_vocab, bias=False)
        self.code_predictor = CodePredictor(config.depth, self.model.codec_embedding)


class Qwen3TTS(nn.Module):
    """The model; parameter names as in the checkpoint, the codec's with the folder's name before them.

    Every function takes B requests: R = B, as there is no guidance. H = width, K = codebooks, V = the talker's ids.
    """

    float32 = FLOAT32
    banned: Tensor
    """[V] bool: ids that are neither a code nor the end."""
    end: Tensor
    """[V] bool: the end."""

    def __init__(
        self, config: QwenConfig, spec: ModelSpec, layouts: Layouts, encoder: CodecEncoder | None = None
    ) -> None:
        super().__init__()
        self._encoder = (encoder,)  # not as a module of its own: it is loaded by itself, and keeps its own dtype
        self.config = config
        self.spec = spec
        self.layouts = layouts
        self.talker = Talker(config)
        self.speaker_encoder = SpeakerEncoder(config.speaker) if config.speaker else None
        self.speech_tokenizer = nn.ModuleDict({"decoder": CodecDecoder(config.codec)})
        ids = torch.arange(config.codec_vocab, device="cpu")
        self.register_buffer("end", ids == self.end_id, persistent=False)
        self.register_buffer("banned", (ids >= config.codec_vocab - CONTROLS) & ~self.end, persistent=False)

    @property
    def encoder(self) -> CodecEncoder | None:
        return self._encoder[0]

    @property
    def device(self) -> torch.device:
        return self.talker.codec_head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of everything but the codec, which is fp32."""
        return self.talker.codec_head.weight.dtype

    @property
    def width(self) -> int:
        return self.config.backbone.hidden_size

    @property
    def reads_on(self) -> bool:
        """Text may go on behind the prompt; where there is none, the mark for it does."""
        return True

    @property
    def position_bytes(self) -> int:
        """Of the keys and values of one backbone position."""
        layers = self.config.backbone
        return 2 * layers.num_layers * layers.num_kv_heads * layers.head_dim * self.dtype.itemsize

    @property
    def codec(self) -> CodecDecoder:
        decoder = self.speech_tokenizer["decoder"]
        assert isinstance(decoder, CodecDecoder)
        return decoder

    @property
    def parts(self) -> Parts:
        """Text is projected in each step, or once for the whole vocabulary: a row of a table each at least."""
        talker, depth = self.talker, self.talker.code_predictor
        return Parts(
            text=(),
            backbone=(talker.model, talker.codec_head),
            depth=depth,
            depth_layers=depth.model.layers,
            codec=self.codec,
            tokens=talker.model.text_embedding,
            codes=(talker.model.codec_embedding, depth.model.codec_embedding),
        )

    @property
    def end_id(self) -> int:
        """The id of code 0 that ends speech."""
        return self.layouts.marks.codec_end

    def prompt(self, request: Request) -> Prompt:
        """What the backbone shall receive for the request. Raises RequestError."""
        return self.layouts.prompt(request, self.spec)

    def reading(self, request: Request) -> Reading:
        """The same for a request whose text is open. Raises RequestError."""
        return self.layouts.reading(request, self.spec)

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
        sampling = SamplingState.allocate(slots, self.config.codec_vocab, self.device)
        return State(kv, sampling, self.codec.init_state(slots, self.device))

    def encode_text(self, ids: Tensor, lengths: Tensor, longest: int) -> Tensor:
        """ids [T] of pairs -> [T, H]. No token sees another, so that segments do not matter."""
        model, size = self.talker.model, self.config.text_vocab
        texts: Tensor = self.talker.text_projection(model.text_embedding(ids % size))
        controls = ids // size  # one more than the id, 0 where there is none
        codes = model.codec_embedding((controls - 1).clamp(min=0))
        return texts + torch.where(controls[:, None] > 0, codes, 0)

    def embed_frames(self, codes: Tensor) -> Tensor:
        """codes [..., K] -> [..., H]."""
        return self.talker.code_predictor.embed_frames(codes)

    def backbone(
        self, embeds: Tensor, positions: Tensor, valid: Tensor, kv: PagedKV, slots: Tensor, num_pages: int
    ) -> Tensor:
        """embeds [R, T, H], positions and valid [R, T], slots [R] -> [R, T, H]; valid ones enter kv."""
        states: Tensor = self.talker.model(embeds, positions, valid, kv, slots, num_pages)
        return states

    def feedback(self, codes: Tensor, text: Tensor | None) -> Tensor:
        """codes [B, K] of the last frame and the text [B, H] that goes with it -> what the backbone receives, [B, H].

        Each of the two is rounded before they are added, as in the official code.
        """
        assert text is not None, "a model that reads on is fed text with each frame"
        return self.embed_frames(codes) + text

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
        """codes [B, K] of the last frame, text [B, H], positions, valid and slots [B] -> [B, H]."""
        embeds = self.feedback(codes, text)
        return self.backbone(embeds[:, None], positions[:, None], valid[:, None], kv, slots, num_pages)[:, 0]

    def first_code(self, hidden: Tensor, rows: SamplingRows, frame: Tensor) -> Tensor:
        """hidden [B, H] of each sequence's last position, frame [B] -> code 0 of that frame, [B]."""
        scores = self.first_scores(self.first_logits(hidden), rows, frame)
        return draw(scores, rows.first, uniforms(rows.seed, frame, 1)[:, 0])

    def first_logits(self, hidden: Tensor) -> Tensor:
        """hidden [B, H] -> the head's word on code 0 and the end of speech, [B, V] fp32."""
        logits: Tensor = self.talker.codec_head(hidden)
        return logits.float()

    def first_scores(self, logits: Tensor, rows: SamplingRows, frame: Tensor) -> Tensor:
        """logits [B, V] -> [B, V]: penalised, then without what may not be drawn."""
        scores = penalise(logits, rows.seen, rows.repetition_penalty) if rows.any_penalty else logits
        early = frame < rows.min_frames.clamp(min=MIN_FRAMES)
        return scores.masked_fill(self.banned | self.end & early[:, None], -torch.inf)

    def frame(self, hidden: Tensor, code0: Tensor, rows: SamplingRows, frame: Tensor) -> Tensor:
        """hidden [B, H], code0 [B], frame [B] -> the frame's codes [B, K]."""
        uniform = uniforms(rows.seed, frame, self.spec.num_codebooks)

        def choose(logits: Tensor, codebook: int) -> Tensor:
            return draw(logits, rows.depth, uniform[:, codebook])

        codes: Tensor = self.talker.code_predictor(hidden, code0, choose)
        return codes

    def is_end(self, code0: Tensor) -> Tensor:
        """code0 [B] -> bool [B], true where speech ends and there is no frame."""
        return code0 == self.end_id

    def plain(self) -> Functions:
        """The stages in PyTorch's own operations."""
        return Functions(self.encode_text, self.backbone, self.decode, self.first_code, self.frame, self.codec.step)

    def fused(self) -> Functions:
        """Text, backbone, depth decoder and codec by fused kernels, where they fit this voice."""
        from engine.fused_qwen3_tts import fused  # Triton is not there where only the CPU is

        return fused(self)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a prompt is laid out for. Speaker and language are names of config.json, in lower case."""

    text: str
    language: str = AUTO
    speaker: str = ""
    instruction: str = ""
    vector: tuple[float, ...] = ()
    reference: Reference | None = None
    """Whose frames and transcript the speech continues."""
    reads_on: bool = False
    """Whether only the text's first token stands in the prompt, and the others go with the frames. All the same to the
    listener; official for clones, and what lets text come while speech is made."""


class Layouts:
    """Turns requests into prompts, and knows everything that a request can get wrong."""

    def __init__(self, tokenizer: Tokenizer, marks: Marks, config: QwenConfig) -> None:
        self._tokenizer, self.marks, self._config = tokenizer, marks, config
        self._reader = prompts.Reader(tokenizer)
        self._special = [token.content for token in tokenizer.get_added_tokens_decoder().values()]

    # ---- what may be asked ----

    def prompt(self, request: Request, spec: ModelSpec) -> Prompt:
        """One row: there is no guidance. Raises RequestError."""
        wish = self._checked(request, spec)
        self._check_text("text", request.text, spec)
        row = self.row(wish)
        prompts.check_room(request, row.length, spec, least=row.trailing)
        return Prompt((row,))

    def reading(self, request: Request, spec: ModelSpec) -> Reading:
        """Of a request whose text is open. Raises RequestError."""
        wish = replace(self._checked(request, spec), reads_on=True)
        reading = Reading(self, wish, GrowingText(self._tokenizer), spec)
        reading.begin(request)
        return reading

    def _checked(self, request: Request, spec: ModelSpec) -> Wish:
        """What it wishes for, with whatever text. Raises RequestError."""
        modes.check_mode(request, spec)
        if request.instruction:
            self._check_text("instruction", request.instruction, spec)
        if request.reference is not None:
            self._check_reference(request.reference, spec)
        return self._wish(request, spec)

    def _wish(self, request: Request, spec: ModelSpec) -> Wish:
        reference = request.reference
        return Wish(
            text=request.text,
            language=request.language.lower() or AUTO,
            speaker=self._speaker(request.speaker, spec),
            instruction=request.instruction,
            vector=reference.vector if reference else (),
            reference=reference if reference and reference.frames else None,
            reads_on=reference is not None,
        )

    def _speaker(self, speaker: str, spec: ModelSpec) -> str:
        """A name; or a place in the list, from S0 on: what callers say who know no names. Nobody's is the first."""
        names = spec.speakers or ("",)
        known = {"": names[0]} | {f"s{i}": name for i, name in enumerate(names)} | {name: name for name in names}
        if speaker.lower() not in known:
            listed = ", ".join((*spec.speakers, *(f"S{i}" for i in range(len(names)))))
            raise RequestError(
                f"speaker must be one of {listed} or empty, got {speaker!r}; choose one of them", "speaker"
            )
        return known[speaker.lower()]

    def _check_text(self, what: str, text: str, spec: ModelSpec) -> None:
        prompts.check_text(what, text, spec, self._reader, self._special, MEANING)

    def check_piece(self, before: str, piece: str, spec: ModelSpec) -> None:
        """Raises RequestError for what cannot go on a text. Of what stands before it, the end may be part of a mark."""
        if len(before) + len(piece) > spec.max_text_chars:
            total = len(before) + len(piece)
            raise RequestError(
                f"text must have at most {spec.max_text_chars} characters, got {total} by now; open another request "
                "for the rest",
                "text",
            )
        longest = max(map(len, self._special), default=0)
        prompts.check_readable("text", before[-longest:] + piece, spec, self._reader, self._special, MEANING)

    def _check_reference(self, reference: Reference, spec: ModelSpec) -> None:
        """A vector is needed; frames only where there is a transcript, which must cover all that they say."""
        if len(reference.vector) != self._config.backbone.hidden_size:
            width, got = self._config.backbone.hidden_size, len(reference.vector)
            raise RequestError(
                f"reference vector must have {width} numbers, got {got}; send what this voice's speaker encoder says "
                "of the recording",
                "reference",
            )
        if reference.text or reference.frames:
            self._check_text("reference text", reference.text, spec)
            prompts.check_frames(reference, spec.num_codebooks, self._config.codec.codebook_size)

    # ---- layout ----

    def row(self, wish: Wish) -> PromptRow:
        """The prompt's pairs, one a position, and behind them those of the text that goes with the frames."""
        marks = self.marks
        opening, control, place = self._before(wish)
        text = list(self.template(wish.text)[ROLE:-TAIL])
        if wish.reference is not None:
            body, rest, overlaid = self._continued(text, wish.reference, wish.reads_on)
        elif wish.reads_on:
            body, rest, overlaid = [(text[0], marks.codec_begin)], [*text[1:], marks.end], 0
        else:
            body, rest, overlaid = [*self._said([*text, marks.end]), (marks.pad, marks.codec_begin)], [], 0
        behind = [(id_, None) for id_ in (*rest, marks.pad)]
        ids = tuple(self._pair(*pair) for pair in (*opening, *control, *body, *behind))
        before = len(opening) + len(control)
        overlays = self._overlays(wish, len(opening) + place, before + overlaid)
        prefix = self._prefix(wish, wish.reference, ids, before, len(body)) if wish.reference else None
        return PromptRow((TextSegment(ids),), overlays, trailing=len(behind), prefix=prefix)

    def _prefix(self, wish: Wish, reference: Reference, ids: Sequence[int], before: int, body: int) -> Prefix:
        """What comes before the first token of the text, which follows the transcript: no token sees another, and the
        backbone looks back only."""
        length = before + min(body, len(self.transcript(reference.text)) - TAIL)
        return prompts.prefix(length, reference.frames, ids[:length], wish.vector)

    def open_row(self, wish: Wish) -> PromptRow:
        """The same for a text of which nothing has come: what stands before it, with a recording's transcript. The
        prompt ends with its first token, or with the recording's last frame."""
        opening, control, place = self._before(wish)
        before, frames = len(opening) + len(control), wish.reference.frames if wish.reference else ()
        ids = [self._pair(*pair) for pair in (*opening, *control)]
        if wish.reference is not None:
            ids += self.words(self.transcript(wish.reference.text)[ROLE : ROLE - TAIL], first=True)
        overlays = self._overlays(wish, len(opening) + place, before + 1)
        missing = before + 1 + len(frames) - len(ids)
        return PromptRow((TextSegment(tuple(ids)),), overlays, trailing=-missing, open=True)

    def words(self, ids: Sequence[int], first: bool) -> tuple[int, ...]:
        """Text that goes with frames. Of all of it, the first one begins them."""
        return tuple(self._pair(id_, None if i or not first else self.marks.codec_begin) for i, id_ in enumerate(ids))

    def _before(self, wish: Wish) -> tuple[list[tuple[int, int | None]], list[tuple[int, int | None]], int]:
        """What comes before any text: instruction and role, and the control block with its place for a vector."""
        role = self.template("")[:ROLE]
        opening: list[tuple[int, int | None]] = [(id_, None) for id_ in (*self._instruction(wish), *role)]
        control, place = self._control(wish)
        return opening, control, place

    def _overlays(self, wish: Wish, vector_at: int, frames_at: int) -> tuple[Overlay, ...]:
        overlays = [Overlay(vector_at, vector=wish.vector)] if wish.vector else []
        if wish.reference is not None:
            overlays.append(Overlay(frames_at, frames=wish.reference.frames))
        return tuple(overlays)

    def _control(self, wish: Wish) -> tuple[list[tuple[int, int | None]], int]:
        """The language and the speaker; and the place within for a vector."""
        marks, language = self.marks, self._language(wish)
        track: list[int | None] = [marks.nothink, marks.think_begin, marks.think_end]
        if language != AUTO:
            track = [marks.think, marks.think_begin, marks.languages[language], marks.think_end]
        place = len(track)
        if wish.speaker or wish.vector:
            track.append(None if wish.vector else marks.speakers[wish.speaker])
        return [*((marks.pad, id_) for id_ in track), (marks.begin, marks.codec_pad)], place

    def _language(self, wish: Wish) -> str:
        if wish.language in (AUTO, "chinese"):
            return self.marks.dialects.get(wish.speaker, wish.language)
        return wish.language

    def _continued(
        self, text: Sequence[int], reference: Reference, reads_on: bool
    ) -> tuple[list[tuple[int, int | None]], list[int], int]:
        """Behind a recording: pairs, the text that goes with the frames, and where in the pairs the frames stand."""
        marks = self.marks
        words = [*self.transcript(reference.text)[ROLE : ROLE - TAIL], *text, marks.end]
        if not reads_on:
            frames = [(marks.pad, marks.codec_begin), *((marks.pad, None) for _ in reference.frames)]
            return [*self._said(words), *frames], [], len(words) + 1
        length = len(reference.frames) + 1
        shown = (words + [marks.pad] * length)[:length]
        return [(shown[0], marks.codec_begin), *((id_, None) for id_ in shown[1:])], words[length:], 1

    def _said(self, ids: Sequence[int]) -> list[tuple[int, int | None]]:
        """Text without frames."""
        return [(id_, self.marks.codec_pad) for id_ in ids]

    def _pair(self, text: int, control: int | None) -> int:
        """Two ids as one, as Qwen3TTS.encode_text takes them apart."""
        return text + self._config.text_vocab * (0 if control is None else control + 1)

    # ---- templates ----

    def template(self, text: str) -> tuple[int, ...]:
        """The text as the official code writes it: ROLE tokens, its own, TAIL tokens."""
        return self._ids(f"<|im_start|>assistant\n{text.strip()}<|im_end|>\n<|im_start|>assistant\n")

    def transcript(self, text: str) -> tuple[int, ...]:
        """What a recording says: ROLE tokens, its own, two tokens."""
        return self._ids(f"<|im_start|>assistant\n{text.strip()}<|im_end|>\n")

    def instruction(self, text: str) -> tuple[int, ...]:
        """How to speak."""
        return self._ids(f"<|im_start|>user\n{text}<|im_end|>\n")

    def _instruction(self, wish: Wish) -> tuple[int, ...]:
        return self.instruction(wish.instruction) if wish.instruction else ()

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text).ids)


class Reading:
    """One request's text while it is being written: its prompt as far as that is known, and then what comes.

    The layout is that of a text that reads on, whatever the voice: the tokens are those of the whole text so laid out.
    A recording takes as much of the text as it has frames, so speech that continues one waits for that much.
    """

    def __init__(self, layouts: Layouts, wish: Wish, growing: GrowingText, spec: ModelSpec) -> None:
        self._layouts, self._growing, self._spec = layouts, growing, spec
        self._row = layouts.open_row(wish)
        self._continues = wish.reference is not None
        self._text, self._words = "", 0

    @property
    def prompt(self) -> Prompt:
        return Prompt((self._row,))

    def begin(self, request: Request) -> None:
        """With the text that it brings. Raises RequestError."""
        self.append(request.text)
        prompts.check_room(request, self._row.length, self._spec, least=self._row.trailing)

    def append(self, text: str) -> tuple[int, ...]:
        """The tokens that are certain once this has come. Raises RequestError."""
        self._layouts.check_piece(self._text, text, self._spec)
        self._text += text
        return self._grow(self._growing.push(text))

    def end(self) -> tuple[int, ...]:
        """The last ones. Raises RequestError where there was nothing to say."""
        rest = self._growing.end()
        if not self._words + len(rest):
            raise RequestError(f"text must hold something to say, got {self._text!r}; send words", "text")
        marks = self._layouts.marks
        missing = max(0, -(self._row.trailing + len(rest) + 1))
        return self._grow([*rest, marks.end, *[marks.pad] * missing, marks.pad])

    def _grow(self, ids: Sequence[int]) -> tuple[int, ...]:
        ids = self._layouts.words(ids, first=not (self._words or self._continues))
        self._words += len(ids)
        self._row = self._row.with_text(ids)
        most, positions = self._spec.max_positions - 1, self._row.text_end
        if positions > most:
            raise RequestError(
                f"text must fit into {most} positions with its prompt, got {positions} by now; open another request "
                "for the rest",
                "text",
            )
        return ids


def load(folder: Path, *, device: torch.device, dtype: torch.dtype) -> Qwen3TTS:
    """Loads a checkpoint folder of the official layout. Raises CheckpointError on whatever is wrong with it."""
    main, audio = Section.read(folder / "config.json"), Section.read(folder / CODEC / "config.json")
    config, tokenizer = read_config(folder, main, audio), load_tokenizer(folder)
    prompts.check_vocabulary(folder / "vocab.json", tokenizer, config.text_vocab)
    audio_tensors = stored(folder / CODEC)
    encoder = find_encoder(audio, audio_tensors, device=device) if config.speaker else None
    model = outline(folder, main, audio, config, tokenizer, encoder)
    codec = {f"{CODEC}.{name}": tensor for name, tensor in audio_tensors.items()}
    tensors = stored(folder) | codec
    skipped = SKIPPED if config.speaker else (*SKIPPED, UNHEARD)
    return load_weights(model, tensors, dtype=dtype, device=device, skip=skipped, float32=FLOAT32).eval()


def outline(
    folder: Path,
    main: Section,
    audio: Section,
    config: QwenConfig,
    tokenizer: Tokenizer,
    encoder: CodecEncoder | None = None,
) -> Qwen3TTS:
    """The model on meta, without numbers; the encoder, that of a clone, has its own."""
    layouts = Layouts(tokenizer, Marks.read(main), config)
    check_template(folder, main, layouts)
    spec = read_spec(folder, main, audio, config, layouts)
    spec = replace(spec, encodes=hears(encoder, config, spec))
    with outlines():
        return Qwen3TTS(config, spec, layouts, encoder if spec.encodes else None)


def hears(encoder: CodecEncoder | None, config: QwenConfig, spec: ModelSpec) -> bool:
    """Whether a recording can be turned into frames and a speaker's vector, both from the same samples."""
    return config.speaker is not None and config.speaker.sample_rate == spec.sample_rate and encodes(encoder, spec)


def check_template(folder: Path, main: Section, layouts: Layouts) -> None:
    """Prompts are cut out of templates by position. Raises CheckpointError where the tokenizer makes others of them."""
    begin, end, ids = main.integer("im_start_token_id"), main.integer("im_end_token_id"), layouts.template("")
    if len(ids) != ROLE + TAIL or (ids[0], ids[ROLE], ids[ROLE + 2]) != (begin, end, begin):
        raise CheckpointError(
            f"{folder}: its tokenizer must make {ROLE + TAIL} tokens of a prompt without text, with <|im_start|> = "
            f"{begin} and <|im_end|> = {end} among them, got {list(ids)}; {WHOLE_FOLDER}"
        )


def load_tokenizer(folder: Path) -> Tokenizer:
    """The byte-level BPE of Qwen2 from vocab.json, merges.txt and tokenizer_config.json. Raises CheckpointError."""
    vocab = read_json(folder / "vocab.json")
    special = read_special(Section.read(folder / "tokenizer_config.json"))
    try:
        lines = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{folder / 'merges.txt'}: cannot be read ({error}); {WHOLE_FOLDER}") from error
    pairs = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    try:
        return byte_level(vocab, pairs, special)
    except Exception as error:  # the library raises nothing narrower
        raise CheckpointError(f"{folder}: vocab.json and merges.txt do not fit ({error}); {WHOLE_FOLDER}") from error


def read_special(config: Section) -> dict[str, int]:
    """The tokens that stand for themselves, with their ids."""
    given = config.section("added_tokens_decoder")
    special = {given.section(key).text("content", ""): int(key) for key in given if key.isdecimal()}
    if len(special) < len(given) or "" in special:
        raise config.misfit("added_tokens_decoder", "ids with a content each")
    return special


def byte_level(vocab: Mapping[str, int], merges: Sequence[tuple[Any, ...]], special: Mapping[str, int]) -> Tokenizer:
    """Qwen2's layout: NFC, its own pieces, bytes as letters, merges; no token in front of a text, nor behind."""
    tokenizer = Tokenizer(BPE(dict(vocab) | dict(special), list(merges)))
    tokenizer.normalizer = normalizers.NFC()
    pieces = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, letters])
    tokenizer.add_special_tokens([AddedToken(word, normalized=False) for word in special])
    return tokenizer


def read_config(folder: Path, main: Section, audio: Section) -> QwenConfig:
    """The stages' dimensions. The official class's own defaults describe another model: every key must be there."""
    main.require(ONLY)
    talker = main.section("talker_config")
    predictor = talker.section("code_predictor_config")
    backbone, codec = BackboneConfig.from_dict(talker), CodecConfig.from_dict(audio.section("decoder_config"))
    depth = DepthConfig(
        **read_layers(predictor),
        num_codebooks=predictor.integer("num_code_groups", low=2, high=MAX_CODEBOOKS),
        vocab_size=predictor.integer("vocab_size"),
        audio_embed_size=backbone.hidden_size,
        backbone_hidden_size=backbone.hidden_size,
    )
    vocab = talker.integer("vocab_size", low=CONTROLS + 1)
    for what, values in {
        "number of codebooks": (talker.integer("num_code_groups"), depth.num_codebooks, codec.num_codebooks),
        "codebook_size": (vocab - CONTROLS, depth.vocab_size, codec.codebook_size),
    }.items():
        if len(set(values)) > 1:
            raise CheckpointError(f"{folder}: its configs must agree on {what}, found {values}; {WHOLE_FOLDER}")
    texts = talker.integer("text_hidden_size"), talker.integer("text_vocab_size")
    return QwenConfig(backbone, depth, codec, *texts, vocab, read_speaker(main, backbone.hidden_size))


def read_speaker(main: Section, width: int) -> SpeakerConfig | None:
    """Of a voice that is a clone."""
    if main.text("tts_model_type", "") != "base":
        return None
    config = SpeakerConfig.from_dict(main.section("speaker_encoder_config"))
    if config.width != width:
        raise main.section("speaker_encoder_config").misfit("enc_dim", f"the talker's width {width}")
    return config


def read_spec(folder: Path, main: Section, audio: Section, config: QwenConfig, layouts: Layouts) -> ModelSpec:
    """What everybody may know of the voice."""
    marks = layouts.marks
    spec = ModelSpec(
        name=main.text("name", folder.resolve().name) or folder.resolve().name,
        licence=main.text("license", LICENCE) or LICENCE,
        sample_rate=audio.integer("output_sample_rate", low=8000, high=192_000),
        samples_per_frame=config.codec.samples_per_frame,
        num_codebooks=config.depth.num_codebooks,
        max_positions=min(MAX_POSITIONS, config.backbone.max_positions),
        modes=read_modes(main),
        sampling=read_sampling(folder, OFFICIAL_SAMPLING, GREEDY_FLAGS),
        speakers=tuple(marks.speakers),
        languages=marks.spoken,
        vector_width=config.speaker.width if config.speaker else 0,
        open_text=True,
    )
    own = len(layouts.template(prompts.SAMPLE)) - ROLE - TAIL
    around = layouts.row(Wish(prompts.SAMPLE)).length - own + 2  # a language and a speaker besides
    return replace(spec, max_text_chars=prompts.text_limit(spec, around, own))


def read_modes(main: Section) -> frozenset[Mode]:
    """What the voice was trained for."""
    kind = main.text("tts_model_type", "")
    if kind not in MODES:
        raise main.misfit("tts_model_type", f"one of {', '.join(MODES)}")
    told = kind == "custom_voice" and main.text("tts_model_size", "") == WITHOUT_INSTRUCTIONS
    return frozenset(MODES[kind] - ({Mode.DESIGN} if told else set()))
