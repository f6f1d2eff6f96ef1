"""reference.py: recordings of every format become samples, and whatever is no recording is refused in words."""

from __future__ import annotations

import io
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import reference, wav
from engine.checks import RequestError
from engine.reference import MAX_BYTES, SAMPLE_RATE, Samples, decode, decode_apart, resampled, trimmed

FORMATS = {
    "wav": ("wav", "pcm_s16le", 44_100),
    "wav of bytes": ("wav", "pcm_u8", 8000),
    "wav of 24 bits": ("wav", "pcm_s24le", 48_000),
    "wav of floats": ("wav", "pcm_f32le", 24_000),
    "flac": ("flac", "flac", 48_000),
    "opus": ("ogg", "libopus", 48_000),
    "mp3": ("mp3", "libmp3lame", 44_100),
    "aac": ("ipod", "aac", 44_100),
    "alac": ("mp4", "alac", 48_000),
    "aac in fragments": ("ismv", "aac", 44_100),
}


def tone(rate: int, seconds: float = 2.0, hertz: float = 440.0, size: float = 0.3) -> Samples:
    return (size * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def encode(format: str, codec: str, samples: Samples, rate: int, layout: str = "mono", streams: int = 1) -> bytes:
    """The same samples in every channel and stream."""
    file = io.BytesIO()
    with av.open(file, "w", format) as container:
        added = [container.add_stream(codec, rate=rate, layout=layout) for _ in range(streams)]
        for stream in added:
            for frame in frames(stream.codec_context, samples):
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    return file.getvalue()


def frames(codec: Any, samples: Samples) -> list[av.AudioFrame]:
    count, layout = codec.channels, codec.layout.name
    packed = av.AudioFrame.from_ndarray(np.repeat(samples, count)[None], format="flt", layout=layout)
    packed.sample_rate = codec.sample_rate
    size = codec.frame_size or 1024
    resampler = av.AudioResampler(codec.format, layout, codec.sample_rate, size)
    return [*resampler.resample(packed), *resampler.resample(None)]


def example(name: str, layout: str = "mono") -> bytes:
    format, codec, rate = FORMATS[name]
    return encode(format, codec, tone(rate), rate, layout)


def wav_of(samples: Samples, rate: int = SAMPLE_RATE) -> bytes:
    return encode("wav", "pcm_f32le", samples, rate)


def refusal(data: bytes) -> str:
    with pytest.raises(RequestError) as caught:
        decode(data)
    assert caught.value.field == "reference"
    return str(caught.value)


def hertz(samples: Samples) -> float:
    return float(np.argmax(np.abs(np.fft.rfft(samples))) * SAMPLE_RATE / len(samples))


# ---- what is read ----


@pytest.mark.parametrize("layout", ["mono", "stereo"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_format_becomes_samples(name: str, layout: str) -> None:
    samples = decode(example(name, layout))
    assert samples.dtype == np.float32
    assert samples.shape == (len(samples),)
    assert len(samples) == pytest.approx(2 * SAMPLE_RATE, abs=0.05 * SAMPLE_RATE)
    assert hertz(samples) == pytest.approx(440, abs=1)
    assert np.abs(samples[4800:-4800]).max() == pytest.approx(0.3, abs=0.02)


def test_samples_keep_their_values() -> None:
    ours = tone(SAMPLE_RATE)
    assert np.array_equal(decode(wav_of(ours)), ours)


def test_channels_become_their_mean() -> None:
    left, right = tone(SAMPLE_RATE, hertz=300), tone(SAMPLE_RATE, hertz=700)
    file = io.BytesIO()
    with av.open(file, "w", "wav") as container:
        stream = container.add_stream("pcm_f32le", rate=SAMPLE_RATE, layout="stereo")
        frame = av.AudioFrame.from_ndarray(np.stack((left, right), 1).reshape(1, -1), format="flt", layout="stereo")
        frame.sample_rate = SAMPLE_RATE
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    assert np.allclose(decode(file.getvalue()), (left + right) / 2, atol=1e-7)


def test_resampling_keeps_tones_and_does_not_fold_them() -> None:
    kept = resampled(tone(48_000, hertz=1000), 48_000)
    assert len(kept) == 2 * SAMPLE_RATE
    assert np.abs(kept - tone(SAMPLE_RATE, hertz=1000))[480:-480].max() < 1e-3
    assert np.abs(resampled(tone(48_000, hertz=15_000), 48_000)[480:-480]).max() < 1e-3


def test_silence_at_the_ends_is_trimmed_and_pauses_stay() -> None:
    silence, speech = np.zeros(SAMPLE_RATE, np.float32), tone(SAMPLE_RATE, 1.0)
    samples = decode(wav_of(np.concatenate((silence, speech, silence, speech, silence))))
    margin = reference.MARGIN_WINDOWS * reference.WINDOW_SAMPLES
    assert len(samples) == 3 * SAMPLE_RATE + 2 * margin
    assert np.array_equal(samples[margin : margin + SAMPLE_RATE], speech)


def test_hiss_counts_as_silence_beside_speech() -> None:
    hiss = np.random.default_rng(0).normal(0, 1.5e-3, SAMPLE_RATE).astype(np.float32)
    assert len(trimmed(np.concatenate((hiss, tone(SAMPLE_RATE), hiss)))) == pytest.approx(2.1 * SAMPLE_RATE)


def test_a_stream_of_unknown_length_is_read_to_its_end() -> None:
    pcm = (tone(SAMPLE_RATE) * 32767).astype("<i2").tobytes()
    assert len(decode(wav.header(SAMPLE_RATE, None) + pcm)) == 2 * SAMPLE_RATE


def test_a_picture_of_the_cover_is_no_other_stream() -> None:
    file = io.BytesIO()
    with av.open(file, "w", "mp3") as container:
        sound = container.add_stream("libmp3lame", rate=44_100, layout="mono")
        cover = container.add_stream("mjpeg", rate=1)
        cover.width = cover.height = 16
        cover.pix_fmt = "yuvj420p"
        cover.disposition = av.stream.Disposition.attached_pic
        picture = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8), format="rgb24")
        container.mux(cover.encode(picture))
        container.mux(cover.encode(None))
        for frame in frames(sound.codec_context, tone(44_100)):
            container.mux(sound.encode(frame))
        container.mux(sound.encode(None))
    assert hertz(decode(file.getvalue())) == pytest.approx(440, abs=1)


def test_another_process_reads_the_same() -> None:
    data = example("opus")
    samples = decode_apart(data)
    assert np.array_equal(samples, decode(data))
    assert samples.flags.writeable


# ---- what is refused ----


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        (tone(SAMPLE_RATE, 0.9), "must be 1 to 30 seconds of speech, got 0.9 seconds between its silences"),
        (tone(SAMPLE_RATE, 30.5), "must be 1 to 30 seconds of speech, got 30.5 seconds"),
        (tone(8000, 61.0), "must be at most 30 seconds, got more than 60 seconds"),
        (np.zeros(2 * SAMPLE_RATE, np.float32), "must be speech, got silence"),
        (tone(SAMPLE_RATE, size=1e-4), "must be speech, got silence"),
        (tone(SAMPLE_RATE, size=3.0).clip(-1, 1), "must be speech that is not clipped, got 78"),
        (np.full(SAMPLE_RATE, np.nan, np.float32), "must be sound, got samples that are no numbers"),
        (np.zeros(0, np.float32), "must be a recording, got a file without a sample"),
    ],
)
def test_sound_that_is_no_reference(samples: Samples, message: str) -> None:
    rate = 8000 if len(samples) == 61 * 8000 else SAMPLE_RATE
    assert message in refusal(wav_of(samples, rate) if len(samples) else wav.header(rate, 0))


def test_loud_speech_is_not_clipped() -> None:
    assert len(decode(wav_of(tone(SAMPLE_RATE, size=0.998)))) == 2 * SAMPLE_RATE


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "must be a recording, got no bytes"),
        (b"RIFF" * (MAX_BYTES // 4 + 1), "must be at most 10 MiB, got 10.0 MiB"),
        (b"hello, here is some text", "must be an audio file, got something that begins with b'hello, h'"),
        (b"\xff\xf1\x50\x80" * 100, "must be an audio file"),  # AAC without a container
        (b"\x1a\x45\xdf\xa3" * 100, "must be an audio file"),  # Matroska
        (b"ID3", "damaged or truncated"),
        (b"RIFF\x00\x00\x00\x00WAVE", "truncated one: no samples"),
        (b"OggS", "its last page is not whole"),
        (b"fLaC", "damaged or truncated"),
        (b"\x00\x00\x00\x18ftypM4A ", "12 of 24 bytes of its last box"),
        (b"\x00\x00\x00\x0cftypM4A ", "damaged or truncated"),
    ],
)
def test_what_is_no_audio_file(data: bytes, message: str) -> None:
    assert message in refusal(data)


@pytest.mark.parametrize("share", [0.4, 0.8])
@pytest.mark.parametrize("name", FORMATS)
def test_a_truncated_file_says_so(name: str, share: float) -> None:
    data = example(name)
    assert "truncated" in refusal(data[: int(len(data) * share)])


def test_a_stream_that_was_cut_between_pages_is_truncated() -> None:
    data = example("opus")
    last = data.rindex(b"OggS")
    assert "its stream does not end" in refusal(data[:last])


def test_several_streams_are_refused() -> None:
    samples = tone(48_000)
    assert "must be one stream of audio, got streams ['audio', 'audio'] in M4A" in refusal(
        encode("mp4", "aac", samples, 48_000, streams=2)
    )
    assert "must be one stream of audio, got 2 streams in Ogg" in refusal(
        encode("ogg", "libopus", samples, 48_000, streams=2)
    )
    chained = example("opus") * 2
    assert "must be one stream of audio, got 2 streams in Ogg" in refusal(chained)


def test_other_codecs_in_an_allowed_container_are_refused() -> None:
    assert "must be WAV of pcm_u8, pcm_s16le" in refusal(encode("wav", "adpcm_ms", tone(44_100), 44_100))


def test_a_missing_library_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(
        RuntimeError, match=r"recordings are read by PyAV, which cannot be imported .*; install the package av"
    ):
        decode(wav_of_silence())


def wav_of_silence() -> bytes:
    return wav.header(SAMPLE_RATE, 4) + bytes(4)


def test_importing_it_imports_no_library() -> None:
    code = "import sys, engine.reference; print(sorted({'av', 'torch'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# ---- hostile files ----


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A whole recording that lies on the server's disk."""
    path = tmp_path / "secret.wav"
    path.write_bytes(wav_of(tone(SAMPLE_RATE)))
    return path


PLAYLISTS = (
    "#EXTM3U\n#EXT-X-TARGETDURATION:2\n#EXTINF:2,\n{path}\n#EXT-X-ENDLIST\n",
    "#EXTM3U\n#EXTINF:2,\nhttp://127.0.0.1:9/secret.wav\n#EXT-X-ENDLIST\n",
    "ffconcat version 1.0\nfile '{path}'\n",
    "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nm=audio 9 RTP/AVP 0\n",
    '<?xml version="1.0"?><MPD><BaseURL>file://{path}</BaseURL></MPD>',
    "{path}",
)


@pytest.mark.parametrize(
    "mask",
    [
        b"",
        b"RIFF\x00\x00\x00\x00WAVE",
        b"fLaC",
        b"OggS",
        b"ID3",
        b"\x00\x00\x00\x10ftypM4A \x00\x00\x00\x00\x00\x00\x00\x00",
    ],
)
@pytest.mark.parametrize("playlist", PLAYLISTS)
def test_a_playlist_opens_nothing(playlist: str, mask: bytes, secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(reference, "_nothing_else", lambda url, *_: asked.append(url))
    with pytest.raises(RequestError):
        decode(mask + playlist.format(path=secret).encode())
    assert asked == []


def box(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I4s", 8 + len(content), kind) + content


def with_box(data: bytes, path: tuple[bytes, ...], content: bytes) -> bytes:
    """MP4 boxes with other content in the one that the path leads to."""
    out, place = b"", 0
    while place < len(data):
        size, kind = struct.unpack_from(">I4s", data, place)
        inner = data[place + 8 : place + size]
        if kind == path[0]:
            inner = content if len(path) == 1 else with_box(inner, path[1:], content)
        out += box(kind, inner)
        place += size
    return out


STBL = (b"moov", b"trak", b"mdia", b"minf", b"stbl")
DREF = (b"moov", b"trak", b"mdia", b"minf", b"dinf", b"dref")


def elsewhere(path: Path) -> bytes:
    """An M4A whose samples lie in another file, by an alias record with an absolute path."""
    name = os.fsencode(path)
    name += b"\x00" * (len(name) % 2)
    fixed = bytes(10) + bytes(28) + bytes(12) + bytes(64) + bytes(16) + struct.pack(">HH", 1, 1) + bytes(16)
    alias = fixed + struct.pack(">HH", 2, len(name)) + name + struct.pack(">HH", 0xFFFF, 0)
    content = bytes(4) + struct.pack(">I", 1) + box(b"alis", bytes(4) + alias)
    return with_box(encode("ipod", "aac", tone(44_100), 44_100), DREF, content)


def test_samples_in_another_file_are_not_fetched(secret: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def ask(url: str, *_: object) -> io.BytesIO:
        asked.append(url)
        return io.BytesIO(secret.read_bytes())

    data = elsewhere(secret)
    options = {"enable_drefs": "1", "use_absolute_path": "1"}
    with av.open(io.BytesIO(data), "r", "mov", container_options=options, io_open=ask):
        assert asked == [secret.name]  # FFmpeg would
    asked.clear()
    monkeypatch.setattr(reference, "_nothing_else", ask)
    with pytest.raises(RequestError):
        decode(data)
    assert asked == []


def patched(data: bytes, place: int, value: bytes) -> bytes:
    return data[:place] + value + data[place + len(value) :]


def test_sizes_that_no_file_has() -> None:
    sound, flac = example("wav"), example("flac")
    size = sound.index(b"data") + 4
    assert "truncated" in refusal(patched(sound, size, struct.pack("<I", 2**32 - 2)))
    assert "8000 to 192000 Hz" in refusal(patched(sound, 24, struct.pack("<I", 2**31 - 1)))
    assert "8000 to 192000 Hz" in refusal(patched(sound, 24, struct.pack("<I", 1)))
    refusal(patched(sound, 22, struct.pack("<H", 65_535)))
    assert "truncated" in refusal(patched(flac, 8 + 13, b"\xff\xff\xff\xff\xff"))  # samples in all
    refusal(b"ID3\x04\x00\x00\x7f\x7f\x7f\x7f" + example("mp3"))


def bomb() -> bytes:
    """An M4A whose table promises 80 million samples of one byte in one chunk: gigabytes of an index."""
    count = 80_000_000
    data = encode("ipod", "aac", tone(44_100), 44_100)
    data = with_box(data, (*STBL, b"stsz"), struct.pack(">III", 0, 1, count))
    data = with_box(data, (*STBL, b"stts"), struct.pack(">IIII", 0, 1, count, 1024))
    return with_box(data, (*STBL, b"stsc"), struct.pack(">IIIII", 0, 1, 1, count, 1))


REPORT = """
import resource, sys
from engine.reference import RequestError, decode_apart
try:
    decode_apart(sys.stdin.buffer.read())
except RequestError:
    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the address space, or tell in bytes")
def test_a_header_that_asks_for_gigabytes_gets_none() -> None:
    """In a process whose only child is the one that decodes."""
    done = subprocess.run([sys.executable, "-c", REPORT], input=bomb(), capture_output=True, check=True)
    assert int(done.stdout) * 1024 < reference.LIMIT_BYTES


def test_another_process_tells_what_is_wrong() -> None:
    with pytest.raises(RequestError, match="must be speech, got silence") as caught:
        decode_apart(wav_of(np.zeros(2 * SAMPLE_RATE, np.float32)))
    assert caught.value.field == "reference"


def test_a_process_that_dies_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RequestError, match="cannot be decoded within the limits"):
        decode_apart(example("wav"))


EXAMPLES: dict[str, bytes] = {}


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(["wav", "flac", "opus", "mp3"]),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=8),
    head=st.booleans(),
)
def test_damaged_files_are_read_or_refused(name: str, changes: list[tuple[float, int]], head: bool) -> None:
    data = bytearray(EXAMPLES.setdefault(name, example(name)))
    for share, value in changes:
        data[int(share * (200 if head else len(data)))] = value
    try:
        samples = decode(bytes(data))
    except RequestError:
        return
    assert np.isfinite(samples).all()
    assert 1 <= len(samples) / SAMPLE_RATE <= 30
