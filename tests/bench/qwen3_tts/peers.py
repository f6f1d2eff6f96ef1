"""Qwen3-TTS by others: qwen-tts-hf, which is the official package on a newer transformers, and faster-qwen3-tts.

Random weights at published sizes, and the tokens that our own random voice makes of a text. Every utterance has the
same number of frames: the end of speech is forbidden before. It does not know what is measured.
"""

# mypy: ignore-errors
from __future__ import annotations

import copy
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import stubs
import torch

SPEAKER, LANGUAGE = "ryan", "English"
SAMPLING = {"temperature": 0.9, "top_k": 50, "repetition_penalty": 1.05}


def prepare() -> tuple[str, ...]:
    """Lets the peers be imported; which packages are stubs. Transformers comes first: it asks what is installed."""
    from transformers import AutoConfig, AutoFeatureExtractor, AutoModel, AutoProcessor, MimiModel

    assert all((AutoConfig, AutoFeatureExtractor, AutoModel, AutoProcessor, MimiModel))
    return stubs.install()


class Processor:
    """Tokens of a template, as a processor of transformers gives them."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str, **options: Any) -> dict[str, torch.Tensor]:
        return {"input_ids": torch.tensor([self._tokenizer.encode(text).ids])}


def official(main: Mapping[str, Any], tokenizer: Any, device: str, dtype: torch.dtype) -> Any:
    """Qwen3TTSModel of these dimensions, in the dtype throughout, as its own from_pretrained makes it."""
    from qwen_tts import Qwen3TTSModel
    from qwen_tts.core.models import Qwen3TTSConfig, Qwen3TTSForConditionalGeneration
    from qwen_tts.inference.qwen3_tts_tokenizer import Qwen3TTSTokenizer, Qwen3TTSTokenizerV2Config
    from qwen_tts.inference.qwen3_tts_tokenizer import Qwen3TTSTokenizerV2Model as Codec

    plain = copy.deepcopy({key: value for key, value in main.items() if key not in ("speech_tokenizer", "license")})
    audio = copy.deepcopy(dict(main["speech_tokenizer"]))
    model = random(lambda: Qwen3TTSForConditionalGeneration(Qwen3TTSConfig(**plain)), device, dtype)
    codec = Qwen3TTSTokenizer()
    listening = Qwen3TTSTokenizerV2Config(**audio)
    listening.encoder_config.rope_theta = 10_000.0  # of the encoder, which is not used; its numbers are drawn by it
    codec.model = random(lambda: Codec(listening), device, dtype)
    codec.config, codec.device = codec.model.config, torch.device(device)
    model.load_speech_tokenizer(codec)
    model.load_generate_config({})
    barred = torch.tensor([0, main["talker_config"]["codec_eos_token_id"]], device=device)
    model.talker.codec_head.register_forward_hook(  # its generate() ignores min_new_tokens
        lambda head, given, out: out.index_fill(-1, barred, -float("inf"))
    )
    return Qwen3TTSModel(model, Processor(tokenizer), {})


def random(make: Any, device: str, dtype: torch.dtype) -> Any:
    """With the numbers that the classes begin with."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            return make().to(device, dtype).eval()
    finally:
        torch.set_default_dtype(before)


def together(model: Any, texts: Sequence[str], frames: int) -> float:
    """Seconds until the official package has made all of these, in one batch. Its audio comes when all of it is there:
    that is its first audio, too. Its own N new tokens are N - 1 frames."""
    started = time.perf_counter()
    options = {"min_new_tokens": frames + 1, "max_new_tokens": frames + 1, **SAMPLING}
    many = len(texts)
    waves, _ = model.generate_custom_voice(
        text=list(texts), speaker=[SPEAKER] * many, language=[LANGUAGE] * many, **options
    )
    check(frames, *(len(wave) for wave in waves))
    return time.perf_counter() - started


def faster(model: Any, device: str, dtype: torch.dtype, max_positions: int) -> Any:
    """FasterQwen3TTS around it, as its own from_pretrained makes it; a device without graphs runs its loop without."""
    from faster_qwen3_tts import FasterQwen3TTS

    if not device.startswith("cuda"):
        return without_graphs(FasterQwen3TTS(model, None, None, device, dtype, max_positions))
    from faster_qwen3_tts.predictor_graph import PredictorGraph
    from faster_qwen3_tts.talker_graph import TalkerGraph

    talker, config = model.model.talker, model.model.config.talker_config
    predictor, options = talker.code_predictor, {"device": device, "dtype": dtype}
    drawn = {"do_sample": True, "top_k": 50, "temperature": 0.9}
    codes = PredictorGraph(predictor, predictor.model.config, config.hidden_size, **options, **drawn)
    begin_anew(codes)
    return FasterQwen3TTS(
        model, codes, TalkerGraph(talker.model, config, max_seq_len=max_positions, **options), device, dtype
    )


def begin_anew(codes: Any) -> None:
    """Lets each replay fill the cache from its beginning: newer releases of transformers count its length on the
    device, inside of what was captured."""
    replay, cache = codes.run, getattr(codes, "static_cache", None)

    def run(given: Any) -> Any:
        for layer in getattr(cache, "layers", ()):
            if isinstance(length := getattr(layer, "cumulative_length", None), torch.Tensor):
                length.zero_()
        return replay(given)

    codes.run = run


def without_graphs(model: Any) -> Any:
    """For a rehearsal on the CPU: its loop for comparison, which is the same one but for the graphs."""
    from faster_qwen3_tts import streaming

    def plain(predictor_graph: Any = None, talker_graph: Any = None, **options: Any) -> Any:
        return streaming.parity_generate_streaming(**options)

    streaming.fast_generate_streaming, model._warmed_up = plain, True
    torch.cuda.synchronize = lambda *args: None
    return model


def streamed(model: Any, text: str, frames: int, chunk: int) -> Iterator[float]:
    """The instants at which pieces of an utterance come, from its beginning on; audio as samples on the host."""
    started, samples = time.perf_counter(), 0
    options = {"min_new_tokens": frames, "max_new_tokens": frames, "chunk_size": chunk, **SAMPLING}
    for audio, _, _ in model.generate_custom_voice_streaming(text=text, speaker=SPEAKER, language=LANGUAGE, **options):
        samples += len(audio)
        yield time.perf_counter() - started
    check(frames, samples)


def check(frames: int, *samples: int) -> None:
    """Raises RuntimeError for an utterance of another length."""
    if any(count != frames * 1920 for count in samples):
        raise RuntimeError(f"expected {frames} frames of 1920 samples, got {samples} samples")
