"""The profiles that come with the engine, and reading them by name. They are data: what steps cost on some machines."""

from __future__ import annotations

import json
from pathlib import Path

from engine.machine import write_json
from engine.profile import Profile

FOLDER = Path(__file__).parent
MEASURED = "random-breeze-tts-2-nvidia-h200"
"""What simulate takes by itself: Breeze TTS 2 at its real size, with random weights, on one H200."""
LONG = ("order", "costs")
"""Of a profile's fields, so that they stay last in its file."""


def names() -> list[str]:
    """Of those that come with the engine."""
    return sorted(path.stem for path in FOLDER.glob("*.json"))


def find(name: str) -> Path:
    """The file of a profile that comes with the engine, or else the file of that path. Raises FileNotFoundError where
    it can be neither."""
    if name in names():
        return FOLDER / f"{name}.json"
    path = Path(name)
    if len(path.parts) == 1 and not path.exists():
        raise FileNotFoundError(f"expected a profile out of {', '.join(names())}, or a file of one, got {name!r}")
    return path


def read(path: Path) -> Profile:
    """What `calibrate` wrote, of every stage. Raises OSError and ValueError."""
    try:
        profile = Profile.from_dict(json.loads(path.read_text("utf-8")))
    except ValueError as error:
        raise ValueError(f"{path}: expected a profile that calibrate wrote ({error})") from error
    except RecursionError:
        raise ValueError(f"{path}: expected a profile that calibrate wrote, got JSON nested too deeply") from None
    if profile.missing:
        raise ValueError(
            f"{path}: expected costs of every stage, got none of {', '.join(profile.missing)}; calibrate all stages"
        )
    return profile


def name_of(voice: str, device: str) -> str:
    """Of the profile for this voice on a device that calls itself so."""
    return f"{voice}-{device}".lower().replace(" ", "-")


def own(voice: str, device: str) -> Profile | None:
    """The one that comes with the engine for this voice on this device, if there is one."""
    name = name_of(voice, device)
    return read(FOLDER / f"{name}.json") if name in names() else None


def store_load(path: Path, load: float, rated_load: float | None = None) -> None:
    """Write the loads into the profile's file; a rated load that is None leaves the one it has. Raises OSError."""
    data = json.loads(path.read_text())
    long = {name: data.pop(name) for name in LONG if name in data}
    rated = {} if rated_load is None else {"rated_load": rated_load}
    write_json(str(path), {**data, "load": load, **rated, **long})
