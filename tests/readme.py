"""The README, taken apart."""

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from agent.protocol import EVENTS

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


def result(name: str) -> dict[str, Any]:
    """What a benchmark wrote."""
    data: dict[str, Any] = json.loads((Path(__file__).parent / "bench" / "results" / f"{name}.json").read_text())
    return data


def events() -> list[str]:
    """Every event of every data channel: those of the client, and of the server."""
    return [
        f"| `{label}`, {side} | {', '.join(f'`{name}`' for name in getattr(of_channel, side))} |"
        for label, of_channel in EVENTS.items()
        for side in of_channel._fields
    ]


def dates() -> list[str]:
    """When, and beside them with what, the figures on a CPU were measured."""
    browser = [result(name) for name in ("cpu-speech", "browser", "browser-beside-1")]
    days = sorted({one["date"] for one in browser})
    speech, seen = browser[:2]
    return [
        f"Python {speech['python']}, PyTorch {speech['torch']}, Chromium {seen['chromium'].partition('.')[0]}, "
        f"{' and '.join(days)}.",
        f"{result('bargein')['spoken_chromium']['date']} (`bargein.json`)",
        f"{result('transport')['date']} (`transport.json`)",
        f"`heard.json`, {result('heard')['date']})",
        f"`page.json`, 2 cores of an AMD EPYC, {result('page')['date']})",
        f"`probe-neteq.json`, 2 cores of an AMD EPYC, {result('probe-neteq')['date']}.",
        f"{result('probe-agent')['machine']['date']}, on 2 cores: {cores(PROBES[:2])} for the scenarios and the hour, "
        f"{cores(PROBES[2:])} for the others:",
        f"PyTorch {result('h200-qwen3-tts')['torch']}, {result('h200-qwen3-tts')['date']} (`h200-qwen3-tts.json`).",
        f"it found nothing (on 2 cores {cores(['probe-perfect'])}, {result('probe-perfect')['machine']['date']}):",
        f"PyTorch {result('plan')['torch']}, {result('plan')['date']}:",
    ]


def figures() -> list[str]:
    """The rows of the README's table of figures, from the JSON that the benchmarks wrote."""
    (one, two), browser = result("cpu-speech")["rows"], result("browser")
    turns, alone, beside = browser["turns"], browser["stretch"], result("browser-beside-1")["stretch"]
    answer = browser["connects"]["answer_ms"]["p95"]
    dead = browser["connects_dead_stun"]["answer_ms"]["p95"]
    return [
        f"| RTF of one stream | {one['rtf']:.2f} |",
        f"| TTFA of one stream, p50 / p95 | {one['ttfa_ms_p50']:.0f} / {one['ttfa_ms_p95']:.0f} ms |",
        f"| two streams at once: TTFA p50; utterances with a gap | {two['ttfa_ms_p50']:.0f} ms; {two['underruns']} of "
        f"{two['utterances']} |",
        f"| in Chromium: answer to an offer, p95; where the browser's STUN server is dead | {answer:.0f} ms; "
        f"{dead:.0f} ms |",
        f"| Speak pressed to first audible sample, p50 / p95 | {pair(turns['first_sound_ms'])} ms |",
        f"| Stop pressed to last audible sample, p50 / p95 | {pair(turns['stop_ms'])} ms |",
        *stretch("one call", alone),
        *stretch("with a second call beside", beside),
    ]


LINKS = {
    "noticed_ms": "to the VAD, or the server",
    "turn_ms": "to the decision",
    "flush_ms": "to the flush",
    "wire_ms": "to the last audible packet",
    "listener_ms": "to silence behind the jitter buffer",
    "total_ms": "**in all**",
}
"""Of falling silent: their names in the JSON and here."""
PARTS = ("spoken_chromium", "spoken_wrtc", "stopped_chromium", "stopped_wrtc")


def links() -> list[str]:
    """How fast the agent falls silent, link by link."""
    parts = [result("bargein")[name] for name in PARTS]
    return [
        f"| {words} | " + " | ".join(triple(part[link]) if part[link] else "–" for part in parts) + " |"
        for link, words in LINKS.items()
    ]


def sums() -> str:
    """From the decision on, all links that are the agent's own, and what had to be repeated."""
    parts = [result("bargein")[name] for name in PARTS]
    last = listed([f"{part['packet_ms']['p99']:.1f}" for part in parts])
    trials, repeated = (listed([str(part[what]) for part in parts]) for what in ("trials", "repeated"))
    return (
        f"From the decision the last audible packet leaves within {last} ms (p99 of the sum, which shall be at most "
        f"26). Of {trials} trials, {repeated} more were repeated"
    )


def listed(words: list[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def triple(figure: dict[str, float]) -> str:
    return f"{figure['p50']:.0f} / {figure['p95']:.0f} / {figure['p99']:.0f}"


def elsewhere() -> list[str]:
    """What others say of theirs, and what was measured here of the same: from the onset to the decision."""
    rows = result("bargein")["spoken_chromium"]["rows"]
    p50, p95 = np.quantile([row["noticed_ms"] + row["turn_ms"] for row in rows], (0.5, 0.95))
    own = f"| BreezeRT | {p50:.0f} ms (p95 {p95:.0f}) | measured, as above: from onset to decision, in Chromium |"
    return [own] + [
        f"| {other['name']} | {'–' if other['ms'] is None else format(other['ms'], '.0f') + ' ms'} | {other['what']} "
        f"([source]({other['source']})) |"
        for other in result("bargein")["elsewhere"]
    ]


def cycles() -> str:
    """Stop, and speak again at once."""
    seen = result("bargein")["cycles"]
    sound = seen["next_sound_ms"]
    return (
        f"Stopped and spoken to again at once, {seen['cycles']} times in one call, it is heard again after "
        f"{sound['p50']:.0f} ms (p50; p95 {sound['p95']:.0f}, longest {sound['max']:.0f}): its first audio is there "
        f"after {seen['ttfa_ms']['p50']:.0f}, its first packet has left after {seen['started_ms']['p50']:.0f}"
    )


def transport() -> list[str]:
    """How evenly packets leave, by the number of listeners."""
    return [
        f"| {row['peers']} | {row['inter_arrival_ms']['p50']:.1f} / {row['inter_arrival_ms']['p99']:.1f} / "
        f"{row['inter_arrival_ms']['max']:.1f} ms | {100 * row['share_of_960_steps']:.0f} % | "
        f"{row['server_cpu_percent']:.0f} % |"
        for row in result("transport")["listened"]
    ]


def microphone() -> list[str]:
    """How late a microphone is heard, by what is lost of it."""
    return [
        f"| {row['loss_percent']} % | {row['frame_ms']['p50']:.1f} / {row['frame_ms']['max']:.0f} ms | "
        f"{row['judged_ms']['p50']:.0f} / {row['judged_ms']['max']:.0f} ms | "
        f"{back(row['back_ms'])} |"
        for row in result("transport")["spoken"]
    ]


def back(figure: dict[str, float | None] | None) -> str:
    """The longest time until a microphone was in time again after a loss."""
    if figure is None:
        return "–"
    return "never" if figure["max"] is None else f"{figure['max']:.0f} ms"


def page() -> str:
    """What watching costs."""
    seen = result("page")
    (calm, busy), events, weight = seen["drawn"], seen["events"], seen["weight"]
    return (
        f"{calm['frames_a_second']:.0f} frames a second, {calm['renderer']['drawn']:.0f} % of a core for the page's "
        f"process and {calm['chromium']['drawn']:.0f} % for all of Chromium, {busy['renderer']['drawn']:.0f} and "
        f"{busy['chromium']['drawn']:.0f} % beside {busy['synthetic_listeners']} synthetic listeners (frames in "
        f"periods of their own: counting them costs CPU). Ten callers who all watch take the server "
        f"{events['cpu_added_percent']:.2f} % of a core more than ten who do not, which is "
        f"{events['cpu_added_share_percent']:.1f} % of what those take (its event loop alone "
        f"{events['loop_added_percent']:.2f} % of a core), and their packets come "
        f"{events['p99_off_ms']:.1f} and {events['p99_on_ms']:.1f} ms apart (p99). The page is "
        f"{weight['bytes'] / 1000:.0f} kB in {weight['files']} files without headers, all of this server"
    )


def heard_policies() -> str:
    """What the page's caller hears of each."""
    heard = result("page")["heard"]
    told = {one["policy"]: one for one in heard["policies"]}
    newest, predictor = told["newest-first"], told["predictor"]
    first, second = (one["replies"] - one["refused"] for one in (newest, predictor))
    return (
        f"beside {heard['synthetic_listeners']} synthetic listeners a caller hears {newest['replies_with_stutters']} "
        f"of {first} replies stutter with newest-first, by {newest['missed_ms']:.0f} ms in all and up to "
        f"{newest['longest_ms']:.0f} ms in one, and {predictor['replies_with_stutters']} of {second} with the "
        f"Predictor, by {predictor['missed_ms']:.0f} ms ({newest['refused']} and {predictor['refused']} more are "
        f"refused, which the caller is told); the first audio comes after {newest['first_audio_ms']:.0f} and "
        f"{predictor['first_audio_ms']:.0f} ms (p50) (`breezert bench page`)"
    )


def self_check() -> str:
    """How far the probe's jitter buffer is from libwebrtc's."""
    seen = result("probe-neteq")["all"]
    error, disturbed = seen["stop_error_ms"], seen["stop_error_ms_with_held_up"]
    return (
        f"Of {seen['stops']} stops {seen['stops_held_up']} are left out, because a process had been late in that "
        f"call; of the other {seen['stops'] - seen['stops_held_up']} the model is off by {error['p95']:.1f} ms at most "
        f"in 95 of 100, by {error['max']:.1f} ms at most in all (of all {seen['stops']}: {disturbed['p95']:.0f} and "
        f"{disturbed['max']:.0f} ms)"
    )


PROBES = ("probe-agent", "probe-soak", "probe-listening", "probe-cycles", "probe-kill")
"""What the probe wrote of our own agent."""
CORES = {"Intel": "of an Intel Xeon", "AMD": "of an AMD EPYC"}
"""Makers of CPUs, and what they are called here."""


def cores(names: Iterable[str]) -> str:
    """On what these were measured: all on the same."""
    (maker,) = {result(name)["machine"]["cpu"].partition("(")[0].split()[0] for name in names}
    return CORES[maker]


def probed() -> list[str]:
    """What the probe says of our own agent: the rows of its table. Only of probes that found nothing."""
    agent, soak, listened, cycles, kill = map(good, PROBES)
    turned, killed = cycles["load"]["cycles"], kill["load"]["killed"]
    held = sum(trial["held"] for trial in listened["trials"])
    first = [ms for trial in listened["trials"] for ms in trial["figures"]["first_audio_ms"]]
    return [
        *scenarios(agent),
        soaked(soak["load"]),
        f"| who only listens (WHEP) hears the greeting, and nothing is wrong; from dialling on, at most | "
        f"{held} of {len(listened['trials'])}; {max(first):.0f} ms |",
        f"| {turned['cycles']} calls connected and closed: failed; left; memory, second half | "
        f"{turned['failed'] or 'none'}; {', '.join(turned['left']) or 'nothing'}; {turned['grown_mb']:+.1f} MB |",
        f"| engine killed (`kill -9`) under {killed['calls']} calls: error event; speech again, longest | "
        f"{max(killed['told']):.1f} s; {max(killed['spoke']):.1f} s |",
    ]


def soaked(load: dict[str, Any]) -> str:
    """An hour of calls: one row."""
    gaps, memory = round(load["gaps_a_call"] * load["calls"]), load["growths"][0]
    return (
        f"| {load['seconds'] / 60:.0f} minutes, {load['peers']} on the line who speak by turns: calls; gaps in them; "
        f"memory, an hour | {load['calls']}; {gaps or 'none'}; {memory['an_hour']:+.1f} MB |"
    )


def good(name: str) -> dict[str, Any]:
    """What a probe wrote, which was not interrupted, and in which nothing was found."""
    seen = result(name)
    broken = seen.get("load", {}).get("broken", [])
    assert not broken, f"{name}: {broken}"
    assert seen["good"] and not seen["interrupted"], f"{name}: {seen['findings']}"
    return seen


def scenarios(seen: dict[str, Any]) -> list[str]:
    """Every scenario, many times: three rows."""
    trials, by_name = seen["trials"], seen["scenarios"]
    held = sum(trial["held"] for trial in trials)
    stop, response = (pair(of_all(trials, what)) for what in ("stop_ms", "response_ms"))
    went_on = [went_on_in(by_name[name]) for name in ("cough", "backchannel", "echo")]
    return [
        f"| {len(by_name)} scenarios, {len(trials)} calls in {seen['seconds'] / 60:.0f} minutes: in every point as "
        f"expected | {held} of {len(trials)} |",
        f"| falls silent, from the user's onset; answers, from the user's end (p50 / p95) | {stop} ms; {response} ms |",
        f"| audible again after a cough; after mhm and a hum; never silent for long under its own echo at -12 dB | "
        f"{'; '.join(went_on)} |",
    ]


def of_all(trials: list[dict[str, Any]], what: str) -> dict[str, float]:
    p50, p95 = np.quantile([value for trial in trials for value in trial["figures"].get(what, [])], (0.5, 0.95))
    return {"p50": p50, "p95": p95}


def went_on_in(scenario: dict[str, Any]) -> str:
    held = [seen for says, seen in scenario["expectations"].items() if says.startswith("goes on")]
    return f"{sum(seen['held'] for seen in held)} of {sum(seen['of'] for seen in held)}"


def perfect() -> str:
    """What the probe says of an agent without a fault: one row."""
    seen = result("probe-perfect")
    return (
        f"| {seen['trials']} calls of a perfect agent, {seen['parallel']} at once: found; minutes; stop latency off by "
        f"at most, in {seen['stops']} stops | {seen['found'] or 'nothing'}; {seen['seconds'] / 60:.1f}; "
        f"{seen['stop_error_ms']['max']:.1f} ms |"
    )


def commands() -> set[str]:
    """The lines of the README's blocks, without their comments."""
    return {line.partition("  #")[0].rstrip() for block in blocks() for line in block.splitlines()}


def pair(figure: dict[str, float]) -> str:
    return f"{figure['p50']:.0f} / {figure['p95']:.0f}"


def stretch(what: str, seen: dict[str, Any]) -> list[str]:
    """Two rows of speech without a break."""
    steps, arrival = seen["timestamp_steps"], seen["inter_arrival_ms"]
    return [
        f"| {seen['speech_seconds']:.0f} s of speech, {what}: engine busy; non-silent concealment; underruns | "
        f"{100 * seen['engine_busy_share']:.0f} %; {seen['audible_concealed_samples']} samples; {seen['underruns']} |",
        f"| RTP timestamp steps of 960; packet to packet p99, largest | {steps['960']} of {sum(steps.values())}; "
        f"{arrival['p99']:.1f}, {arrival['max']:.1f} ms |",
    ]


def deadlines() -> list[str]:
    """The rows of the README's comparison of policies: twenty runs at one load, and the sweep over loads."""
    compared, swept = result("simulate")["policies"], result("sweep")["policies"]
    return [
        f"| {name} | {seen['requests_with_gaps']} | {seen['max_extra_buffer_ms']:.0f} ms | "
        f"{seen['ttfa_p50_ms']:.0f} / {seen['ttfa_p95_ms']:.0f} ms | {capacity(swept[name])} |"
        for name, seen in compared.items()
    ]


def capacity(swept: dict[str, Any]) -> str:
    return f"{swept['common_limit']['capacity']:.0f} ({swept['own_limit']['capacity']:.0f})"


def bounds() -> str:
    """What the device could do at most."""
    return f"{result('sweep')['bound']:.0f} streams are what the device could do at most."


def planning() -> str:
    """What a decision costs."""
    off, on = (r for r in result("plan")["rows"] if r["streams"] == 64)
    return (
        f"| deciding what runs next, 64 streams, p50 / p95; with others held back | {off['plan_us_p50']:.0f} / "
        f"{off['plan_us_p95']:.0f} us; {on['plan_us_p50']:.0f} / {on['plan_us_p95']:.0f} us |"
    )


def simulating() -> str:
    """How long a simulation takes."""
    seen = result("plan")["simulated"]
    return f"| simulating {seen['requests']} callers, {seen['steps']} steps | {seen['seconds']:.1f} s |"


def between() -> str:
    """What the host takes between two steps of the device, and how much of all time that is."""
    told = []
    for name in ("h200-gaps-64", "h200-gaps"):
        seen = result(name)["comparison"]["predictor"]
        step, gap = seen["steps"]["step_ms_mean"], seen["steps"]["between_ms_mean"]
        share = f"{gap / (gap + step):.0%}"
        told.append(f"{gap:.2f} ms for a step of {step:.2f} ms ({share}) at {seen['real_load']:.0f} streams")
    return ", ".join(told)


def determinism() -> str:
    """Codes by the shape of the batch."""
    rows = result("h200-determinism")["rows"]
    shares = ", ".join(f"{row['equal_share']:.0%}" for row in rows)
    return f"{shares} of the requests have all codes equal in batches of {', '.join(str(row['shape']) for row in rows)}"


def gaps() -> list[str]:
    """The real engine beside the simulator, for the same callers: where newest-first has gaps, at the rated load."""
    rows = []
    for data in (result("cpu-gaps-load"), result("cpu-gaps")):
        for name, real in data["policies"].items():
            load = data["comparison"][name]["real_load"]
            runs = (real, data["simulated"][name], data["paced"][name])
            seen = [f"{run['ttfa_p50_ms']:.0f} ms, {run['requests_with_gaps']}" for run in runs]
            rows.append(f"| {real['requests']} | {load:.2f} | {name} | {' | '.join(seen)} |")
    return rows


def heard() -> str:
    """How wrong the text is that is said to have been heard."""
    data = result("heard")
    seen, short = data["heard"]["complete"], data["heard"]["0.5 s ahead"]
    return (
        f"In {data['sentences']} sentences it was off by {seen['mean_error_words']:.1f} words in the mean, and said "
        f"too much in {seen['claims_too_much']:.1%} of the cases; where only the next 0.5 s were made yet, by "
        f"{short['mean_error_words']:.1f} words and in {short['claims_too_much']:.1%}"
    )


STEPS = {
    "eager-16": "op by op, 16 frames before the first chunk",
    "progressive": "op by op, chunks of 1, 2, 4, 8, 16 frames",
    "depth-compiled": "and the depth decoder as a graph of fused kernels",
    "graphs": "and every stage",
}
"""What `bench ablation` calls its steps, in words."""


def ablation() -> list[str]:
    """What each step brings to one request's first audio."""
    data = result("h200-ablation")
    published = data["published"]["ttfa_ms"]
    return [
        f"| {STEPS[row['step']]} | {row['ttfa_ms_p50']:.0f} ms | {published[row['step']]:.0f} ms |"
        for row in data["rows"]
    ]


def starts() -> str:
    """How long an engine took to start."""
    cold, cached, eager = (row["seconds"] for row in result("h200-start")["rows"])
    return (
        f"The first start compiles the kernels, which took {cold:.0f} s here; later ones took {cached:.0f} s, and "
        f"`--eager`, which captures nothing, {eager:.0f} s"
    )


def concurrency(name: str = "h200-concurrency") -> list[str]:
    """First audio by the number of requests."""
    rows = result(name)["rows"]
    together, random = ([row for row in rows if row["arrival"] == how] for how in ("together", "poisson"))
    return [
        f"| {one['requests']} | {one['ttfa_ms_p50']:.0f} / {one['ttfa_ms_p95']:.0f} ms | {other['ttfa_ms_p50']:.0f} / "
        f"{other['ttfa_ms_p95']:.0f} ms | {one['baseline_batched_ttfa_ms_p50']:.0f} ms |"
        for one, other in zip(together, random, strict=True)
    ]


def underruns(name: str = "h200-concurrency") -> str:
    """In all rows together."""
    rows = result(name)["rows"]
    late, served = sum(row["underruns"] for row in rows), sum(row["served"] for row in rows)
    return f"Of the chunks of these {served} requests {late or 'none'} came late."


def stages(name: str = "h200-stages") -> list[str]:
    """A frame's stages by the number of streams."""
    rows = {(row["stage"], row["batch"], row["length"]): row for row in result(name)["rows"]}
    return [
        f"| {stage} | "
        + " | ".join(f"{rows[stage, batch, 1]['ms_p50']:.1f} ms" for batch in (1, 16, 64))
        + f" | {rows[stage, 1, 1]['floor_ms']:.1f} ms |"
        for stage in ("decode", "depth", "codec")
    ]


def bandwidth() -> str:
    """Of the device, as it was measured."""
    return f"{result('h200-stages')['bandwidth_gb_per_s']:.0f} GB/s in the same run"


def h200_gaps() -> list[str]:
    """Callers in real time on the GPU, by policy."""
    both, predictor = result("h200-gaps"), result("h200-gaps-64")
    rows = [(both, name) for name in both["policies"]] + [(predictor, "predictor")]
    return [
        f"| {data['comparison'][name]['real_load']:.0f} | {name} | {seen['requests_with_gaps']} | "
        f"{seen['max_extra_buffer_ms']:.0f} ms | {seen['ttfa_p50_ms']:.0f} / {seen['ttfa_p95_ms']:.0f} ms | "
        f"{paced['requests_with_gaps']} | {paced['ttfa_p50_ms']:.0f} / {paced['ttfa_p95_ms']:.0f} ms |"
        for data, name in rows
        for seen, paced in [(data["policies"][name], data["paced"][name])]
    ]


def side_by_side() -> list[str]:
    """Qwen3-TTS by three runtimes, in one run."""
    return [
        f"| {row['runtime']} | {row['how']} | {row['requests']} | {row['ttfa_ms_p50']:.0f} / {row['ttfa_ms_p95']:.0f} "
        f"ms | {row['rtf']:.3f} |"
        for row in result("h200-qwen3-tts")["rows"]
    ]


VOICES = {"random-breeze-tts-2": "Breeze TTS 2's size", "checkpoint": "a tiny one"}
"""What is spoken with, in words."""


def voices() -> list[str]:
    """What a recording costs until a voice speaks like it."""
    rows = []
    for name in ("h200-voices", "cpu-voices"):
        data = result(name)
        (one, many), first = data["encoding"], {row["voice"]: row["ttfa_ms_p50"] for row in data["first_audio"]}
        maker = data["cpu"].partition("(")[0].split()[0]
        where = f"2 cores {CORES[maker]}" if data["threads"] else "one H200"
        kinds = " / ".join(f"{first[kind]:.1f}" for kind in ("plain", "first", "cached"))
        rows.append(
            f"| {where} | {one['all_ms_p50']:.0f} ms | {many['together']}: {many['all_ms_p50']:.0f} ms | "
            f"{VOICES[data['voice']]} | {kinds} ms |"
        )
    return rows


QWEN_GAPS = {"h200-qwen3-tts-gaps": "there as a whole", "h200-qwen3-tts-text": "written at 15 words a second"}
"""Callers of Qwen3-TTS, and what their texts are."""


def qwen_gaps() -> list[str]:
    """Callers in real time on the GPU."""
    rows = []
    for name, texts in QWEN_GAPS.items():
        data = result(name)
        seen, paced = (data[runs]["predictor"] for runs in ("policies", "paced"))
        first, simulated = (f"{run['ttfa_p50_ms']:.0f} / {run['ttfa_p95_ms']:.0f} ms" for run in (seen, paced))
        load = data["comparison"]["predictor"]["real_load"]
        gaps = f"{seen['requests_with_gaps']} of {seen['requests']}; {seen['text_waits']}"
        rows.append(f"| {load:.0f}; {seen['most_at_once']} | {texts} | {gaps} | {first} | {simulated} |")
    return rows
