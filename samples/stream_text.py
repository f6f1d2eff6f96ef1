"""Speaks a text while it is being written, such as what a language model writes on standard input.

some-llm "A story, please" | python samples/stream_text.py path/to/Qwen3-TTS-12Hz-0.6B-CustomVoice story.wav
"""

import sys
import wave
from concurrent.futures import Future
from pathlib import Path

from engine.checks import RequestError
from engine.core import Chunk, Output, Queued, Request
from engine.runtime import Runtime, RuntimeConfig

if __name__ == "__main__":
    with Runtime.start(RuntimeConfig(voice=Path(sys.argv[1]))) as runtime, wave.open(sys.argv[2], "wb") as file:
        file.setparams((1, 2, runtime.spec.sample_rate, 0, "NONE", ""))
        end = Future[Output]()

        def deliver(output: Output) -> None:
            if isinstance(output, Chunk):
                file.writeframes(output.pcm.tobytes())
            elif not isinstance(output, Queued):
                end.set_result(output)

        request = runtime.submit(Request("", runtime.spec.sampling, open=True), deliver)
        try:
            while piece := sys.stdin.read(1):
                runtime.append_text(request, piece)
        except RequestError as error:  # it is as long as one request may be, or the voice has come to its end
            print(error, file=sys.stderr)
        runtime.end_text(request)
        print(end.result(), file=sys.stderr)
