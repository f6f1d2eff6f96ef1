"""What a user does in one call, and what is expected of the agent; read from YAML. It knows neither networks nor sound.

    about: Somebody speaks over the agent in the middle of its reply.
    kind: user_interruption
    sources: [https://arxiv.org/abs/2503.04721]
    steps:
      - name: question
        after: connected               # what the step waits for: see Cue
        wait: 0.5                      # seconds since; or two, and each trial draws its own between them
        sound: question                # a name of agent.probe.sounds, or a wav file beside this one
      - name: interruption
        after: agent
        wait: [0.6, 1.8]
        sound: wait
        gain_db: -3                    # or instead of a sound: echo_db, the level at which the agent hears itself
    expect:
      - stops: interruption            # one of the kinds of Expectation, and the step that it speaks of
        within_ms: 1000
      - absent: any                    # a finding that is not to be made
    seconds: 2
    limit: 30

The file's name without `.yaml` is the scenario's. Read as nodes, not as values, as scripts are: every error can name
its line, and `no` or `12:30` stay the words that they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import isfinite
from pathlib import Path

import yaml

from agent.probe.findings import FINDINGS
from agent.probe.sounds import NAMES
from agent.script import composed
from agent.trouble import SettingsError

KINDS = (
    "user_interruption",
    "backchannel",
    "cough",
    "side_talk",
    "background",
    "echo",
    "hesitation",
    "double_interruption",
    "early_interruption",
    "late_interruption",
    "continuity",
)
EVENTS = ("connected", "ready", "agent", "agent_end", "quiet")
EXPECTED = ("answers", "stops", "continues", "resumes", "waits")
BOUNDED = ("answers", "stops", "continues", "resumes")
"""Expectations that are nothing without a time: within_ms has to be given."""
READY_SECONDS = 1.0
QUIET_SECONDS = 0.6
"""An agent that has been silent for so long is quiet, see Cue."""
MAX_FILE_BYTES = 64 * 1024
MAX_STEPS = 32
SCENARIOS = Path(__file__).with_name("scenarios")


@dataclass(frozen=True, slots=True)
class Cue:
    """When a step begins: so many seconds, drawn evenly between `least` and `most` with the trial's seed, after what
    `after` names:

    connected    the call is up
    ready        the call has been up for a second, and an agent that speaks first is silent for 0.6 s
    agent        the agent has become audible since the last step that has been said (or the call's beginning)
    agent_end    the agent will fall silent: `least` and `most` are seconds BEFORE it, by the length that the same reply
                 had in a rehearsal (the scenario without this and later steps)
    quiet        the agent was audible, and has been silent for 0.6 s since
    STEP         the beginning of an earlier step
    STEP.end     its end
    """

    after: str
    least: float = 0.0
    most: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """One sound of the user's side. `sound` is a name of `agent.probe.sounds`, or the absolute path of a wav file.

    echo_db: instead of a sound, from the cue on the microphone hears what the listener hears, that much louder, until
    the call's end; gain_db: of the sound."""

    name: str
    cue: Cue
    sound: str = ""
    gain_db: float = 0.0
    echo_db: float | None = None


@dataclass(frozen=True, slots=True)
class Expectation:
    """What is to become of the agent's speech because of the step `of`. One of:

    answers   the agent is audible within within_ms of the step's end; without a step, of the call's being up
    stops     the agent is silent within within_ms of the step's beginning, for as long as the step's sound goes on
    continues the agent is not silent, for longer than within_ms in all, until the reply's own end
    resumes   it may fall silent, and is audible again within within_ms of the step's end, with what comes next in the
              same reply
    waits     the agent is not audible, for longer than within_ms in all, from the step's beginning until it is silent
              for the step after it
    absent    the finding `absent` (a name of FINDINGS, or `any`) is not made in this trial; what the network did
              does not count
    """

    kind: str
    of: str = ""
    within_ms: float = 0.0
    absent: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """`kind` is the field's class: user_interruption, backchannel, cough, side_talk, background, echo, hesitation,
    double_interruption, early_interruption, late_interruption, continuity. `seconds`: the call ends that long after the
    last step's end or the agent's last sound, whichever is later, and half a second after the time in which an answer
    is expected, where there is none; `limit`: and never later than this after its beginning."""

    name: str
    kind: str
    about: str
    sources: tuple[str, ...]
    steps: tuple[Step, ...]
    expect: tuple[Expectation, ...]
    seconds: float = 2.0
    limit: float = 30.0

    @property
    def listens_only(self) -> bool:
        """Nobody speaks to the agent: it can be a server without a microphone's way in, as with WHEP."""
        return not self.steps


class ScenarioError(SettingsError):
    """A scenario that cannot be read; the text names the file, the line, the step, the field, and what was expected."""


def built_in() -> dict[str, Scenario]:
    """Those that come with the probe, by name, in the order of their names."""
    return {path.stem: load(path) for path in sorted(SCENARIOS.glob("*.yaml"))}


def load(path: Path) -> Scenario:
    """Raises ScenarioError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ScenarioError(f"the scenario {path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_FILE_BYTES:
        raise ScenarioError(f"the scenario {path} must have at most {MAX_FILE_BYTES} bytes")
    try:
        return parse(data.decode("utf-8-sig"), path.stem, path.parent)
    except UnicodeDecodeError as error:
        raise ScenarioError(f"the scenario {path} must be text in UTF-8, found other bytes") from error
    except ScenarioError as error:
        raise ScenarioError(f"{path}, {error}") from None


def parse(text: str, name: str, folder: Path) -> Scenario:
    """A scenario of that name, whose wav files lie in `folder`. Raises ScenarioError, which begins with the line."""
    top = Fields.of(
        composed(text, "a scenario", ScenarioError),
        "a scenario",
        ("kind", "about"),
        ("sources", "steps", "expect", "seconds", "limit"),
    )
    steps = _steps(top, folder)
    scenario = Scenario(
        name=name,
        kind=top.choice("kind", KINDS),
        about=" ".join(top.words("about").split()),
        sources=tuple(top.texts("sources")),
        steps=steps,
        expect=tuple(_expectation(node, steps) for node in top.items("expect")),
        seconds=top.number("seconds", 2.0, 0.1, 60.0),
        limit=top.number("limit", 30.0, 1.0, 600.0),
    )
    if not scenario.expect:
        raise top.wrong(None, "the key expect, with a list of what is to become of the agent's speech")
    return scenario


# ---- steps and expectations ---------------------------------------------------------------------------------------


def _steps(top: Fields, folder: Path) -> tuple[Step, ...]:
    found = list[Step]()
    nodes = list(top.items("steps"))
    if len(nodes) > MAX_STEPS:
        raise top.wrong("steps", f"at most {MAX_STEPS} steps, got {len(nodes)}")
    names = [_name_of(node) for node in nodes]
    for node in nodes:
        found.append(_step(node, found, names[len(found) :], folder))
    return tuple(found)


def _name_of(node: yaml.Node) -> str:
    """What a step will be called, as far as that can be told before it is read."""
    pairs = node.value if isinstance(node, yaml.MappingNode) else ()
    return next((str(value.value) for key, value in pairs if key.value == "name"), "")


def _step(node: yaml.Node, earlier: Sequence[Step], later: Sequence[str], folder: Path) -> Step:
    where = f"step {_name_of(node) or len(earlier) + 1}"
    keys = Fields.of(node, where, ("name", "after"), ("wait", "sound", "gain_db", "echo_db"))
    name = keys.words("name")
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in EVENTS:
        raise keys.wrong("name", f"small letters, digits and _, and none of {', '.join(EVENTS)}, got {name!r:.50}")
    if name in [step.name for step in earlier]:
        raise keys.wrong("name", f"a name of its own, {name} is an earlier step's")
    if ("sound" in keys.nodes) == ("echo_db" in keys.nodes):
        raise keys.wrong(None, "either sound or echo_db")
    if "echo_db" in keys.nodes and "gain_db" in keys.nodes:
        raise keys.wrong("gain_db", "none beside echo_db, which is a level already")
    return Step(
        name=name,
        cue=_cue(keys, earlier, later),
        sound=_sound(keys, folder) if "sound" in keys.nodes else "",
        gain_db=keys.number("gain_db", 0.0, -60.0, 20.0),
        echo_db=keys.number("echo_db", 0.0, -60.0, 20.0) if "echo_db" in keys.nodes else None,
    )


def _cue(keys: Fields, earlier: Sequence[Step], later: Sequence[str]) -> Cue:
    after = keys.words("after")
    step = after.removesuffix(".end")
    known = {each.name: each for each in earlier}
    if step in later:
        raise keys.wrong("after", f"an earlier step, {step} {'is this one' if step == later[0] else 'comes later'}")
    if after not in EVENTS and step not in known:
        raise keys.wrong("after", f"{', '.join(EVENTS)}, an earlier step or its .end, got {after!r:.50}")
    if after.endswith(".end") and known[step].echo_db is not None:
        raise keys.wrong("after", f"something that ends, the echo {step} lasts until the call's end")
    least, most = keys.span("wait")
    return Cue(after, least, most)


def _sound(keys: Fields, folder: Path) -> str:
    sound = keys.words("sound")
    if not sound.endswith(".wav"):
        if sound not in NAMES:
            raise keys.wrong("sound", f"one of {', '.join(NAMES)}, or a file that ends with .wav, got {sound!r:.50}")
        return sound
    file = (folder / sound).resolve()
    if not file.is_file():
        raise keys.wrong("sound", f"a wav file, there is none at {file}")
    return str(file)


def _expectation(node: yaml.Node, steps: Sequence[Step]) -> Expectation:
    keys = Fields.of(node, "expect", (), (*EXPECTED, "absent", "within_ms"))
    kinds = [kind for kind in (*EXPECTED, "absent") if kind in keys.nodes]
    if len(kinds) != 1:
        raise keys.wrong(None, f"one of {', '.join(EXPECTED)} and absent, got {' and '.join(kinds) or 'none'}")
    kind = kinds[0]
    if kind == "absent":
        return _absent(keys)
    of = keys.words(kind)
    listening = kind == "answers" and of == "connected"
    if not listening and of not in [step.name for step in steps if step.echo_db is None or kind == "continues"]:
        raise keys.wrong(kind, f"the name of a step{' or connected' * (kind == 'answers')}, got {of!r:.50}")
    if kind in BOUNDED and "within_ms" not in keys.nodes:
        raise keys.wrong(None, f"within_ms beside {kind}")
    return Expectation(kind, "" if listening else of, keys.number("within_ms", 0.0, 0.0, 60_000.0))


def _absent(keys: Fields) -> Expectation:
    if "within_ms" in keys.nodes:
        raise keys.wrong("within_ms", "none beside absent")
    return Expectation("absent", absent=keys.choice("absent", ("any", *FINDINGS)))


# ---- YAML ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Fields:
    """The values of one mapping by key, and where it stands: `a scenario`, or a step's name."""

    node: yaml.Node
    where: str
    nodes: dict[str, yaml.Node] = field(default_factory=dict)

    @classmethod
    def of(cls, node: yaml.Node, where: str, needed: Sequence[str], others: Sequence[str]) -> Fields:
        """Raises ScenarioError for anything but a mapping, and for keys that are unknown, missing or there twice."""
        self, keys = cls(node, where), (*needed, *others)
        if not isinstance(node, yaml.MappingNode):
            raise self.wrong(None, f"the keys {', '.join(keys)}, got {_shown(node)}")
        for key, value in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else ""
            wrong = partial(_wrong, key, where)
            if name not in keys:
                raise wrong(f"one of the keys {', '.join(keys)}, got {_shown(key)}")
            if name in self.nodes:
                raise wrong(f"{name} once, it is here a second time")
            self.nodes[name] = value
        for name in needed:
            if name not in self.nodes:
                raise self.wrong(None, f"the key {name}")
        return self

    def wrong(self, key: str | None, expected: str) -> ScenarioError:
        where = self.where if key is None else f"{self.where}, {key}"
        return _wrong(self.nodes.get(key or "", self.node), where, expected)

    def words(self, key: str) -> str:
        node = self.nodes[key]
        if not isinstance(node, yaml.ScalarNode) or not node.value.strip():
            raise self.wrong(key, f"a text, got {_shown(node)}; one with a colon inside stands in quotes")
        text: str = node.value
        return text.strip()

    def choice(self, key: str, among: Sequence[str]) -> str:
        word = self.words(key)
        if word not in among:
            raise self.wrong(key, f"one of {', '.join(among)}, got {word!r:.50}")
        return word

    def items(self, key: str) -> Iterator[yaml.Node]:
        """Of a list; none where the key is missing or has nothing."""
        node = self.nodes.get(key)
        if node is None or (isinstance(node, yaml.ScalarNode) and not node.value):
            return
        if not isinstance(node, yaml.SequenceNode):
            raise self.wrong(key, f"a list, each after a dash, got {_shown(node)}")
        yield from node.value

    def texts(self, key: str) -> Iterator[str]:
        for node in self.items(key):
            if not isinstance(node, yaml.ScalarNode):
                raise self.wrong(key, f"a list of texts, got {_shown(node)} in it")
            yield node.value.strip()

    def number(self, key: str, usual: float, least: float, most: float) -> float:
        return self._number(key, self.nodes[key], least, most) if key in self.nodes else usual

    def span(self, key: str) -> tuple[float, float]:
        """One number for both ends, or two in order; seconds; 0 where there are none."""
        node = self.nodes.get(key)
        if not isinstance(node, yaml.SequenceNode):
            least = self.number(key, 0.0, 0.0, 60.0)
            return least, least
        ends = [self._number(key, each, 0.0, 60.0) for each in node.value]
        if len(ends) != 2 or ends[0] > ends[1]:
            raise self.wrong(key, f"one number of seconds, or the least and the most, got {ends}")
        return ends[0], ends[1]

    def _number(self, key: str, node: yaml.Node, least: float, most: float) -> float:
        try:
            value = float(node.value) if isinstance(node, yaml.ScalarNode) else float("nan")
        except ValueError:
            value = float("nan")
        if not isfinite(value) or not least <= value <= most:
            raise self.wrong(key, f"a number from {least:g} to {most:g}, got {_shown(node)}")
        return value


def _shown(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return f"{node.value!r:.50}" if node.value else "nothing"
    return "a list" if isinstance(node, yaml.SequenceNode) else "keys with values"


def _wrong(node: yaml.Node, where: str, expected: str) -> ScenarioError:
    return ScenarioError(f"line {node.start_mark.line + 1}, {where}: expected {expected}")
