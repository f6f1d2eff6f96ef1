"""Side by side in one run: this engine, faster-qwen3-tts and qwen-tts-hf, for the same text and the same frames.

    python tests/bench/qwen3_tts --model qwen3-tts-1.7b --json tests/bench/results/h200-qwen3-tts.json

Random weights. The peers' wheels (`peers.py`) stand beside the engine, without their dependencies but transformers and
einops. 1, 4 and 16 requests arrive together: in the engine; in one batch with qwen-tts-hf, whose audio comes when all
is made; one after the other with faster-qwen3-tts, which takes one at a time, by its usual chunks of 12 frames and by
the smallest. RTF: seconds until the last audio, over the audio of all.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import accumulate
from math import inf
from pathlib import Path

import peers
import torch

from engine import bench, random_weights
from engine.core import Request
from engine.dimensions import DIMENSIONS
from engine.machine import check_writable, describe, write_json
from engine.messages import RuntimeConfig
from engine.metrics import quantile
from engine.models.qwen3_tts import Qwen3TTS
from engine.runtime import Runtime

TEXT = bench.SENTENCES[1]
FRAME_SECONDS = 0.08
CHUNKS = (12, 1)
"""Of faster-qwen3-tts: its own default, and its smallest."""
WARM = 2


@dataclass(frozen=True, slots=True)
class Row:
    """One runtime, for so many requests at once."""

    runtime: str
    how: str
    requests: int
    ttfa_ms_p50: float
    ttfa_ms_p95: float
    rtf: float
    rounds: int


def row(runtime: str, how: str, first: Sequence[float], rounds: Sequence[float], requests: int, frames: int) -> Row:
    """From the seconds to first audio of every request, and the seconds of every round."""
    p50, p95 = (round(1000 * quantile(sorted(first), share), 3) for share in (0.5, 0.95))
    rtf = sum(rounds) / (len(rounds) * requests * frames * FRAME_SECONDS)
    return Row(runtime, how, requests, p50, p95, round(rtf, 5), len(rounds))


def of_engine(args: argparse.Namespace) -> list[Row]:
    """Requests of the plain layout, and for one request the same text written four words at first."""
    config = RuntimeConfig(device=args.device, random_weights=args.model, slots=16, max_wait=inf)
    with Runtime.start(config) as runtime:
        sampling = bench.fixed(runtime.spec.sampling, args.frames)
        whole = Request(TEXT, sampling, peers.SPEAKER, language=peers.LANGUAGE)
        rows = [engine_row(runtime, whole, requests, args) for requests in args.requests]
        return [*rows, open_row(runtime, whole, args)]


def engine_row(runtime: Runtime, request: Request, requests: int, args: argparse.Namespace) -> Row:
    first, rounds = list[float](), list[float]()
    for number in range(WARM + args.rounds):
        time.sleep(0.05)  # justified: idle, as before the fourth word of an open text
        started = time.perf_counter()
        heard = bench.speak(runtime, [request] * requests)
        if number >= WARM:
            rounds.append(time.perf_counter() - started)
            first += [one.arrivals[0][0] - one.submitted_at for one in heard]
    return row("this engine", "together", first, rounds, requests, args.frames)


def open_row(runtime: Runtime, request: Request, args: argparse.Namespace) -> Row:
    """First audio from the moment at which the fourth word is there; the other words come 50 ms apart."""
    first, rounds = list[float](), list[float]()
    for number in range(WARM + args.rounds):
        seconds, whole = open_text(runtime, request)
        if number >= WARM:
            first.append(seconds)
            rounds.append(whole)
    return row("this engine", "four words, then 20 a second", first, rounds, 1, args.frames)


def open_text(runtime: Runtime, request: Request) -> tuple[float, float]:
    words = TEXT.split(" ")
    heard = bench.Listener(bench.MonotonicClock(), 0.0, runtime.spec.sample_rate)
    opened = Request(" ".join(words[:3]), request.sampling, request.speaker, language=request.language, open=True)
    number = runtime.submit(opened, heard.deliver)
    time.sleep(0.05)  # justified: words come as a language model writes them, 20 a second
    heard.submitted_at = heard.clock.now()
    runtime.append_text(number, " " + words[3])
    for word in words[4:]:
        time.sleep(0.05)  # justified: likewise
        runtime.append_text(number, " " + word)
    runtime.end_text(number)
    heard.over.wait()
    return heard.arrivals[0][0] - heard.submitted_at, heard.clock.now() - heard.submitted_at


def of_peers(args: argparse.Namespace) -> Iterator[Row]:
    """All rows of theirs; the model is given back then."""
    voice, dtype = random_weights.outline(args.model), torch.bfloat16 if args.device == "cuda" else torch.float32
    assert isinstance(voice, Qwen3TTS)
    model = peers.official(DIMENSIONS[args.model], voice.layouts._tokenizer, args.device, dtype)
    yield from (official_row(model, requests, args) for requests in args.requests)
    faster = peers.faster(model, args.device, dtype, voice.spec.max_positions)
    yield from (faster_row(faster, requests, chunk, args) for chunk in CHUNKS for requests in args.requests)
    del model, faster
    gc.collect()
    torch.cuda.empty_cache()


def official_row(model: object, requests: int, args: argparse.Namespace) -> Row:
    rounds = repeated(lambda: peers.together(model, [TEXT] * requests, args.frames), args.slow_rounds, warm=1)
    name = f"qwen-tts-hf {version('qwen-tts-hf')}"
    return row(
        name, "one batch", [seconds for seconds in rounds for _ in range(requests)], rounds, requests, args.frames
    )


def faster_row(model: object, requests: int, chunk: int, args: argparse.Namespace) -> Row:
    """Those who wait for others wait for the whole of theirs."""
    few = max(1, args.slow_rounds // requests)
    many = [list(peers.streamed(model, TEXT, args.frames, chunk)) for _ in range(WARM + few * requests)][WARM:]
    first, rounds = list[float](), list[float]()
    for start in range(0, len(many), requests):
        turn = many[start : start + requests]
        ends = [0.0, *accumulate(times[-1] for times in turn)]
        first += [end + times[0] for end, times in zip(ends, turn, strict=False)]
        rounds.append(ends[-1])
    name = f"faster-qwen3-tts {version('faster-qwen3-tts')}"
    how = f"one after the other, chunks of {chunk}" if requests > 1 else f"chunks of {chunk}"
    return row(name, how, first, rounds, requests, args.frames)


def repeated(do: Callable[[], float], times: int, warm: int) -> list[float]:
    return [do() for _ in range(warm + times)][warm:]


def main(argv: Sequence[str] | None = None) -> int:
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(description="Qwen3-TTS side by side.")
    add = parser.add_argument
    add("--model", choices=sorted(name for name in DIMENSIONS if name.startswith("qwen3")), default="qwen3-tts-1.7b")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    add("--frames", type=int, default=48, help="of each utterance, 80 ms each (default: %(default)s)")
    add("--requests", type=int, nargs="+", default=[1, 4, 16], metavar="N")
    add("--rounds", type=int, default=20, help="of this engine (default: %(default)s)")
    add("--slow-rounds", type=int, default=5, help="of the peers (default: %(default)s)")
    add("--json", type=Path, metavar="FILE")
    args = parser.parse_args(argv)
    if args.json:
        check_writable(str(args.json))
    missing = peers.prepare()
    rows, failed = of_engine(args), ""
    try:
        for each in of_peers(args):
            rows.append(each)
    except Exception as error:  # a peer's: our rows are kept
        traceback.print_exc()
        failed = f"{type(error).__name__}: {error}"
    for each in rows:
        print(
            f"{each.runtime:26} {each.how:38} {each.requests:3} {each.ttfa_ms_p50:10.1f} {each.ttfa_ms_p95:10.1f} "
            f"{each.rtf:8.4f}",
            flush=True,
        )
    if args.json:
        name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
        about = describe(name, argv)
        about["command"] = str(about["command"]).replace("breezert", "python tests/bench/qwen3_tts", 1)
        told = {"model": args.model, "frames": args.frames, "text": TEXT, "stubs": missing, "failed": failed}
        told["transformers"] = version("transformers")
        write_json(str(args.json), {**about, **told, "rows": [asdict(each) for each in rows]})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
