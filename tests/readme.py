"""The README, taken apart."""

import json
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


def figures() -> list[str]:
    """The rows of the README's table of figures, from the JSON that the benchmarks wrote."""
    results = Path(__file__).parent / "bench" / "results"
    speech, browser = (json.loads((results / f"{name}.json").read_text()) for name in ("cpu-speech", "browser"))
    one, two = speech["rows"]
    turns, stretch = browser["turns"], browser["stretch"]
    arrival = stretch["inter_arrival_ms"]
    return [
        f"| RTF of one stream | {one['rtf']:.2f} |",
        f"| TTFA of one stream, p50 / p95 | {one['ttfa_ms_p50']:.0f} / {one['ttfa_ms_p95']:.0f} ms |",
        f"| two streams at once: TTFA p50; utterances with a gap | {two['ttfa_ms_p50']:.0f} ms; {two['underruns']} of "
        f"{two['utterances']} |",
        f"| in Chromium: answer to an offer, p95 | {browser['connects']['answer_ms']['p95']:.0f} ms |",
        f"| Speak pressed to first audible sample, p50 / p95 | {turns['first_sound_ms']['p50']:.0f} / "
        f"{turns['first_sound_ms']['p95']:.0f} ms |",
        f"| Stop pressed to last audible sample, p50 / p95 | {turns['stop_ms']['p50']:.0f} / "
        f"{turns['stop_ms']['p95']:.0f} ms |",
        f"| {stretch['speech_seconds']:.0f} s of speech: non-silent concealment; underruns | "
        f"{stretch['audible_concealed_samples']} samples; {stretch['underruns']} |",
        f"| RTP timestamp steps of 960; packet to packet p99 | {stretch['timestamp_steps']['960']} of "
        f"{sum(stretch['timestamp_steps'].values())}; {arrival['p99']:.1f} ms |",
    ]
