"""The brains that come with the agent, and the limits around each: echo, script, openai, or the app's own. It does not
know how a turn was heard, nor what becomes of the text.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import Any, cast

from agent.called import Called
from agent.chat import ChatBrain
from agent.dialogue import Brain, Message, Role, UserTurn
from agent.endpoint import Endpoint
from agent.script import Script, read_script
from agent.secret import read_secret
from agent.trouble import BrainError, OutsideError, SettingsError, Trouble

__all__ = [
    "BoundedBrain",
    "Brain",
    "BrainConfig",
    "BrainError",
    "EchoBrain",
    "FunctionBrain",
    "Message",
    "ReplyLimits",
    "Role",
    "ScriptBrain",
    "SettingsError",
    "UserTurn",
    "make_brain",
]

log = logging.getLogger(__name__)

SYSTEM = (
    "You are a voice assistant. Your words are spoken aloud: answer in one to three short, plain sentences, without "
    "lists, markup or emoji. A reply of yours that ends with ... was interrupted there."
)
APOLOGY = "Sorry, I cannot answer that just now."

Function = Callable[[str], object]
"""The app's own: what the user said in; a text, an iterator of texts, or the async kinds of both out."""


@dataclass(frozen=True, slots=True)
class ReplyLimits:
    """What one reply may take. Seconds count while the brain is waited for, not while nobody asks it for more."""

    first_seconds: float = 10.0
    """Until its first text."""
    between_seconds: float = 5.0
    """From one text to the next."""
    max_chars: int = 4000
    """A reply that has more is cut there: about four minutes of speech."""
    max_seconds: float = 60.0
    """One that is not over by then is cut."""

    def __post_init__(self) -> None:
        for limit in fields(self):
            value = getattr(self, limit.name)
            if not 0 < value < inf:
                raise SettingsError(f"{limit.name} must be above zero and finite, got {value!r}")


@dataclass(frozen=True, slots=True)
class BrainConfig:
    """Who answers. Keys are not in it, only where they are."""

    kind: str = "echo"
    """echo, script, openai, or function, where `make_brain` gets the app's own."""
    greeting: str = ""
    """Said when a call begins; a script has its own."""
    apology: str = APOLOGY
    """Said where there is no reply; empty for silence."""
    script: Path | None = None
    url: str = ""
    """Of an OpenAI-compatible server, such as http://localhost:8000/v1."""
    model: str = ""
    key_env: str | None = None
    """The name of the environment variable that holds the server's key."""
    key_file: Path | None = None
    system: str = SYSTEM
    max_messages: int = 40
    """Of the conversation, that a request holds."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """Further keys of every request's body, such as temperature."""
    limits: ReplyLimits = field(default_factory=ReplyLimits)


BELONGS = {"script": ("script",), "openai": ("url", "model", "key_env", "key_file", "system", "max_messages", "extra")}
"""Settings that only one kind has."""
RESERVED = ("model", "messages", "stream", "n")


class EchoBrain:
    """Says back what the user said or typed; where nobody knows that, how long it was."""

    async def reply(self, turn: UserTurn) -> AsyncGenerator[str]:
        """See Brain.reply."""
        if turn.text.strip():
            yield turn.text
        elif turn.audio is not None:
            yield f"I heard {turn.seconds:.1f} seconds of speech."

    async def close(self) -> None:
        """It holds nothing."""


class ScriptBrain:
    """Says what a script says."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def reply(self, turn: UserTurn) -> AsyncGenerator[str]:
        """See Brain.reply."""
        earlier = [message.text for message in turn.history if message.role == Role.USER]
        if answer := self._script.answer(turn.text, earlier):
            yield answer

    async def close(self) -> None:
        """It holds nothing."""


class FunctionBrain:
    """Says what a function of the app returns. See Called for what becomes of it when it is cancelled."""

    def __init__(self, function: Function) -> None:
        self._called = Called(function)

    async def reply(self, turn: UserTurn) -> AsyncGenerator[str]:
        """See Brain.reply. None counts as nothing to say; the function gets an empty text where nobody knows it."""
        async with aclosing(self._called.outputs(turn.text)) as outputs:
            async for text in outputs:
                if not (text is None or isinstance(text, str)):
                    raise OutsideError(
                        Trouble.BROKEN, f"the app's function must return text, got {type(text).__name__}"
                    )
                yield text or ""

    async def close(self) -> None:
        """What runs, runs on without anybody."""


class BoundedBrain:
    """A brain within limits, whose every failure is a BrainError with the apology that is to be said."""

    def __init__(self, brain: Brain, limits: ReplyLimits, greeting: str = "", apology: str = APOLOGY) -> None:
        self.greeting, self.apology = greeting, apology
        self._brain, self._limits = brain, limits

    async def reply(self, turn: UserTurn) -> AsyncGenerator[str]:
        """The reply as it is written: texts that are not empty. It is cut at its limits, and at the turn's own; that
        is no error.

        Raises BrainError, after it was logged. See Brain.reply on cancelling.
        """
        limits = self._limits
        if turn.max_chars is not None:
            limits = replace(limits, max_chars=min(limits.max_chars, turn.max_chars))
        try:
            async with aclosing(self._brain.reply(turn)) as deltas, aclosing(bounded(deltas, limits)) as kept:
                async for delta in kept:
                    yield delta.encode("utf-8", "replace").decode()  # JSON may bring half a character
        except OutsideError as error:
            log.warning("no reply, or not all of it: %s: %s", error.trouble, error)
            raise BrainError(error.trouble, str(error), error.retry_after, self.apology) from None
        except Exception as error:
            log.exception("the brain failed")
            reason = f"the brain raised {type(error).__name__}: {error}"
            raise BrainError(Trouble.BROKEN, reason, None, self.apology) from error

    async def close(self) -> None:
        """Gives back what the brain holds."""
        await self._brain.close()


async def bounded(deltas: AsyncGenerator[str, Any], limits: ReplyLimits) -> AsyncGenerator[str]:
    """The texts up to the limits. Raises OutsideError when none comes in time."""
    clock = asyncio.get_running_loop().time
    patience, left, chars, told = limits.first_seconds, limits.max_seconds, 0, False
    while chars < limits.max_chars and left > 0:
        asked_at = clock()
        try:
            delta = await within(deltas, min(patience, left))
        except Slow:
            if left > patience or not told:
                raise OutsideError(Trouble.TIMEOUT, f"no text came for {min(patience, left):g} s") from None
            break
        if delta is None:
            return
        left -= clock() - asked_at
        chars += max(1, len(delta))  # an endless reply of empty texts also ends
        if delta:
            patience, told = limits.between_seconds, True
            yield delta[: len(delta) - max(0, chars - limits.max_chars)]
    log.warning(
        "a reply was cut after %d characters and %.0f s", min(chars, limits.max_chars), limits.max_seconds - left
    )


class Slow(Exception):
    """Nothing came in time."""


async def within(deltas: AsyncGenerator[str, Any], seconds: float) -> str | None:
    """The next text, None at the end. Raises Slow; a TimeoutError is the brain's own."""
    alarm = asyncio.timeout(seconds)
    try:
        async with alarm:
            return await anext(deltas, None)
    except TimeoutError:
        if alarm.expired():
            raise Slow from None
        raise


def make_brain(config: BrainConfig, own: Function | Brain | None = None) -> BoundedBrain:
    """The brain that the settings ask for; `own` is the app's, for the kind function. Raises SettingsError."""
    check_kind(config, own)
    greeting = config.greeting
    brain: Brain
    match config.kind:
        case "echo":
            brain = EchoBrain()
        case "script":
            script = scripted(config)
            brain, greeting = ScriptBrain(script), script.greeting
        case "openai":
            brain = chat(config)
        case _:
            brain = cast(Brain, own) if hasattr(own, "reply") else FunctionBrain(cast(Function, own))
    return BoundedBrain(brain, config.limits, greeting, config.apology)


def check_kind(config: BrainConfig, own: object) -> None:
    """Raises SettingsError for settings that would have no effect."""
    if config.kind not in ("echo", "script", "openai", "function"):
        raise SettingsError(f"a brain is echo, script, openai or function, got {config.kind!r:.50}")
    if (own is not None) != (config.kind == "function"):
        raise SettingsError("the kind function, and no other, takes a function of the app")
    if own is not None and not (callable(own) or hasattr(own, "reply")):
        raise SettingsError(f"the app's own must be a function or a Brain, got {type(own).__name__}")
    unset = BrainConfig()
    for kind, names in BELONGS.items():
        for name in names:
            if kind != config.kind and getattr(config, name) != getattr(unset, name):
                raise SettingsError(f"{name} is a setting of the brain {kind}, and this one is {config.kind}")


def scripted(config: BrainConfig) -> Script:
    if config.script is None:
        raise SettingsError("the brain script needs a script: a YAML file of replies")
    if config.greeting:
        raise SettingsError("the greeting of the brain script stands in its file")
    return read_script(config.script)


def chat(config: BrainConfig) -> ChatBrain:
    for name in ("url", "model"):
        if not getattr(config, name).strip():
            raise SettingsError(f"the brain openai needs a {name}")
    if config.max_messages < 1:
        raise SettingsError(f"max_messages must be at least 1, got {config.max_messages}")
    for key in RESERVED:
        if key in config.extra:
            raise SettingsError(f"extra must not hold {key}: the agent sets it")
    endpoint = Endpoint(config.url, read_secret(config.key_env, config.key_file))
    return ChatBrain(endpoint, config.model, config.system, config.max_messages, config.extra)
