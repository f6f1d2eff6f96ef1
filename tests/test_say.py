"""The command `say`: a WAV while it is spoken, what stays of one that cannot be finished, and its settings."""

from __future__ import annotations

import io
import sys
import wave
from argparse import Namespace
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from engine.__main__ import SAMPLING, main, sampling
from engine.checks import RequestError
from engine.core import (
    Chunk,
    ErrorCode,
    Failed,
    Finished,
    FinishReason,
    Mode,
    ModelSpec,
    Output,
    Request,
    RequestStats,
    SamplingParams,
)
from engine.say import check_output, say

SHORT = ("say", "Good morning.", "--max-frames", "20", "--device", "cpu", "--in-process")
SPEC = ModelSpec("scripted", "", 24000, 1920, 2, 64, frozenset({Mode.PLAIN}), SamplingParams())
REQUEST = Request("hello", SPEC.sampling)
STATS = RequestStats(0.0, 0.1, 0.5, 2, 0.16, {})
END = Finished(1, 0, FinishReason.END, STATS)
FAILED = Failed(1, 0, ErrorCode.ENGINE_DIED, "the engine ended")


def chunk(frame: int) -> Chunk:
    return Chunk(1, 0, frame, np.full(1920, frame + 1, np.int16), np.zeros((1, 2), np.int16), 1.0)


class ScriptedRuntime:
    """Says what the script has. `between` is called after each output was taken."""

    spec = SPEC

    def __init__(self, *script: Output | BaseException, between: Callable[[], None] = lambda: None) -> None:
        self.script = script
        self.between = between
        self.closed = False

    def stream(self, request: Request) -> Generator[Output, None, None]:
        try:
            for output in self.script:
                if isinstance(output, BaseException):
                    raise output
                yield output
                self.between()
        finally:
            self.closed = True


def spoken(path: Path) -> int:
    """Samples in a file that must be a whole WAV."""
    with wave.open(str(path)) as wav:
        return wav.getnframes()


def tell(path: Path | str, *script: Output | BaseException) -> RequestStats:
    return say(ScriptedRuntime(*script), REQUEST, str(path), Console(quiet=True))  # type: ignore[arg-type]


def test_it_writes_while_it_generates(tmp_path: Path) -> None:
    path = tmp_path / "out.wav"
    seen: list[int] = []
    runtime = ScriptedRuntime(chunk(0), chunk(1), END, between=lambda: seen.append(spoken(path)))
    assert say(runtime, REQUEST, str(path), Console(quiet=True)) == STATS  # type: ignore[arg-type]
    assert seen == [1920, 3840]
    assert spoken(path) == 3840


def test_a_refused_request_touches_no_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.wav"
    path.write_bytes(b"somebody's work")
    with pytest.raises(RequestError, match="the engine ended"):
        tell(path, FAILED)
    assert path.read_bytes() == b"somebody's work"
    with pytest.raises(RequestError, match="the engine ended"):
        tell(tmp_path / "new.wav", FAILED)
    assert not (tmp_path / "new.wav").exists()


@pytest.mark.parametrize("ending", [FAILED, OSError("the disk is full"), KeyboardInterrupt()])
def test_what_cannot_be_finished_is_removed_if_it_is_ours(tmp_path: Path, ending: Output | BaseException) -> None:
    old, new = tmp_path / "old.wav", tmp_path / "new.wav"
    old.write_bytes(b"somebody's work")
    for path in (old, new):
        with pytest.raises((RequestError, OSError, KeyboardInterrupt)):
            tell(path, chunk(0), ending)
    assert spoken(old) == 1920, "overwritten as asked, but never removed"
    assert not new.exists()


def test_a_link_is_followed_and_kept(tmp_path: Path) -> None:
    link = tmp_path / "link.wav"
    link.symlink_to(tmp_path / "target.wav")
    with pytest.raises(RequestError):
        tell(link, chunk(0), FAILED)
    assert link.is_symlink()
    tell(link, chunk(0), END)
    assert spoken(tmp_path / "target.wav") == 1920


def test_an_utterance_without_audio_is_an_empty_wav(tmp_path: Path) -> None:
    tell(tmp_path / "out.wav", END)
    assert spoken(tmp_path / "out.wav") == 0


def test_a_caller_that_fails_stops_the_engine(tmp_path: Path) -> None:
    runtime = ScriptedRuntime(chunk(0), chunk(1), END)
    with pytest.raises(OSError, match="no/folder"):
        say(runtime, REQUEST, str(tmp_path / "no" / "folder" / "out.wav"), Console(quiet=True))  # type: ignore[arg-type]
    assert runtime.closed


def test_standard_output_may_be_the_end_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in `say -o - >> file`: what stands there before stays."""
    path = tmp_path / "file"
    path.write_bytes(b"before")
    with path.open("r+b") as file:
        file.seek(0, io.SEEK_END)
        monkeypatch.setattr(sys, "stdout", SimpleNamespace(buffer=file))
        tell("-", chunk(0), END)
        monkeypatch.undo()
        data = path.read_bytes()
    assert data[:10] == b"beforeRIFF"
    assert data[6 + 40 : 6 + 44] == b"\xff\xff\xff\xff"
    assert len(data) == 6 + 44 + 3840


# ---- settings ----


def settings(own: SamplingParams, **given: float) -> SamplingParams:
    return sampling(Namespace(**{**dict.fromkeys(SAMPLING), **given}), own)


def test_settings_are_the_voices_own_unless_given() -> None:
    own = SamplingParams(temperature=0.3, min_frames=3, max_frames=375)
    assert settings(own) == own
    assert settings(own, seed=7, top_k=0) == replace(own, seed=7, top_k=0)


def test_the_voices_minimum_yields_to_a_shorter_maximum() -> None:
    own = SamplingParams(min_frames=3, max_frames=375)
    assert settings(own, max_frames=1) == replace(own, min_frames=1, max_frames=1)
    assert settings(own, min_frames=0) == replace(own, min_frames=0)
    with pytest.raises(RequestError, match="min_frames must be from 0 to 1, got 2"):
        settings(own, min_frames=2, max_frames=1)


# ---- through the command ----


def test_say_writes_a_wav(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.wav"
    assert main([*SHORT, "-o", str(path), "--stats", "--seed", "7"]) == 0
    with wave.open(str(path)) as wav:
        assert wav.getframerate() == 24000
        assert wav.getnframes() % 1920 == 0
        assert 3 * 1920 <= wav.getnframes() <= 20 * 1920
    told = capsys.readouterr().err
    for word in ("TTFA", "RTF", "text", "prefill", "decode", "depth", "codec"):
        assert word in told


def test_say_to_standard_output(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main([*SHORT, "-o", "-"]) == 0
    data = capsysbinary.readouterr().out
    assert data[:4] == b"RIFF"
    assert (len(data) - 44) % 3840 == 0
    assert len(data) > 44 + 3 * 3840


def test_say_one_frame_in_bf16(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.wav"
    argv = ["say", "Yes.", "--max-frames", "1", "--dtype", "bf16", "--device", "cpu", "--in-process", "-o", str(path)]
    assert main(argv) == 0
    assert spoken(path) == 1920
    assert "cut after 1 frames" in capsys.readouterr().err


LONG = (
    "The old harbour lies quiet in the early morning, and only a few gulls sit upon the wall. A fisherman carries his "
    "nets down to the boat, and his daughter brings him bread and a can of hot coffee. They talk for a while about the "
    "weather, which has been kind to them all week, and about the price of mackerel in town. Then the engine starts, "
    "and the girl waves."
)


def test_a_text_as_long_as_allowed_is_heard_to_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The voice's limit is 360 characters; it is the model, not max_frames, that ends."""
    path = tmp_path / "out.wav"
    assert 350 < len(LONG) <= 360
    assert main(["say", LONG, "-o", str(path), "--device", "cpu", "--in-process"]) == 0
    assert "cut" not in capsys.readouterr().err
    assert 10 * 24000 < spoken(path) < 30 * 24000


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("say", "", "-o", "OUT"), "something to say"),
        (("say", "x" * 361, "-o", "OUT"), "text must have at most 360 characters, got 361"),
        (("say", "hello", "-o", "OUT", "--instruction", "whisper"), "instruction"),
        (("say", "hello", "-o", "OUT", "--voice", "nowhere"), "nowhere"),
        (("say", "hello", "-o", "no/such/folder/out.wav"), "no/such/folder"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_no_file(
    argv: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.wav"
    real = [str(path) if word == "OUT" else word for word in argv]
    assert main([*real, "--device", "cpu", "--in-process"]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert "Traceback" not in told
    assert not path.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is how Linux plays a full disk")
def test_a_full_disk_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SHORT, "-o", "/dev/full"]) == 2
    assert "No space left" in capsys.readouterr().err
    assert Path("/dev/full").exists()


def test_a_name_of_another_format_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "out.mp3"
    assert main([*SHORT, "-o", str(path)]) == 2
    assert "say writes WAV: expected a name that ends in .wav, or - for standard" in capsys.readouterr().err
    assert not path.exists()
    for name in ("-", "a.wav", "b.WAV", "/dev/full"):
        check_output(name)
