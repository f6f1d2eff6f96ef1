"""The process that transcribes: loads a faster-whisper model, reads turns from its input, writes texts to its output.

It does not know who asks; it ends with its input.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module
from typing import Any, BinaryIO

import msgspec
import numpy as np

from agent.whisper import REQUEST, Word


def main(model: str, device: str, threads: str, language: str) -> None:
    """Serves until the input ends. The output is kept for answers: what a library prints goes to standard error."""
    for number in (signal.SIGINT, signal.SIGTERM):  # these reach whole groups; the owner decides when this ends
        signal.signal(number, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    try:
        loaded = load(model, device, int(threads))
    except Exception as error:
        say(out, Word(error=f"{type(error).__name__}: {error}"))
        return
    say(out, Word())
    serve(loaded, sys.stdin.buffer, out, language)


def load(model: str, device: str, threads: int) -> Any:
    """The model, warmed up: a first turn is not to pay for what the libraries do once."""
    sys.modules["torch"] = None  # type: ignore[assignment]  # some CTranslate2 versions import it and do not need it
    whisper_model = import_module("faster_whisper").WhisperModel  # an extra: mypy may not find it
    compute_type = "int8" if device == "cpu" else "default"
    loaded = whisper_model(model, device=device, compute_type=compute_type, cpu_threads=threads)
    transcribe(loaded, bytes(32_000), "en")
    return loaded


def serve(model: Any, source: BinaryIO, out: BinaryIO, language: str) -> None:
    """One answer a turn."""
    while len(head := source.read(REQUEST.size)) == REQUEST.size:
        turn, num_bytes = REQUEST.unpack(head)
        pcm = source.read(num_bytes)
        if len(pcm) < num_bytes:
            return
        try:
            say(out, Word(turn, transcribe(model, pcm, language)))
        except Exception as error:
            say(out, Word(turn, error=f"{type(error).__name__}: {error}"))


def transcribe(model: Any, pcm: bytes, language: str) -> str:
    """Greedy and without timestamps: a turn is short, and somebody waits."""
    audio = np.frombuffer(pcm, "<i2").astype(np.float32) / 32768
    segments, _ = model.transcribe(
        audio,
        language=language or None,
        beam_size=1,
        temperature=0.0,
        without_timestamps=True,
        condition_on_previous_text=False,
    )
    return "".join(segment.text for segment in segments).strip()


def say(out: BinaryIO, word: Word) -> None:
    out.write(msgspec.json.encode(word) + b"\n")
    out.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
