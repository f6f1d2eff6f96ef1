"""The command `bench gaps`: the simulator's callers, played to the real engine in real time, and simulated beside it.

It knows no model and no scheduling. What is simulated is what really happened: the instants of the calls, and the
lengths that the voice gave them. That is done twice: on a device as the profile has it, and on one that is slow and
fast when this one was during the run, so that what the simulator makes of scheduling is told apart from how far the
machine has drifted since it was calibrated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import inf
from statistics import fmean

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from engine import bench
from engine import simulate as command
from engine.contest import Figures, Race, counted, figures, unrefusing
from engine.core import Limits, ModelSpec, Request
from engine.costs import Pace, ProfileCosts
from engine.live import Live
from engine.messages import RuntimeConfig
from engine.metrics import Count, quantile
from engine.profile import Overhead, Profile
from engine.recorder import Ran, between
from engine.runtime import Runtime
from engine.simulator import Simulation, simulate
from engine.traffic import Utterance, poisson

CHARS_PER_SECOND = 18.0
"""Of speech: what the embedded voice makes of sentences of 50 to 90 characters (16 to 22 of others; measured)."""
WELL_SPOKEN = 0.4
"""Share of the longest text that a voice takes: of 360 characters, the embedded voice has learnt some 145."""
WARM_FRAMES = 20
SENTENCES = (
    *bench.SENTENCES,
    "If you like, I can read the whole list to you, or only those that are open now.",
    "There was a short delay this morning, but everything is on time again.",
    "Your parcel has left the town and should be with you before noon.",
    "I am sorry, could you tell me the number on the back of the card once more?",
    "The museum opens at ten, and on the first Sunday of the month nobody pays.",
    "It will rain in the afternoon, so take a coat with you when you go out.",
    "We have two rooms left, one of them with a view of the garden.",
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of the callers."""

    figures: Figures
    overruns: float
    """Share of steps that took longer than was predicted."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The real ones, in milliseconds."""

    step_ms_mean: float
    between_ms_mean: float
    """From the end of a step to the beginning of the next, while there is something to do: planning, bookkeeping,
    handing over. The device does nothing meanwhile."""
    between_ms_p50: float
    between_ms_p95: float
    pace: float
    """How fast the machine was: seconds that the profile has for the same steps over those that they took."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run, and what the simulator makes of the same callers."""

    policy: str
    profile: str
    longest_seconds: float
    """Of audio, in one utterance. Callers of longer ones are cut short, unless they come from a trace."""
    load: float
    """Mean number of streams at once that really came: seconds of audio in a second of calls."""
    trace: tuple[Utterance, ...]
    real: Outcome
    simulated: Outcome
    """On a device as the profile has it."""
    paced: Outcome
    """On one with the pace of the run, from step to step."""
    steps: Steps

    def to_dict(self) -> dict[str, object]:
        """JSON data beside the figures, without the trace."""
        outcomes = {"real": self.real, "simulated": self.simulated, "paced": self.paced}
        return {
            "real_load": round(self.load, 3),
            "simulated_over_real": ratios(self.simulated.figures, self.real.figures),
            "paced_over_real": ratios(self.paced.figures, self.real.figures),
            **{f"{name}_overruns": round(one.overruns, 4) for name, one in outcomes.items()},
            "steps": {name: round(value, 4) for name, value in asdict(self.steps).items()},
        }


def ratios(simulated: Figures, real: Figures) -> dict[str, float | None]:
    """Simulated over real; None where there is nothing to compare."""
    names = ("ttfa_p50_ms", "ttfa_p95_ms", "rtf", "requests_with_gaps")
    pairs = {name: (getattr(simulated, name), getattr(real, name)) for name in names}
    return {name: round(a / b, 3) if a is not None and b else None for name, (a, b) in pairs.items()}


def to_json(comparisons: Sequence[Comparison]) -> dict[str, object]:
    """JSON data of runs for the same callers, a policy each: real figures in the shape of simulate's."""
    one = comparisons[0]
    return {
        "profile": one.profile,
        "longest_seconds": one.longest_seconds,
        "policies": {run.policy: _rounded(run.real.figures) for run in comparisons},
        "simulated": {run.policy: _rounded(run.simulated.figures) for run in comparisons},
        "paced": {run.policy: _rounded(run.paced.figures) for run in comparisons},
        "comparison": {run.policy: run.to_dict() for run in comparisons},
    }


def _rounded(row: Figures) -> dict[str, object]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(row).items()}


def longest(spec: ModelSpec) -> float:
    """Seconds of speech up to which the voice speaks well."""
    return WELL_SPOKEN * spec.max_text_chars / CHARS_PER_SECOND


def script(requests: int, load: float, seed: int, spec: ModelSpec) -> list[Utterance]:
    """The callers of engine.traffic.poisson, none longer than the voice can say well; who is cut short has the others
    come sooner, so that the load is the same."""
    whole, most = poisson(requests, load, seed, spec), max(1, int(longest(spec) / spec.frame_seconds))
    short = [replace(said, frames=min(said.frames, most)) for said in whole]
    share = sum(said.frames for said in short) / sum(said.frames for said in whole)
    return [replace(said, at=said.at * share) for said in short]


def rated_load(profile: Profile) -> float:
    """The load that is played where none was asked for. Raises ValueError if the profile holds none."""
    if profile.rated_load is None:
        how = "give --load, or have simulate --sweep --store find one"
        raise ValueError(f"expected a profile with a rated load, {profile.name!r} holds none: {how}")
    return profile.rated_load


def text(number: int, chars: int) -> str:
    """Whole sentences and the beginning of one more: at most so many characters, and not many less. Each number has its
    own."""
    words = ""
    while len(words) < chars:
        words += SENTENCES[number % len(SENTENCES)] + " "
        number += 1
    if len(words) > chars + 1:
        whole = words[: chars - 1]
        words = whole if words[chars - 1] == " " else whole.rpartition(" ")[0] or whole
        words = words.rstrip(" ,.?") + "."
    return words.strip()


def asked(callers: Sequence[Utterance], spec: ModelSpec, exact: bool = False) -> list[Request]:
    """A request of the right length for each; `exact` for a voice that ends nothing by itself. Raises ValueError for
    callers who want more than a plain text."""
    if any(said.rows != 1 for said in callers):
        raise ValueError(
            "expected callers with plain texts, got guided ones (rows above 1): leave them out of the trace"
        )
    seconds = (said.frames * spec.frame_seconds for said in callers)
    chars = (min(round(CHARS_PER_SECOND * length), spec.max_text_chars) for length in seconds)
    samplings = (bench.fixed(spec.sampling, said.frames) if exact else spec.sampling for said in callers)
    texts = (text(number, max(2, most)) for number, most in enumerate(chars))
    return [Request(*asked) for asked in zip(texts, samplings, strict=True)]


def unrefusing_config(config: RuntimeConfig, policy: str) -> RuntimeConfig:
    """The same, with an engine that takes everybody in, as a simulated one does, and records its steps."""
    limits = unrefusing(Limits())
    return replace(config, policy=policy, max_wait=limits.max_wait, max_queued=limits.max_queued, record=True)


def compare(
    runtime: Runtime, callers: Sequence[Utterance], policy: str, profile: Profile, seed: int, console: Console
) -> Comparison:
    """Plays the callers to the engine, which takes as long as they speak. Raises RuntimeError when a request fails, and
    ValueError for a profile without a stage."""
    known, drawn = profile.halves(seed)
    usual = ProfileCosts(profile)
    happened, trace, ran = played(runtime, callers, console)
    steps = counted_steps(ran, usual)
    limits = unrefusing(runtime.limits, runtime.spec)

    def simulated(costs: ProfileCosts, overhead: Overhead) -> Simulation:
        return simulate(trace, costs, spec=runtime.spec, limits=limits, profile=known, policy=policy, overhead=overhead)

    paced = ProfileCosts(profile, pace=pace(ran, usual))
    runs = (
        happened,
        simulated(ProfileCosts(drawn, seed), profile.overhead),
        simulated(paced, replace(profile.overhead, step=steps.between_ms_mean / 1e3)),
    )
    race = Race(policy, seed=seed, requests=len(trace), trace=trace)
    real, unreal, at_its_pace = (Outcome(figures([counted(race, run)]), overruns(run)) for run in runs)
    most = max(said.frames for said in trace) * runtime.spec.frame_seconds
    load = offered(trace, runtime.spec)
    return Comparison(policy, profile.name, round(most, 2), load, trace, real, unreal, at_its_pace, steps)


def pace(ran: Sequence[Ran], usual: ProfileCosts) -> Pace:
    """How fast the machine was from step to step, held against what the profile has for the same ones."""
    return Pace((step.started_at, step.elapsed, usual.usual(step.stage, step.sequences, step.length)) for step in ran)


def counted_steps(ran: Sequence[Ran], usual: ProfileCosts) -> Steps:
    """Of a run with two steps or more."""
    ways = sorted(1e3 * seconds for seconds in between(ran))
    expected = sum(usual.usual(step.stage, step.sequences, step.length) for step in ran)
    took = sum(step.elapsed for step in ran)
    p50, p95 = (quantile(ways, share) for share in (0.5, 0.95))
    return Steps(1e3 * took / len(ran), fmean(ways), p50, p95, expected / took)


def played(
    runtime: Runtime, callers: Sequence[Utterance], console: Console
) -> tuple[Simulation, tuple[Utterance, ...], list[Ran]]:
    """What happened, the callers as they really came, and the steps that ran meanwhile, in the script's time."""
    warm_up(runtime)
    runtime.ran()
    with progress(console) as bar:
        task = bar.add_task("speaking", total=len(callers))
        requests = asked(callers, runtime.spec, exact=runtime.config.random_weights is not None)
        live = Live(runtime, callers, requests, lambda: bar.advance(task))
        happened = live.run()
    steps = [replace(step, started_at=step.started_at - live.started_at) for step in runtime.ran()]
    return happened, tuple(live.trace()), [step for step in steps if step.started_at >= 0]


def overruns(run: Simulation) -> float:
    """Share of its steps that took longer than was predicted."""
    return run.metrics[Count.OVERRUNS] / run.metrics[Count.STEPS]


def warm_up(runtime: Runtime) -> None:
    """The first utterances of a process take longer."""
    sampling = replace(runtime.spec.sampling, min_frames=0, max_frames=WARM_FRAMES)
    for words in bench.SENTENCES[:2]:
        bench.speak(runtime, [Request(words, sampling)])


def offered(trace: Sequence[Utterance], spec: ModelSpec) -> float:
    """Seconds of audio that callers ask for in a second, from the first call to the last."""
    span = trace[-1].at - trace[0].at
    return sum(said.frames for said in trace) * spec.frame_seconds / span if span else inf


def progress(console: Console) -> Progress:
    """Two updates a second: what draws it shares the cores with the engine."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, refresh_per_second=2)


def table(comparison: Comparison) -> Table:
    """The three, a row each, in the columns of simulate's table."""
    callers = f"{comparison.load:.2f} streams at once, of up to {comparison.longest_seconds:.1f} s"
    title = f"{comparison.policy}, {callers}; ms"
    rows = {"real": comparison.real, "simulated": comparison.simulated, "at its pace": comparison.paced}
    over = ", ".join(f"{name} {outcome.overruns:.1%}" for name, outcome in rows.items())
    steps = comparison.steps
    caption = (
        f"At its pace: simulated on a machine that is as fast as this one was from step to step, {steps.pace:.2f} "
    )
    caption += f"times as fast as the profile's. A step took {steps.step_ms_mean:.2f} ms, {steps.between_ms_mean:.2f} "
    caption += f"passed until the next. Steps that took longer than was predicted: {over}."
    out = command.table({name: outcome.figures for name, outcome in rows.items()}, title, caption)
    out.columns[0].header = ""
    return out
