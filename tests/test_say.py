"""The engine's command line: say writes a WAV while it generates, and every mistake is one line."""

import sys
import wave
from pathlib import Path

import pytest

from engine.__main__ import main

SHORT = ("say", "Good morning.", "--max-frames", "20", "--device", "cpu", "--in-process")


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


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("say", "", "-o", "OUT"), "something to say"),
        (("say", "hello", "-o", "OUT", "--temperature", "-1"), "temperature must be"),
        (("say", "hello", "-o", "OUT", "--top-p", "nan"), "top_p must be"),
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


def test_unknown_options_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["say", "hello", "-o", "x.wav", "--sead", "3"])
    assert exit_info.value.code == 2
    assert "--sead" in capsys.readouterr().err


def test_the_commands_need_no_webrtc_package() -> None:
    import subprocess

    code = (
        "import sys; from engine.__main__ import main\n"
        "import engine.say, engine.bench, engine.verify, engine.simulator, engine.calibrate, engine.worker\n"
        "assert not {'aiortc', 'av', 'aiohttp'} & set(sys.modules), 'a WebRTC package was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
