"""Reads the recording of a voice: the bytes of an audio file become samples that the codec's encoder takes.

It does not know who sent them or what they are for, and opens nothing but them: no path, no address, no playlist.
FFmpeg reads it by PyAV, and is told which format it is. Formats: RFC 9639 (FLAC), RFC 3533 (Ogg), ISO 14496-12 (M4A),
ISO 11172-3 (MP3), RIFF (WAV).
"""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import ceil
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from engine.checks import RequestError
from engine.core import RECORDED_RATE, Mode, ModelSpec, Samples

FIELD, TRANSCRIPT = "reference", "reference text"
SLOWEST, FASTEST = 1.0, 35.0
"""Characters a second of a transcript: slow speech in Chinese has two or three, an auctioneer's English 30."""
Doing = Callable[[Callable[[], None]], AbstractContextManager[None]]
"""Entered with a function that ends what is being done; see engine.cloning.Attempt."""
SAMPLE_RATE = RECORDED_RATE
MAX_BYTES = 10 * 2**20
MIN_SECONDS, MAX_SECONDS = 1.0, 30.0
"""Of what is left when silence is trimmed."""
MAX_DECODED_SECONDS = 60.0
"""With the silence around it: more is not even decoded."""
MIN_RATE, MAX_RATE, MAX_CHANNELS = 8000, 192_000, 2
MAX_STREAMS = 8
TOLERANCE_SECONDS = 0.25
"""By which less than announced may come: encoders' delay and padding."""

WINDOW_SAMPLES = SAMPLE_RATE // 100
SILENCE, SILENCE_BELOW_LOUDEST = 1e-3, 1e-2
"""RMS of a window, -60 dB of full scale, and -40 dB of the loudest window: what is below is silence."""
MARGIN_WINDOWS = 5
"""Windows of silence that are kept at either end, so that soft consonants are not cut."""
FULL_SCALE, MAX_CLIPPED = 0.999, 0.005
"""Where a sample counts as clipped, and the share of them that is too much."""

LIMIT_BYTES, LIMIT_CPU_SECONDS, LIMIT_SECONDS = 2**30, 10, 30.0
"""Of the process that decodes: address space, time of a core, time by the clock."""
REFUSED, NO_LIBRARY = 3, 4
"""Its exit codes."""

WHAT_TO_SEND = "send speech of 1 to 30 seconds as WAV, FLAC, Ogg (Opus or Vorbis), MP3 or M4A"


@dataclass(frozen=True, slots=True)
class Kind:
    """A container that is allowed."""

    name: str
    demuxer: str
    """FFmpeg's; no other one is tried."""
    codecs: tuple[str, ...]
    """FFmpeg's names of the decoders that may be opened."""
    looks: Callable[[bytes], bool]
    """Whether data begins like it."""
    check: Callable[[bytes], None]
    """Raises RequestError where the container itself shows that data ends early."""
    announces: Callable[[bytes], bool]
    """Whether the duration that FFmpeg tells was written in it, and not guessed from its size."""


def decode(data: bytes) -> Samples:
    """The file's sound, mono at 24 kHz in [-1, 1], float32 [N], 1 to 30 seconds, without silence at its ends.

    Raises RequestError: empty, too large, not audio, several streams, damaged or truncated, silent, clipped, too short,
    too long. Raises RuntimeError where PyAV is missing. Data of strangers: see `decode_apart`.
    """
    kind = recognise(data)
    kind.check(data)
    channels, rate = _decoded(data, kind)
    _check_level(channels)
    return trimmed(resampled(channels.mean(0, dtype=np.float32), rate))


def decode_apart(data: bytes, doing: Doing = lambda stop: nullcontext()) -> Samples:
    """As `decode`, in a process of its own with little memory and time, for data of strangers. `doing` is entered with
    what ends it, while it runs.

    18 KB of an M4A can make FFmpeg fill 3 GB (see the test), and it is C: whatever it does to that process is one
    RequestError here. Takes longer by the start of that process. Blocks.
    """
    recognise(data)
    command = [sys.executable, "-m", "engine.reference"]
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
        with doing(process.kill):
            try:
                sound, told = process.communicate(data, timeout=LIMIT_SECONDS)
            except subprocess.TimeoutExpired as error:
                process.kill()
                raise _refusal("sound", "a file that takes too long to decode") from error
        return _read(sound, told.decode("utf-8", "replace"), process.returncode)


def _read(sound: bytes, told: str, status: int) -> Samples:
    """What a process that has ended left behind."""
    if status == REFUSED:
        raise RequestError(told, FIELD)
    if status == NO_LIBRARY:
        raise RuntimeError(told)
    if status != 0:
        raise _refusal("sound", "a file that cannot be decoded within the limits of memory and time")
    return np.frombuffer(sound, np.float32).copy()


def check_cloning(spec: ModelSpec, recorded: bool = False, field: str = FIELD) -> None:
    """Raises RequestError for a voice that cannot speak like somebody else; of a recording, if that is `recorded`.
    `field`: what asks for it."""
    if Mode.CLONE not in spec.modes:
        raise RequestError(
            f"{field} must be left out: the voice {spec.name} speaks as itself only; take one that clones, like Breeze "
            "TTS 2 and the Base voices of Qwen3-TTS",
            field,
        )
    if recorded and not spec.encodes:
        raise RequestError(
            f"{field} must be left out: the folder of the voice {spec.name} lacks the encoder that recordings need, "
            "or has one that does not fit; take the whole folder",
            field,
        )


def check_transcript(text: str, seconds: float | None = None) -> None:
    """Raises RequestError for a transcript that is missing, or cannot be that of so many seconds of speech."""
    length = len(text.strip())
    if not length:
        raise RequestError(
            f"{TRANSCRIPT} must be what the recording says, got nothing; write it down word by word", TRANSCRIPT
        )
    if seconds is None:
        return
    least, most = ceil(SLOWEST * seconds), int(FASTEST * seconds)
    if not least <= length <= most:
        raise RequestError(
            f"{TRANSCRIPT} must be what is said in {seconds:.1f} seconds, {least} to {most} characters, got {length}; "
            "write down every word of the recording, and no other",
            TRANSCRIPT,
        )


def recognise(data: bytes) -> Kind:
    """The container, by how it begins. Raises RequestError."""
    if not data:
        raise _refusal("a recording", "no bytes")
    if len(data) > MAX_BYTES:
        raise _refusal(f"at most {MAX_BYTES >> 20} MiB", f"{len(data) / 2**20:.1f} MiB")
    for kind in KINDS:
        if kind.looks(data):
            return kind
    raise _refusal("an audio file", f"something that begins with {data[:8]!r}")


def trimmed(samples: Samples) -> Samples:
    """Samples at 24 kHz without silence at the ends. Raises RequestError: silent, too short, too long."""
    whole = np.pad(samples, (0, -len(samples) % WINDOW_SAMPLES)).reshape(-1, WINDOW_SAMPLES)
    levels = np.sqrt(np.square(whole, dtype=np.float64).mean(1))
    loudest = levels.max(initial=0.0)
    if loudest < SILENCE:
        raise _refusal("speech", "silence")
    (loud,) = np.nonzero(levels >= max(SILENCE, loudest * SILENCE_BELOW_LOUDEST))
    start, end = max(0, loud[0] - MARGIN_WINDOWS), loud[-1] + 1 + MARGIN_WINDOWS
    kept = samples[start * WINDOW_SAMPLES : end * WINDOW_SAMPLES]
    seconds = len(kept) / SAMPLE_RATE
    if not MIN_SECONDS <= seconds <= MAX_SECONDS:
        raise _refusal(
            f"{MIN_SECONDS:g} to {MAX_SECONDS:g} seconds of speech", f"{seconds:.1f} seconds between its silences"
        )
    return np.ascontiguousarray(kept)


def resampled(samples: Samples, rate: int) -> Samples:
    """Mono samples at `rate` -> at 24 kHz in [-1, 1]."""
    if rate != SAMPLE_RATE:
        av = _library()
        frame = av.AudioFrame.from_ndarray(samples[None], format="flt", layout="mono")
        frame.sample_rate = rate
        resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE)
        frames = [*resampler.resample(frame), *resampler.resample(None)]
        samples = np.concatenate([part.to_ndarray()[0] for part in frames])
    return np.clip(samples, -1, 1)


def _decoded(data: bytes, kind: Kind) -> tuple[Samples, int]:
    """All channels [C, N] as they were recorded, and their rate."""
    av = _library()
    options = {
        "format_whitelist": kind.demuxer,
        "protocol_whitelist": "none",
        "codec_whitelist": ",".join(kind.codecs),
        "max_streams": str(MAX_STREAMS),
    }
    file = io.BytesIO(data)
    try:
        with av.open(file, "r", kind.demuxer, container_options=options, io_open=_nothing_else) as container:
            stream = _only_stream(container, kind)
            channels = np.concatenate(list(_channels(container, stream)), 1)
            announced = _announced(stream) if kind.announces(data) else 0.0
            rate = int(stream.codec_context.sample_rate)
    except RequestError:
        raise
    except (av.FFmpegError, OSError, ValueError, MemoryError) as error:
        why = getattr(error, "strerror", None) or error
        message = f"{FIELD} must be a whole {kind.name}, got a damaged or truncated file ({why}); send it again"
        raise RequestError(message, FIELD) from error
    if channels.shape[1] / rate < announced - TOLERANCE_SECONDS:
        raise _truncation(f"{channels.shape[1] / rate:.1f} of {announced:.1f} seconds")
    return channels, rate


def _nothing_else(url: str, flags: int, options: object) -> NoReturn:
    raise PermissionError("a recording must not name other files")


def _only_stream(container: Any, kind: Kind) -> Any:
    """The one stream of audio; pictures of a cover are no other one."""
    attached = _library().stream.Disposition.attached_pic
    streams = [stream for stream in container.streams if not stream.disposition & attached]
    if [stream.type for stream in streams] != ["audio"]:
        raise _refusal("one stream of audio", f"streams {[stream.type for stream in streams]} in {kind.name}")
    codec = streams[0].codec_context
    if codec is None or codec.name not in kind.codecs:
        raise _refusal(
            f"{kind.name} of {', '.join(kind.codecs)}", "no codec that is known" if codec is None else codec.name
        )
    if not MIN_RATE <= codec.sample_rate <= MAX_RATE or not 1 <= codec.channels <= MAX_CHANNELS:
        expected = f"{MIN_RATE} to {MAX_RATE} Hz and at most {MAX_CHANNELS} channels"
        raise _refusal(expected, f"{codec.sample_rate} Hz and {codec.channels} channels")
    return streams[0]


def _channels(container: Any, stream: Any) -> Iterator[Samples]:
    """Blocks [C, n]: at least one, all with as many channels."""
    rate, count, num_samples = stream.codec_context.sample_rate, stream.codec_context.channels, 0
    yield np.zeros((count, 0), np.float32)
    for frame in container.decode(stream):
        if frame.sample_rate != rate:
            raise ValueError(f"its sample rate changes from {rate} to {frame.sample_rate} Hz")
        num_samples += frame.samples
        if num_samples > MAX_DECODED_SECONDS * rate:
            raise _refusal(f"at most {MAX_SECONDS:g} seconds", f"more than {MAX_DECODED_SECONDS:g} seconds")
        yield _floats(frame)


def _floats(frame: Any) -> Samples:
    """A decoded frame as [C, n], full scale 1."""
    values: NDArray[Any] = frame.to_ndarray()
    if not frame.format.is_planar:
        values = values.reshape(frame.samples, -1).T
    if values.dtype == np.uint8:
        values = values.astype(np.int16) - 128
        return (values / 128).astype(np.float32)
    scale = -float(np.iinfo(values.dtype).min) if np.issubdtype(values.dtype, np.integer) else 1.0
    return (values / scale).astype(np.float32)


def _announced(stream: Any) -> float:
    """Seconds."""
    return 0.0 if stream.duration is None else float(stream.duration * stream.time_base)


def _check_level(channels: Samples) -> None:
    if not channels.size:
        raise _refusal("a recording", "a file without a sample")
    if not np.isfinite(channels).all():
        raise _refusal("sound", "samples that are no numbers")
    share = float((np.abs(channels) >= FULL_SCALE).mean())
    if share > MAX_CLIPPED:
        raise _refusal(
            "speech that is not clipped", f"{share:.1%} of its samples at full scale; record it with less gain"
        )


def _truncation(what: str) -> RequestError:
    return RequestError(f"{FIELD} must be a whole file, got a truncated one: {what}; send it again", FIELD)


def _refusal(expected: str, got: str) -> RequestError:
    return RequestError(f"{FIELD} must be {expected}, got {got}; {WHAT_TO_SEND}", FIELD)


def _library() -> Any:
    """PyAV, which the rest of the engine runs without. Raises RuntimeError where it is missing."""
    try:
        import av
    except ImportError as error:
        raise RuntimeError(
            f"recordings are read by PyAV, which cannot be imported ({error}); install the package av, or give the "
            "reference as codes"
        ) from error
    return av


# ---- the containers ----


def _check_wav(data: bytes) -> None:
    """Its data chunk must be as long as it says, unless it says that it does not know."""
    place = 12
    while place + 8 <= len(data):
        name, size = struct.unpack_from("<4sI", data, place)
        place += 8
        if name == b"data":
            if size not in (0, 2**32 - 1) and size > len(data) - place:
                raise _truncation(f"{len(data) - place} of {size} bytes of samples")
            return
        place += size + size % 2
    raise _truncation("no samples")


def _check_ogg(data: bytes) -> None:
    """Its pages must end with one that ends the stream, and belong to one stream."""
    place, begun, flags = 0, 0, 0
    while place < len(data):
        if data[place : place + 4] != b"OggS" or place + 27 > len(data):
            raise _truncation("its last page is not whole")
        flags, segments = data[place + 5], data[place + 26]
        begun += flags >> 1 & 1
        table = data[place + 27 : place + 27 + segments]
        place += 27 + segments + sum(table)
        if len(table) < segments or place > len(data):
            raise _truncation("its last page is not whole")
    if begun != 1:
        raise _refusal("one stream of audio", f"{begun} streams in Ogg")
    if not flags & 4:
        raise _truncation("its stream does not end")


def _check_m4a(data: bytes) -> None:
    """Its outermost boxes must be whole. A size of 1 stands for one of 64 bits behind the name, 0 for all the rest."""
    place = 0
    while place < len(data):
        size, head = int.from_bytes(data[place : place + 4], "big"), 8
        if size == 1:
            size, head = int.from_bytes(data[place + 8 : place + 16], "big"), 16
        if size == 0:
            return
        if size < head or size > len(data) - place:
            raise _truncation(f"{len(data) - place} of {size} bytes of its last box")
        place += size


def _check_nothing(data: bytes) -> None:
    """Its duration, or a frame that does not decode, shows it."""


def _is_mp3(data: bytes) -> bool:
    """A tag, or the head of a frame of layer III."""
    return data[:3] == b"ID3" or (len(data) > 2 and data[0] == 0xFF and data[1] & 0xE6 == 0xE2)


def _counts_frames(data: bytes) -> bool:
    """Whether an MP3's first frame, behind a tag, says how many there are."""
    start = 0
    if data[:3] == b"ID3" and len(data) >= 10:
        start = 10 + sum(byte << shift for byte, shift in zip(data[6:10], (21, 14, 7, 0), strict=True))
    head = data[start : start + 64]
    return b"Xing" in head or b"Info" in head


def _always(data: bytes) -> bool:
    return True


def _never(data: bytes) -> bool:
    return False


PCM = tuple(f"pcm_{kind}" for kind in ("u8", "s16le", "s24le", "s32le", "f32le", "f64le", "alaw", "mulaw"))
KINDS = (
    Kind("WAV", "wav", PCM, lambda data: data[:4] == b"RIFF" and data[8:12] == b"WAVE", _check_wav, _never),
    Kind("FLAC", "flac", ("flac",), lambda data: data[:4] == b"fLaC", _check_nothing, _always),
    Kind("Ogg", "ogg", ("opus", "libopus", "vorbis"), lambda data: data[:4] == b"OggS", _check_ogg, _never),
    Kind("MP3", "mp3", ("mp3float", "mp3"), _is_mp3, _check_nothing, _counts_frames),
    Kind("M4A", "mov", ("aac", "alac"), lambda data: data[4:8] == b"ftyp", _check_m4a, _always),
)


def main() -> int:
    """Decodes what comes on the standard input, under limits, for `decode_apart`."""
    try:
        _library()
        _limit()
        sys.stdout.buffer.write(decode(sys.stdin.buffer.read(MAX_BYTES + 1)).tobytes())
    except RequestError as error:
        sys.stderr.write(str(error))
        return REFUSED
    except RuntimeError as error:
        sys.stderr.write(str(error))
        return NO_LIBRARY
    return 0


def _limit() -> None:
    """Where the system has such limits; Windows has none of this kind."""
    try:
        import resource
    except ImportError:
        return
    for limit, value in ((resource.RLIMIT_AS, LIMIT_BYTES), (resource.RLIMIT_CPU, LIMIT_CPU_SECONDS)):
        _, hard = resource.getrlimit(limit)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


if __name__ == "__main__":
    sys.exit(main())
