"""Listeners: what a recording says, and how good it would be thought to be. They do not know who speaks.

Each needs packages that are no part of this project: faster-whisper and a model's folder; moonshine-cpp; distillmos and
xls-r-sqa; speechmos and onnxruntime. MOS values are predictions, not opinions.
"""

from __future__ import annotations

import sys
import tempfile
import wave
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from engine.device import choose

Sound = NDArray[np.float32]
RATE = 16_000
"""What all of them hear. 24 kHz becomes this."""
DNSMOS_SECONDS = 9.01


def resampled(sound: Sound, taps: int = 96) -> Sound:
    """24 to 16 kHz: twice as many samples, a windowed sinc that ends at 7.6 kHz, every third kept."""
    times = np.arange(-taps, taps + 1) / 48_000
    kernel = np.sinc(2 * 7600 * times) * np.kaiser(len(times), 8.0)
    doubled = np.zeros(2 * len(sound), np.float32)
    doubled[::2] = sound
    weights = torch.from_numpy((2 * kernel / kernel.sum()).astype(np.float32))
    heard = F.conv1d(torch.from_numpy(doubled)[None, None], weights[None, None], padding=taps)[0, 0, ::3]
    return np.ascontiguousarray(heard.numpy(), np.float32)


def whisper(folder: str) -> Callable[[Sound], str]:
    """Whisper by faster-whisper, from a folder with its model."""
    from faster_whisper import WhisperModel  # type: ignore[import-untyped,import-not-found,unused-ignore]

    model = WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=1)

    def heard(sound: Sound) -> str:
        segments, _ = model.transcribe(resampled(sound), language="en", beam_size=5, condition_on_previous_text=False)
        return " ".join(segment.text.strip() for segment in segments)

    return heard


def moonshine(_: str) -> Callable[[Sound], str]:
    """Moonshine base, from the package."""
    from moonshine_cpp import MoonshineModel  # type: ignore[import-not-found]

    model: Any = MoonshineModel()

    def heard(sound: Sound) -> str:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "heard.wav"
            with wave.open(str(file), "wb") as out:
                out.setparams((1, 2, RATE, 0, "NONE", ""))
                out.writeframes((resampled(sound).clip(-1, 1) * 32767).astype("<i2").tobytes())
            return str(model.transcribe_wav(str(file)))

    return heard


def distillmos(_: str) -> Callable[[Sound], float]:
    """distillMOS, 1 to 5, on a GPU if there is one: on a CPU core it takes two thirds of a clip's length.

    It imports torchaudio for its command alone: where that is absent, a name is enough.
    """
    if find_spec("torchaudio") is None:
        sys.modules.setdefault("torchaudio", ModuleType("torchaudio"))
    from distillmos import ConvTransformerSQAModel  # type: ignore[import-not-found]

    device = choose("auto")
    model = ConvTransformerSQAModel().eval().to(device)

    def rated(sound: Sound) -> float:
        with torch.inference_mode():
            return float(model(torch.from_numpy(resampled(sound))[None].to(device)))

    return rated


def dnsmos(_: str) -> Callable[[Sound], float]:
    """DNSMOS P.835, overall, 1 to 5: the model inside speechmos and its polynomial."""
    import onnxruntime  # type: ignore[import-untyped,import-not-found,unused-ignore]

    package = find_spec("speechmos")
    if package is None or not package.submodule_search_locations:
        raise ModuleNotFoundError("the scorer dnsmos needs the package speechmos: pip install --no-deps speechmos")
    file = Path(package.submodule_search_locations[0]) / "dnsmos_models" / "sig_bak_ovr.onnx"
    session: Any = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    length = int(DNSMOS_SECONDS * RATE)

    def rated(sound: Sound) -> float:
        heard = np.tile(resampled(sound), 1 + length // max(1, len(resampled(sound))))[:length]
        raw = session.run(None, {"input_1": heard[None].astype(np.float32)})[0][0][2]
        return float(np.polyval([-0.06766283, 1.11546468, 0.04602535], raw))

    return rated


READERS: Mapping[str, Callable[[str], Callable[[Sound], str]]] = {"whisper": whisper, "moonshine": moonshine}
"""Scorers that say what they heard."""
JUDGES: Mapping[str, Callable[[str], Callable[[Sound], float]]] = {"distillmos": distillmos, "dnsmos": dnsmos}
"""Scorers that say how good it is."""
