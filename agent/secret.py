"""A key for somebody else's server: read from the environment or a file, shown to nobody. It does not know what the key
opens.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from agent.trouble import SettingsError

HIDDEN = "(hidden)"
ENV_NAME = re.compile(r"[A-Z_][A-Z0-9_]*")
"""Capitals only: a key that was given in the place of a name is told from one, and not repeated."""
KEY = re.compile(r"[!-~]+")
"""What an Authorization header takes: visible ASCII."""
MAX_KEY_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """Its repr and str hide it; whoever sends it calls `reveal`."""

    _value: str

    def reveal(self) -> str:
        return self._value

    def hide(self, text: str) -> str:
        """The text without the secret: servers repeat what they were sent in what they complain of."""
        return text.replace(self._value, HIDDEN)

    def __repr__(self) -> str:
        return f"Secret{HIDDEN}"


def read_secret(env: str | None, file: Path | None) -> Secret | None:
    """The key that the settings name, None where they name none. Raises SettingsError."""
    if env is not None and file is not None:
        raise SettingsError("give key_env or key_file, not both")
    if env is not None:
        return checked(from_env(env), f"the environment variable {env}")
    return None if file is None else checked(from_file(file), "the key file")


def from_env(name: str) -> str:
    if not ENV_NAME.fullmatch(name):
        raise SettingsError(
            "key_env is the name of an environment variable in capitals, such as OPENAI_API_KEY, never the key itself"
        )
    if name not in os.environ:
        raise SettingsError(f"the environment variable {name} is not set: it must hold the key")
    return os.environ[name]


def from_file(file: Path) -> str:
    """No message repeats the path: somebody may have given the key itself."""
    try:
        with file.open("rb") as opened:
            return opened.read(MAX_KEY_BYTES).decode()
    except OSError as error:
        reason = error.strerror
    except ValueError:  # not UTF-8, or no path
        reason = "it must be text in UTF-8"
    raise SettingsError(f"the key file cannot be read: {reason}")


def checked(text: str, where: str) -> Secret:
    value = text.strip()
    if not KEY.fullmatch(value):
        raise SettingsError(f"{where} must hold the key and nothing else: visible ASCII without spaces")
    return Secret(value)
