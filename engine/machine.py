"""JSON files of measurements, and what they were made on. It measures nothing itself."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

FLAT_LIST = re.compile(r"\[(\n[^\[\]{}\"]+)\]")
"""A list of numbers in indented JSON: no string holds a line break."""


def describe(device: str, argv: Sequence[str]) -> dict[str, object]:
    """Machine, versions, date and command (of its files the names), as JSON data. `device` is what the engine's device
    calls itself."""
    return {
        "device": device,
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": version("torch"),
        "numpy": version("numpy"),
        "date": datetime.now(UTC).date().isoformat(),
        "command": " ".join(("breezert", *(Path(word).name if "/" in word else word for word in argv))),
    }


def cpu_name() -> str:
    """The processor's name as the system tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def check_writable(path: str) -> None:
    """Raises OSError if write_json could not write there, so that nobody finds out after minutes of measuring, and
    ValueError for no name at all."""
    if not path:
        raise ValueError("expected the name of a file to write, or - for standard output, got ''")
    file = Path(path)
    if path == "-" or file.is_fifo():  # whoever reads a pipe would take the closing for the end
        return
    new = not file.exists()
    with file.open("ab"):
        pass
    if new:
        file.unlink()


def write_json(path: str, data: Mapping[str, object]) -> None:
    """Writes indented JSON to the file, or to standard output for `-`; a list of numbers is one line. Raises OSError,
    and ValueError on NaN, which JSON does not have."""
    text = json.dumps(data, indent=1, allow_nan=False) + "\n"
    text = FLAT_LIST.sub(lambda found: f"[{' '.join(found[1].split())}]", text)
    if path == "-":
        sys.stdout.write(text)
    else:
        Path(path).write_text(text)
