"""voice_folder.py and the command `voice`: what is saved is read again, nothing is saved without consent or licence."""

from __future__ import annotations

import json
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from test_cloning import wav
from voices import KINDS

from engine.__main__ import main
from engine.checks import RequestError
from engine.core import Reference
from engine.messages import EMBEDDED_VOICE
from engine.traffic import SPEC
from engine.voice_folder import Card, NamedVoice, VoiceFolder

CARD = Card("Anna's, who signed for it on 2026-11-30", "CC0-1.0", "checkpoint", "research only")
FRAMES = tuple(tuple(range(i, i + 16)) for i in range(25))
ANNA = NamedVoice("anna-2", Reference("good day to you", FRAMES), CARD, 0.08)
TEXT = "good day to you"
TINY = ("--voice", str(KINDS["breeze_tts_2"]), "--device", "cpu", "--in-process")


def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    folder = VoiceFolder(tmp_path / "new" / "voices")
    folder.write(ANNA)
    assert folder.names() == ["anna-2"]
    assert folder.read("anna-2") == ANNA
    assert ANNA.seconds == pytest.approx(2.0)
    assert [file.name for file in folder.path.iterdir()] == ["anna-2.json"], "nothing else is left behind"
    folder.remove("anna-2")
    assert folder.names() == []


def test_a_name_that_is_taken_is_not_taken_away(tmp_path: Path) -> None:
    folder = VoiceFolder(tmp_path)
    folder.write(ANNA)
    with pytest.raises(FileExistsError):
        folder.write(replace(ANNA, frame_seconds=0.04))
    assert folder.read("anna-2") == ANNA
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("field", ["consent", "licence"])
@pytest.mark.parametrize("value", ["", "  ", "x" * 2001, None])
def test_nothing_is_saved_without_consent_and_licence(field: str, value: str) -> None:
    with pytest.raises(RequestError, match=f"{field} must be") as raised:
        replace(CARD, **{field: value})
    assert raised.value.field == field


@given(st.text(max_size=70))
def test_a_name_is_no_path(name: str) -> None:
    harmless = 0 < len(name) <= 64 and set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    folder = VoiceFolder(Path("/nonexistent"))
    with pytest.raises(RequestError, match=r"voice must be (a name of|one of those)") as raised:
        folder.read(name)
    assert ("a name of" in str(raised.value)) != harmless


@pytest.mark.parametrize("name", ["../anna", "a/b", "", "A", "anna.json", "ä", "a\n", "x" * 65])
def test_other_names_are_refused_everywhere(tmp_path: Path, name: str) -> None:
    folder = VoiceFolder(tmp_path)
    for use in (folder.read, folder.remove, lambda name: replace(ANNA, name=name)):
        with pytest.raises(RequestError, match="voice must be a name of a-z"):
            use(name)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        json.dumps({**ANNA.to_dict(), "frames": []}),
        json.dumps({**ANNA.to_dict(), "frames": [["x"]]}),
        json.dumps({**ANNA.to_dict(), "frames": 3}),
        json.dumps({**ANNA.to_dict(), "card": {"consent": "yes"}}),
        json.dumps({**ANNA.to_dict(), "frame_seconds": "slow"}),
        json.dumps({**ANNA.to_dict(), "frame_seconds": 10**400}),
        json.dumps({**ANNA.to_dict(), "vector": [-(10**400)]}),
        "\udcff",
    ],
)
def test_a_damaged_file_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "anna.json").write_text(text, errors="surrogateescape")
    with pytest.raises(RequestError, match=r"voice anna must be whole, .*anna\.json is damaged"):
        VoiceFolder(tmp_path).read("anna")


def test_who_is_not_there_is_told_who_is(tmp_path: Path) -> None:
    VoiceFolder(tmp_path).write(ANNA)
    with pytest.raises(RequestError, match=r"one of those that are there \(anna-2\), got 'bert'"):
        VoiceFolder(tmp_path).read("bert")


def test_another_codecs_codes_are_refused() -> None:
    ANNA.check(SPEC)
    with pytest.raises(RequestError, match="must have 8 codes in each 80 ms for simulated, but anna-2 has 16 in 80 ms"):
        ANNA.check(replace(SPEC, num_codebooks=8))
    with pytest.raises(RequestError, match="40 ms"):
        ANNA.check(replace(SPEC, samples_per_frame=960))


def test_a_speakers_vector_must_be_as_wide_as_the_voice_reads_it() -> None:
    spec, wide = replace(SPEC, vector_width=3), replace(ANNA.reference, vector=(0.5, -1.0, 2.0))
    replace(ANNA, reference=wide).check(spec)
    replace(ANNA, reference=wide).check(SPEC)  # which reads none
    for vector, has in ((), "none"), ((0.5, 1.0), "2"):
        with pytest.raises(
            RequestError, match=f"vector of 3 numbers for simulated, but anna-2 has {has}; add it again"
        ):
            replace(ANNA, reference=replace(wide, vector=vector)).check(spec)


# ---- the commands ----


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    path = tmp_path / "anna.wav"
    path.write_bytes(wav(2))
    return path


ROUNDING = 2
"""Of 32768: chunks are as large as time allows, and their size decides the last bit."""


def sound(path: Path) -> NDArray[np.int16]:
    with wave.open(str(path)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16)


def voice(*args: object) -> int:
    return main(["voice", *map(str, args)])


def test_added_listed_spoken_with_and_removed(
    tmp_path: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = "--voices", tmp_path / "voices"
    card = "--consent", CARD.consent, "--licence", CARD.licence
    added = voice("add", "anna", "--audio", recording, "--text", TEXT, *card, *where, *TINY)
    assert added == 0
    assert "whose licence is: " in capsys.readouterr().err
    saved = VoiceFolder(tmp_path / "voices").read("anna")
    assert (saved.card.consent, saved.card.licence, saved.reference.text) == (CARD.consent, CARD.licence, TEXT)
    assert voice("list", *where) == 0
    listed = "".join(capsys.readouterr().out.split())
    assert "anna" in listed
    assert "CC0-1.0" in listed
    outputs = [tmp_path / f"{i}.wav" for i in range(3)]
    for output, like in zip(
        outputs,
        (("--ref-voice", "anna", *where), ("--ref-audio", recording, "--ref-text", TEXT), ()),
        strict=True,
    ):
        assert main(["say", "hello there", "-o", str(output), "--max-frames", "5", *map(str, like), *TINY]) == 0
    assert sound(outputs[0]) == pytest.approx(sound(outputs[1]), abs=ROUNDING)
    assert sound(outputs[0]) != pytest.approx(sound(outputs[2]), abs=ROUNDING)
    assert voice("add", "anna", "--audio", recording, "--text", TEXT, *card, *where, *TINY) == 2
    assert "anna is there already" in capsys.readouterr().err
    assert voice("remove", "anna", *where) == 0
    assert voice("remove", "anna", *where) == 2


def test_a_recording_may_be_directed(tmp_path: Path, recording: Path) -> None:
    said = ["say", "hello there", "--max-frames", "5", "--ref-audio", str(recording), "--ref-text", TEXT, *TINY]
    outputs = []
    for name, manner in (("clone", []), ("slow", ["--instruction", "slow and sad"])):
        outputs.append(tmp_path / f"{name}.wav")
        assert main([*said, "-o", str(outputs[-1]), *manner]) == 0
    outputs.append(tmp_path / "off.wav")
    assert main([*said, "-o", str(outputs[-1]), "--instruction", "slow and sad", "--cfg-scale", "0"]) == 0
    clone, slow, off = (sound(output) for output in outputs)
    assert off == pytest.approx(clone, abs=ROUNDING), "without guidance nobody hears the instruction"
    assert off != pytest.approx(slow, abs=ROUNDING)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--ref-audio", "x.wav"), "--ref-audio needs --ref-text"),
        (("--ref-text", "hello"), "--ref-audio needs --ref-text"),
        (("--ref-voice", "anna"), "--ref-voice needs --voices"),
        (("--voices", "x"), "--ref-voice needs --voices"),
        (("--ref-audio", "x.wav", "--ref-voice", "anna"), "two voices"),
        (("--ref-audio", "x.wav", "--ref-text", " "), "must be what the recording says, got nothing"),
        (("--ref-audio", "/nonexistent/x.wav", "--ref-text", "hello"), "/nonexistent/x.wav: No such file"),
        (("--ref-audio", "/dev/zero", "--ref-text", "hello"), "at most 10 MiB"),
    ],
)
def test_options_that_do_not_fit_are_told_before_the_voice_is_loaded(
    options: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.__main__.started", lambda config: pytest.fail("nothing is to be loaded"))
    assert main(["say", "hello", "-o", "out.wav", *options]) == 2
    assert says in capsys.readouterr().err


def test_the_embedded_voice_says_the_same_everywhere(
    tmp_path: Path, recording: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    VoiceFolder(tmp_path / "voices").write(ANNA)
    where = "--voices", str(tmp_path / "voices")
    mini = "--voice", str(EMBEDDED_VOICE), "--device", "cpu", "--in-process"
    say = "say", "Hello.", "-o", str(tmp_path / "out.wav")
    card, told = ("--consent", "mine", "--licence", "mine"), []
    for command in (
        [*say, "--ref-audio", str(recording), "--ref-text", TEXT, *mini],
        [*say, "--ref-voice", "anna-2", *where, *mini],
        ["voice", "add", "x", "--audio", str(recording), "--text", TEXT, *card, *where, *mini],
    ):
        assert main(command) == 2
        told.append(capsys.readouterr().err.splitlines()[-1])
    assert len(set(told)) == 1
    assert "speaks as itself only" in told[0]
    assert not (tmp_path / "out.wav").exists()
