"""Scenarios are read as they are written, and every mistake is a sentence that names file, line, step and field."""

from pathlib import Path

import pytest

from agent.probe.scenario import (
    KINDS,
    Cue,
    Expectation,
    ScenarioError,
    Step,
    built_in,
    load,
    parse,
)

GOOD = """\
about: Somebody speaks
  over the agent.
kind: user_interruption
sources: [https://arxiv.org/abs/2503.04721]
steps:
  - name: question
    after: connected
    wait: 0.5
    sound: question
  - name: over
    after: agent
    wait: [0.6, 1.8]
    sound: wait
    gain_db: -3
  - name: echo
    after: over.end
    echo_db: -12
expect:
  - stops: over
    within_ms: 1000
  - absent: any
seconds: 3
limit: 20
"""


def written(folder: Path, text: str) -> Path:
    file = folder / "mine.yaml"
    file.write_text(text)
    return file


def test_a_scenario_is_what_its_file_says(tmp_path: Path) -> None:
    found = load(written(tmp_path, GOOD))
    assert (found.name, found.kind, found.about) == ("mine", "user_interruption", "Somebody speaks over the agent.")
    assert found.sources == ("https://arxiv.org/abs/2503.04721",)
    assert found.steps == (
        Step("question", Cue("connected", 0.5, 0.5), "question"),
        Step("over", Cue("agent", 0.6, 1.8), "wait", gain_db=-3.0),
        Step("echo", Cue("over.end"), echo_db=-12.0),
    )
    assert found.expect == (Expectation("stops", "over", 1000.0), Expectation("absent", absent="any"))
    assert (found.seconds, found.limit) == (3.0, 20.0)


def test_a_wav_file_lies_beside_the_scenario(tmp_path: Path) -> None:
    (tmp_path / "hello.wav").write_bytes(b"RIFF")
    found = load(written(tmp_path, GOOD.replace("sound: wait", "sound: hello.wav")))
    assert found.steps[1].sound == str((tmp_path / "hello.wav").resolve())


def test_all_of_the_fields_classes_come_with_the_probe() -> None:
    known = built_in()
    assert {each.kind for each in known.values()} == set(KINDS)
    assert list(known) == sorted(known)
    for name, each in known.items():
        assert each.name == name and each.about and each.expect
        assert all(source.startswith("https://arxiv.org/abs/250") for source in each.sources) and each.sources
    assert known["echo"].steps[0].echo_db == -12.0
    assert known["at_the_last_word"].steps[1].cue == Cue("agent_end", 0.05, 0.2)
    assert known["listening"].listens_only and not known["question"].listens_only


def test_something_is_expected_of_the_last_sound_of_every_scenario() -> None:
    """What the agent does about it is what the scenario is for; without that it cannot fail."""
    for name, each in built_in().items():
        expected = {one.of for one in each.expect}
        assert not each.steps or each.steps[-1].name in expected, name


@pytest.mark.parametrize(
    ("was", "becomes", "says"),
    [
        ("seconds: 3", "second: 3", "line 22, a scenario: expected one of the keys kind, about, sources, "),
        ("    gain_db: -3", "    gian_db: -3", "line 14, step over: expected one of the keys name, after, wait, "),
        ("gain_db: -3", "gain_db: loud", "line 14, step over, gain_db: expected a number from -60 to 20, got 'loud'"),
        ("gain_db: -3", "gain_db: .nan", "line 14, step over, gain_db: expected a number from -60 to 20, got '.nan'"),
        ("gain_db: -3", "gain_db: [1]", "line 14, step over, gain_db: expected a number from -60 to 20, got a list"),
        ("wait: [0.6, 1.8]", "wait: [1.8, 0.6]", "line 12, step over, wait: expected one number of seconds, or the"),
        ("wait: [0.6, 1.8]", "wait: [0.6]", "line 12, step over, wait: expected one number of seconds, or the"),
        ("wait: [0.6, 1.8]", "wait: -1", "line 12, step over, wait: expected a number from 0 to 60, got '-1'"),
        ("after: agent", "after: agnet", "line 11, step over, after: expected connected, ready, agent, agent_"),
        ("after: agent", "after: over", "line 11, step over, after: expected an earlier step, over is this one"),
        ("after: agent", "after: echo", "line 11, step over, after: expected an earlier step, echo comes later"),
        ("after: agent", "after: echo.end", "line 11, step over, after: expected an earlier step, echo comes later"),
        ("name: over", "name: quiet", "line 10, step quiet, name: expected small letters, digits and _, and none of"),
        ("name: over", "name: question", "line 10, step question, name: expected a name of its own"),
        ("sound: wait", "sound: wiat", "line 13, step over, sound: expected one of question, another, wait, "),
        ("sound: wait", "sound: no.wav", "line 13, step over, sound: expected a wav file, there is none at "),
        ("    sound: wait\n", "", "line 10, step over: expected either sound or echo_db"),
        ("    echo_db: -12", "    echo_db: -12\n    gain_db: 1", "line 18, step echo, gain_db: expected none beside"),
        ("kind: user_interruption", "kind: rude", "line 3, a scenario, kind: expected one of user_interruption, "),
        ("kind: user_interruption\n", "", "line 1, a scenario: expected the key kind"),
        ("stops: over", "stops: nobody", "line 19, expect, stops: expected the name of a step, got 'nobody'"),
        ("stops: over", "stops: echo", "line 19, expect, stops: expected the name of a step, got 'echo'"),
        ("stops: over", "stop: over", "line 19, expect: expected one of the keys answers, stops, "),
        ("    within_ms: 1000\n", "", "line 19, expect: expected within_ms beside stops"),
        ("    within_ms: 1000\n", "    waits: over\n", "expected one of answers, stops, continues, resumes, waits and"),
        ("absent: any", "absent: all", "line 21, expect, absent: expected one of any, zero_padding, "),
        ("seconds: 3", "seconds: 3\nseconds: 4", "line 23, a scenario: expected seconds once"),
        ("seconds: 3", "seconds: true", "line 22, a scenario, seconds: expected a number from 0.1 to 60, got 'true'"),
        ("about: Somebody", "about: [", "line 3: expected YAML: "),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, was: str, becomes: str, says: str) -> None:
    assert was in GOOD
    file = written(tmp_path, GOOD.replace(was, becomes, 1))
    with pytest.raises(ScenarioError) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}, line ") and says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_may_wait_for_an_echos_end(tmp_path: Path) -> None:
    more = "  - name: last\n    after: echo.end\n    sound: no\nexpect:"
    with pytest.raises(ScenarioError, match="step last, after: expected something that ends, the echo echo lasts"):
        parse(GOOD.replace("expect:", more), "mine", tmp_path)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "line 1: expected a scenario, found nothing"),
        (b"- 1", "line 1, a scenario: expected the keys kind, about"),
        (b"\xff\xfe\xfd", "must be text in UTF-8"),
        (b"a: \x07", "the character 7 is not allowed"),
        (b"[" * 20_000, "nested too deep"),
        (b"#" * 70_000, "at most 65536 bytes"),
    ],
)
def test_what_is_no_scenario_is_said(tmp_path: Path, data: bytes, says: str) -> None:
    file = tmp_path / "mine.yaml"
    file.write_bytes(data)
    with pytest.raises(ScenarioError, match=r"mine\.yaml") as caught:
        load(file)
    assert says in str(caught.value)


def test_a_file_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"none\.yaml cannot be read: No such file or directory"):
        load(tmp_path / "none.yaml")
