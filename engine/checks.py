"""Says what is wrong with a value that a caller gave. It does not know what the value is for."""

from __future__ import annotations

from reprlib import repr as short

LARGEST_ID = 2**63 - 1
"""Of whole numbers that are names: request ids, epochs, seeds."""


class RequestError(ValueError):
    """A request that cannot be served: says what was expected, what came, and what to do; `field` is the value's name,
    where one is to blame."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


def shown(value: object) -> str:
    """The value, for a message: short, and whatever it is."""
    try:
        return short(value)
    except Exception:  # an integer of more digits than Python prints, or a repr that fails
        return f"a value of type {type(value).__name__} that cannot be shown"


def is_whole(value: object) -> bool:
    """Whether it is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a number, if only infinity or NaN."""
    return isinstance(value, float) or is_whole(value)


def check(holds: bool, name: str, expected: str, got: object) -> None:
    """Raises RequestError unless it holds."""
    if not holds:
        raise RequestError(f"{name} must be {expected}, got {shown(got)}", name)


def check_written(name: str, text: str, most: int) -> None:
    """Raises RequestError for text of more than so many characters, or of halves of UTF-16 pairs, which are none."""
    if len(text) > most:
        raise RequestError(f"{name} must have at most {most} characters, got {len(text)}; send it in parts", name)
    if lone := sorted({c for c in text if "\ud800" <= c <= "\udfff"}):
        got = ", ".join(map(repr, lone))
        raise RequestError(f"{name} must be text that the voice can read, got {got}; take that out", name)


def check_range(name: str, value: object, low: float, high: float) -> None:
    """Raises RequestError unless it is a number in that range, and a whole one where the range's ends are."""
    if is_whole(low):
        check(is_whole(value), name, "a whole number", value)
    else:
        check(is_number(value), name, "a number", value)
    if not low <= value <= high:  # type: ignore[operator]  # it is a number; also false for NaN
        raise RequestError(f"{name} must be from {low} to {high}, got {shown(value)}", name)


def check_id(name: str, value: object) -> None:
    """Raises RequestError unless it may name something."""
    check_range(name, value, 0, LARGEST_ID)
