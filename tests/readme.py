"""The README, taken apart."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks() -> list[str]:
    """The indented blocks, without their indent."""
    found = re.findall(r"(?:^    .*\n|^\n(?=    ))+", README, flags=re.MULTILINE)
    return ["\n".join(line[4:] for line in block.splitlines()).strip("\n") for block in found]


def embedding() -> str:
    """The program that embeds the agent."""
    (program,) = [block for block in blocks() if "attach(app" in block]
    return program
