"""The command `bench gaps`: the simulator's callers, played to the real engine in real time, and simulated beside it.

It knows no model and no scheduling. What is simulated is what really happened: the instants of the calls, and the
lengths that the voice gave them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import inf

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from engine import bench
from engine import simulate as command
from engine.contest import Figures, Race, counted, figures, unrefusing
from engine.core import Limits, ModelSpec, Request
from engine.costs import ProfileCosts
from engine.live import Live
from engine.messages import RuntimeConfig
from engine.metrics import Count
from engine.profile import Profile
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
class Comparison:
    """One run, and what the simulator makes of the same callers."""

    policy: str
    profile: str
    longest_seconds: float
    """Of audio, in one utterance. Callers of longer ones are cut short, unless they come from a trace."""
    load: float
    """Mean number of streams at once that really came: seconds of audio in a second of calls."""
    trace: tuple[Utterance, ...]
    real: Figures
    simulated: Figures
    real_overruns: float
    """Share of steps that took longer than was predicted."""
    simulated_overruns: float

    def to_dict(self) -> dict[str, object]:
        """JSON data beside the figures, without the trace."""
        return {
            "real_load": round(self.load, 3),
            "simulated_over_real": self.ratios(),
            "real_overruns": round(self.real_overruns, 4),
            "simulated_overruns": round(self.simulated_overruns, 4),
        }

    def ratios(self) -> dict[str, float | None]:
        """Simulated over real; None where there is nothing to compare."""
        names = ("ttfa_p50_ms", "ttfa_p95_ms", "rtf", "requests_with_gaps")
        pairs = {name: (getattr(self.simulated, name), getattr(self.real, name)) for name in names}
        return {name: round(a / b, 3) if a is not None and b else None for name, (a, b) in pairs.items()}


def to_json(comparisons: Sequence[Comparison]) -> dict[str, object]:
    """JSON data of runs for the same callers, a policy each: real figures in the shape of simulate's."""
    one = comparisons[0]
    return {
        "profile": one.profile,
        "longest_seconds": one.longest_seconds,
        "policies": {run.policy: _rounded(run.real) for run in comparisons},
        "simulated": {run.policy: _rounded(run.simulated) for run in comparisons},
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
    """The same, with an engine that takes everybody in, as a simulated one does."""
    limits = unrefusing(Limits())
    return replace(config, policy=policy, max_wait=limits.max_wait, max_queued=limits.max_queued)


def compare(
    runtime: Runtime, callers: Sequence[Utterance], policy: str, profile: Profile, seed: int, console: Console
) -> Comparison:
    """Plays the callers to the engine, which takes as long as they speak. Raises RuntimeError when a request fails, and
    ValueError for a profile without a stage."""
    known, drawn = profile.halves(seed)
    costs = ProfileCosts(drawn, seed)
    happened, trace = played(runtime, callers, console)
    limits = unrefusing(runtime.limits, runtime.spec)
    simulated = simulate(
        trace, costs, spec=runtime.spec, limits=limits, profile=known, policy=policy, overhead=profile.overhead
    )
    race = Race(policy, seed=seed, requests=len(trace), trace=trace)
    real, unreal = (figures([counted(race, run)]) for run in (happened, simulated))
    most = max(said.frames for said in trace) * runtime.spec.frame_seconds
    load, shares = offered(trace, runtime.spec), map(overruns, (happened, simulated))
    return Comparison(policy, profile.name, round(most, 2), load, trace, real, unreal, *shares)


def played(
    runtime: Runtime, callers: Sequence[Utterance], console: Console
) -> tuple[Simulation, tuple[Utterance, ...]]:
    """What happened, and the callers as they really came."""
    warm_up(runtime)
    with progress(console) as bar:
        task = bar.add_task("speaking", total=len(callers))
        requests = asked(callers, runtime.spec, exact=runtime.config.random_weights is not None)
        live = Live(runtime, callers, requests, lambda: bar.advance(task))
        happened = live.run()
    return happened, tuple(live.trace())


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
    """The two, a row each, in the columns of simulate's table."""
    callers = f"{comparison.load:.2f} streams at once, of up to {comparison.longest_seconds:.1f} s"
    title = f"{comparison.policy}, {callers}; ms"
    over = f"{comparison.real_overruns:.1%}; simulated {comparison.simulated_overruns:.1%}"
    caption = f"Steps that took longer than was predicted: {over}."
    out = command.table({"real": comparison.real, "simulated": comparison.simulated}, title, caption)
    out.columns[0].header = ""
    return out
