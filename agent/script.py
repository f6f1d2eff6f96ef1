"""A script: replies that were written before, read from a YAML file. It does not know who asks for them.

    greeting: Hello! Ask me about our opening hours.
    replies:
      - Plain replies are said in this order, one a turn.
      - when: hours                  # is said whenever the user says this, in any case,
        say: We open at nine.
      - when: [bye, '/good ?night/'] # or one of these; between slashes stands a regular expression
        say: Goodbye.
    loop: true                       # begin anew after the last plain reply; else:
    end: That is all I know.         # said from then on; without it the agent is silent

Read as nodes, not as values: every error can name its line, and `no` or `12:30` stay the words that they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import yaml

from agent.trouble import SettingsError

MAX_SCRIPT_BYTES = 256 * 1024
KEYS = ("greeting", "replies", "loop", "end")


@dataclass(frozen=True, slots=True)
class Reply:
    """One reply; it is a plain one where `when` is empty."""

    say: str
    when: tuple[re.Pattern[str], ...] = ()

    def answers(self, text: str) -> bool:
        return any(pattern.search(text) for pattern in self.when)


@dataclass(frozen=True, slots=True)
class Script:
    """What the agent says."""

    replies: tuple[Reply, ...]
    greeting: str = ""
    loop: bool = False
    end: str = ""

    def answer(self, text: str, earlier: Sequence[str] = ()) -> str:
        """What to say to `text`, after the user's `earlier` turns; empty for silence.

        The first reply whose `when` fits, else the next plain one: as many are used up as earlier turns fitted none.
        """
        special = self._special(text)
        if special is not None:
            return special.say
        used = sum(self._special(before) is None for before in earlier)
        plain = [reply.say for reply in self.replies if not reply.when]
        if self.loop and plain:
            return plain[used % len(plain)]
        return next(islice(plain, used, None), self.end)

    def _special(self, text: str) -> Reply | None:
        line = " ".join(text.split())
        return next((reply for reply in self.replies if reply.answers(line)), None)


class ScriptError(SettingsError):
    """A script that cannot be read; the text names the file, the line, and what was expected."""


def read_script(path: Path) -> Script:
    """Raises ScriptError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_SCRIPT_BYTES + 1)
    except OSError as error:
        raise ScriptError(f"the script {path} cannot be read: {error.strerror}") from error
    if len(data) > MAX_SCRIPT_BYTES:
        raise ScriptError(f"the script {path} must have at most {MAX_SCRIPT_BYTES} bytes")
    try:
        return parse_script(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ScriptError(f"the script {path} must be text in UTF-8, found other bytes") from error
    except ScriptError as error:
        raise ScriptError(f"{path}, {error}") from None


def parse_script(text: str) -> Script:
    """Raises ScriptError, whose text begins with the line's number."""
    top = fields(composed(text, "a script", ScriptError), "a script: the keys " + ", ".join(KEYS), KEYS)
    if "replies" not in top:
        raise ScriptError("line 1: expected the key replies, with a list of what to say")
    script = Script(
        replies=tuple(reply(node) for node in items(top["replies"], "a list of replies")),
        greeting=words(top["greeting"]) if "greeting" in top else "",
        loop=truth(top["loop"]) if "loop" in top else False,
        end=words(top["end"]) if "end" in top else "",
    )
    if script.loop and script.end:
        raise wrong(top["end"], "loop or end, not both: a script that loops has no end")
    return script


def composed(text: str, what: str, wrong: type[SettingsError]) -> yaml.Node:
    """The root of a YAML file, of which `what` was expected. Raises `wrong`, whose text begins with the line."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise wrong(f"line {line}: expected YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n") + 1
        raise wrong(f"line {line}: expected YAML: the character {error.character!r} is not allowed") from None
    except RecursionError:
        raise wrong(f"line 1: expected {what}: this is nested too deep") from None
    if root is None:
        raise wrong(f"line 1: expected {what}, found nothing")
    return root


def wrong(node: yaml.Node, expected: str) -> ScriptError:
    return ScriptError(f"line {node.start_mark.line + 1}: expected {expected}")


def fields(node: yaml.Node, expected: str, keys: tuple[str, ...]) -> dict[str, yaml.Node]:
    """A mapping's values by key. Raises ScriptError for anything else, and for other keys."""
    if not isinstance(node, yaml.MappingNode):
        raise wrong(node, expected)
    found = dict[str, yaml.Node]()
    for key, value in node.value:
        name = key.value if isinstance(key, yaml.ScalarNode) else None
        if name not in keys:
            raise wrong(key, f"one of the keys {', '.join(keys)}, got {name!r:.50}")
        if name in found:
            raise wrong(key, f"{name} once, it is here a second time")
        found[name] = value
    return found


def items(node: yaml.Node, expected: str) -> Iterator[yaml.Node]:
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise wrong(node, f"{expected}, each after a dash")
    yield from node.value


def words(node: yaml.Node) -> str:
    if not isinstance(node, yaml.ScalarNode) or not node.value.strip():
        raise wrong(node, "a text; one with a colon inside stands in quotes")
    text: str = node.value
    return text.strip()


def truth(node: yaml.Node) -> bool:
    if not isinstance(node, yaml.ScalarNode) or node.value not in ("true", "false"):
        raise wrong(node, "true or false")
    return bool(node.value == "true")


def reply(node: yaml.Node) -> Reply:
    if isinstance(node, yaml.ScalarNode):
        return Reply(words(node))
    found = fields(node, "a text, or the keys when and say", ("when", "say"))
    if "say" not in found:
        raise wrong(node, "the key say, with the text of the reply")
    return Reply(words(found["say"]), tuple(patterns(found["when"])) if "when" in found else ())


def patterns(node: yaml.Node) -> Iterator[re.Pattern[str]]:
    nodes = [node] if isinstance(node, yaml.ScalarNode) else items(node, "a text or a list of texts")
    return (pattern(each) for each in nodes)


def pattern(node: yaml.Node) -> re.Pattern[str]:
    text = words(node)
    regular = len(text) > 2 and text[0] == text[-1] == "/"
    try:
        return re.compile(text[1:-1] if regular else re.escape(" ".join(text.split())), re.IGNORECASE)
    except (re.error, RecursionError, OverflowError) as error:
        raise wrong(node, f"a regular expression between the slashes: {error}") from None
