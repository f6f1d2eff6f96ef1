"""Reads a checkpoint's JSON settings by kind and range, so that a damaged config is one error that names the place.

It does not know what a setting means.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.weights import WHOLE_FOLDER, CheckpointError, read_json

MAX_INTEGER = 2**24
"""Beyond every dimension of a model; memory is asked for before its files say whether it is right."""
MAX_NUMBER = 1e30
TINY = 1e-12
"""The least of what must be above zero."""


class Section(dict[str, Any]):
    """A JSON object that knows where it stands. Its readers raise CheckpointError: place, key, expected, found.

    A default stands in for a key that is absent or null; without one the key must be there.
    """

    where = ""

    @classmethod
    def of(cls, values: Mapping[str, Any], where: str) -> Section:
        """The values as a section at `where`; one that is a section already stays where it is."""
        if isinstance(values, Section):
            return values
        section = cls(values)
        section.where = where
        return section

    @classmethod
    def read(cls, file: Path) -> Section:
        """A whole file."""
        return cls.of(read_json(file), str(file))

    def integer(self, key: str, low: int = 1, high: int = MAX_INTEGER, default: int | None = None) -> int:
        value = self._value(key, default)
        if not _is_integer(value, low, high):
            raise self.misfit(key, f"an integer from {low} to {high}")
        return int(value)

    def integers(self, key: str, high: int = MAX_INTEGER) -> tuple[int, ...]:
        """A list of positive ones."""
        values = self.get(key)
        if not isinstance(values, list) or not all(_is_integer(value, 1, high) for value in values):
            raise self.misfit(key, f"a list of integers from 1 to {high}")
        return tuple(values)

    def number(self, key: str, low: float = 0.0, default: float | None = None) -> float:
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= MAX_NUMBER:
            raise self.misfit(key, f"a number from {low:g} to {MAX_NUMBER:g}")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self.misfit(key, "true or false")
        return value

    def text(self, key: str, default: str) -> str:
        value = self._value(key, default)
        if not isinstance(value, str):
            raise self.misfit(key, "a string")
        return value

    def texts(self, key: str, *known: str) -> tuple[str, ...]:
        """A list that is not empty, of `known` ones."""
        values = self.get(key)
        if not isinstance(values, list) or not values or not all(value in known for value in values):
            raise self.misfit(key, f"a list of {', '.join(known)}")
        return tuple(values)

    def section(self, key: str, default: Mapping[str, Any] | None = None) -> Section:
        value = self._value(key, default)
        if not isinstance(value, dict):
            raise self.misfit(key, "an object")
        return Section.of(value, f"{self.where}: {key}")

    def require(self, only: Mapping[str, object]) -> None:
        """Settings with one possible value here, which is also what their absence means."""
        for key, value in only.items():
            if self.get(key, value) != value:
                raise self.misfit(key, repr(value))

    def misfit(self, key: str, expected: str) -> CheckpointError:
        """The error that what stands under the key is not what was expected."""
        found = reprlib.repr(self[key]) if key in self else "nothing"
        return CheckpointError(f"{self.where}: {key} must be {expected}, found {found}; {WHOLE_FOLDER}")

    def _value(self, key: str, default: Any) -> Any:
        value = self.get(key)
        return default if value is None else value


def _is_integer(value: object, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
