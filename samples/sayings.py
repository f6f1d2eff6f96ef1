"""Has the embedded voice say the lines of a file, each into an Opus file beside it, named by what stands before ": ".

python samples/sayings.py samples/sayings/texts.txt
"""

import sys
from dataclasses import replace
from pathlib import Path

from agent.container import OggOpus
from engine.core import Chunk, Failed, Request
from engine.runtime import Runtime


def record(runtime: Runtime, texts: Path) -> None:
    for line in texts.read_text(encoding="utf-8").splitlines():
        name, _, text = line.partition(": ")
        opus, parts = OggOpus(runtime.spec.sample_rate), list[bytes]()
        for output in runtime.stream(Request(text, replace(runtime.spec.sampling, seed=1))):
            if isinstance(output, Failed):
                raise RuntimeError(f"{name}: {output.message}")
            if isinstance(output, Chunk):
                parts.append(opus.push(output.pcm))
        texts.with_name(f"{name}.opus").write_bytes(b"".join(parts) + opus.end())


if __name__ == "__main__":
    with Runtime.start() as runtime:
        record(runtime, Path(sys.argv[1]))
