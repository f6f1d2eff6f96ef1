"""WAV while it is made: a whole file after every write where it may be, players' convention where it may not."""

import io
import wave
from pathlib import Path

import numpy as np
import pytest

from engine.wav import HEADER_BYTES, WavWriter, header


def samples(path: Path) -> bytes:
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24000)
        return file.readframes(file.getnframes())


def test_a_file_is_whole_after_every_write(tmp_path: Path) -> None:
    """Whatever ends the program in between, SIGKILL too, leaves a file that plays."""
    path = tmp_path / "out.wav"
    pcm = np.array([0, 1, -1, 32767, -32768], dtype=np.int16)
    with path.open("wb") as file:
        wav = WavWriter(file, 24000, sized=True)
        assert samples(path) == b""
        wav.write(pcm[:2])
        assert samples(path) == pcm[:2].astype("<i2").tobytes()
        wav.write(pcm[2:])
        assert samples(path) == pcm.astype("<i2").tobytes()
    assert path.read_bytes() == header(24000, 10) + pcm.astype("<i2").tobytes()


def test_samples_are_in_the_file_before_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    for sized in (True, False):
        with path.open("wb") as file:
            WavWriter(file, 24000, sized=sized).write(np.zeros(1920, dtype=np.int16))
            assert path.stat().st_size == HEADER_BYTES + 3840


def test_a_stream_keeps_the_unknown_size_and_is_never_gone_back_in() -> None:
    class Pipe(io.BytesIO):
        def seek(self, *_: int) -> int:
            raise AssertionError("a stream has one direction")

    pipe = Pipe()
    WavWriter(pipe, 24000, sized=False).write(np.ones(3, dtype=np.int16))
    assert pipe.getvalue() == header(24000, None) + b"\1\0" * 3
    assert pipe.getvalue()[40:44] == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("num_bytes", [0, 2, 3840])
def test_the_riff_size_counts_all_but_its_first_eight_bytes(num_bytes: int) -> None:
    data = header(24000, num_bytes)
    assert len(data) == HEADER_BYTES
    assert int.from_bytes(data[4:8], "little") == HEADER_BYTES - 8 + num_bytes
    assert int.from_bytes(data[40:44], "little") == num_bytes
