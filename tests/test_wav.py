"""WAV while it is made: sizes patched where the file can seek, players' convention where it cannot."""

import io
import wave
from pathlib import Path

import numpy as np
import pytest

from engine.wav import HEADER_BYTES, WavWriter, header


class Pipe(io.BytesIO):
    """A stream that cannot seek, as standard output is."""

    def seekable(self) -> bool:
        return False


def test_a_file_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    pcm = np.array([0, 1, -1, 32767, -32768], dtype=np.int16)
    with path.open("wb") as file, WavWriter(file, 24000) as wav:
        wav.write(pcm[:2])
        wav.write(pcm[2:])
    with wave.open(str(path)) as back:
        assert (back.getnchannels(), back.getsampwidth(), back.getframerate(), back.getnframes()) == (1, 2, 24000, 5)
        assert back.readframes(5) == pcm.astype("<i2").tobytes()


def test_samples_are_in_the_file_before_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    with path.open("wb") as file, WavWriter(file, 24000) as wav:
        wav.write(np.zeros(1920, dtype=np.int16))
        assert path.stat().st_size == HEADER_BYTES + 3840


def test_a_pipe_keeps_the_unknown_size() -> None:
    pipe = Pipe()
    with WavWriter(pipe, 24000) as wav:
        wav.write(np.ones(3, dtype=np.int16))
    assert pipe.getvalue() == header(24000, None) + b"\1\0" * 3
    assert pipe.getvalue()[40:44] == b"\xff\xff\xff\xff"


@pytest.mark.parametrize("num_bytes", [0, 2, 3840])
def test_the_riff_size_counts_all_but_its_first_eight_bytes(num_bytes: int) -> None:
    data = header(24000, num_bytes)
    assert len(data) == HEADER_BYTES
    assert int.from_bytes(data[4:8], "little") == HEADER_BYTES - 8 + num_bytes
    assert int.from_bytes(data[40:44], "little") == num_bytes
