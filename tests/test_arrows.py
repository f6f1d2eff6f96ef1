"""The design's arrows: who may import whom, and what stays free of torch, WebRTC, CUDA and clocks.

A module that the tables do not name (a command, a bench) may import what it likes, but no named module may import it.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
WEBRTC = {"aiortc", "aioice", "av", "aiohttp"}

STAGES = (
    "kv_cache text backbone depth codec codec_blocks codec_encoder codec_transformer sampling weights config norm "
    "rotary transformer prepared speaker"
)
POLICIES = " ".join(
    f"policies.{name}"
    for name in (
        ["ordered", "run_to_completion", "newest_first", "round_robin", "fixed_chunks", "fixed_wait", "urgency_margin"]
    )
)
ENGINE = {
    # pure
    "checks": "",
    "core": "checks",
    "clock": "",
    "pages": "",
    "chunking": "",
    "metrics": "",
    "profile": "checks core",
    "playback": "",
    "predictor": "core chunking metrics profile",
    "room": "core playback predictor",
    "open_text": "",
    "stream": "core open_text playback room",
    "policy": "core predictor stream",
    "choice": "core predictor policy",
    "policies": f"core choice policy predictor {POLICIES}",
    **dict.fromkeys(POLICIES.split(), f"core policy predictor policies {POLICIES}"),
    "prefixes": "pages",
    "entrance": "core metrics pages playback policy prefixes room stream",
    "judge": "core chunking encoding policy predictor stream",
    "encoding": "core pages stream",
    "scheduler": "core choice encoding entrance judge metrics policy predictor room stream",
    "loop": "core clock predictor scheduler",
    "traffic": "checks core open_text",
    "listener": "core metrics traffic",
    "costs": "core profile",
    "simulator": "core costs listener policies policy predictor profile scheduler loop traffic",
    "estimate": "core chunking encoding profile",
    "contest": "core costs listener metrics policies policy profile simulator traffic",
    "capacity": f"core chunking contest costs metrics policies profile simulator traffic {POLICIES}",
    "lanes": "listener",
    "plot": "capacity contest lanes policies",
    # device
    "device": "",
    **dict.fromkeys(STAGES.split(), f"core device {STAGES}"),
    "models": f"core device {STAGES}",
    "byte_cache": "",
    "reference": "checks core",
    "modes": "checks core reference",
    "cloning": "byte_cache checks core reference",
    "emoji": "",
    "markdown": "",
    "normalise": "emoji english markdown",
    "english": "english.addresses english.dates english.letters english.quantities english.rule english.words",
    "english.rule": "",
    "english.numerals": "english.rule",
    "english.words": "english.rule",
    "english.dates": "english.numerals english.rule",
    "english.letters": "english.numerals english.rule",
    "english.addresses": "english.letters english.numerals english.rule",
    "english.quantities": "english.numerals english.rule",
    "prompts": "checks core weights",
    "generation": "checks config core weights",
    "models.breeze_tts_2": f"checks core device generation models modes normalise prompts fused_breeze {STAGES}",
    "growing_text": "",
    "models.qwen3_tts": f"checks core device fused_qwen3_tts generation growing_text models modes prompts {STAGES}",
    "fused": f"core {STAGES}",
    "fused_codec": f"core fused {STAGES}",
    "fused_twins": "sampling",
    "fused_breeze": f"device fused fused_codec models models.breeze_tts_2 models.qwen3_tts {STAGES}",
    "fused_qwen3_tts": "device fused fused_breeze kv_cache models models.qwen3_tts",
    "dimensions": "",
    "random_weights": f"core dimensions models models.breeze_tts_2 models.qwen3_tts {STAGES}",
    "batch": "core",
    "shapes": "core batch chunking",
    "stages": "core models sampling shapes",
    "encoder_places": "codec_encoder core speaker",
    "recorder": "core clock",
    "messages": "checks core recorder",
    "options": "checks core",
    "executor": "core device batch chunking encoder_places messages models random_weights sampling shapes stages",
}
SCHEDULING = {
    "open_text",
    "pages",
    "prefixes",
    "encoding",
    "encoder_places",
    "playback",
    "entrance",
    "judge",
    "room",
    "stream",
    "policy",
    "choice",
    "policies",
    "scheduler",
    "loop",
    "costs",
    "listener",
    "simulator",
    *POLICIES.split(),
}
PURE = (
    "open_text",
    "normalise",
    "emoji",
    "markdown",
    "english",
    "english.rule",
    "english.numerals",
    "english.words",
    "english.dates",
    "english.letters",
    "english.addresses",
    "english.quantities",
    "checks",
    "profile",
    "playback",
    "byte_cache",
    "encoding",
    "prefixes",
    "entrance",
    "judge",
    "room",
    "policy",
    "policies",
    "traffic",
    "estimate",
    "contest",
    "capacity",
    "lanes",
    "recorder",
    "dimensions",
    "batch",
    "shapes",
    *POLICIES.split(),
    "core",
    "clock",
    "pages",
    "chunking",
    "metrics",
    "predictor",
    "stream",
    "choice",
    "scheduler",
    "loop",
    "costs",
    "listener",
    "simulator",
)
AGENT_LEVELS = (
    "fault",
    "realtime",
    "protocol lateness pace allowance metrics toc libopus heard vad echo sentences sse thoughts trouble dialogue feed "
    "words dial closing near leftovers sounds probe probe.recording probe.stretch probe.ear probe.outcome probe.sounds "
    "probe.network probe.findings",
    "flow manner utterance playout turn guard transit called secret script silencing turn_end reply probe.books",
    "asking opus offer wire door jitter endpoint whisper realtime_items realtime_keys",
    "hearing microphone track receive chat whisper_worker transcribe container realtime_session",
    "client brain ears listener understanding",
    "saying voices",
    "sight voice_making",
    "scene",
    "session answering",
    "conversation reading demo",
    "realtime_dialect",
    "peer",
    "calls page",
    "opening speech_http",
    "voices_http",
    "whep realtime_routes",
    "server",
    "serve voice_agent",
    "probe.audible probe.dialect probe.mouth probe.neteq probe.scenario probe.report",
    "probe.measure probe.prompter",
    "probe.judge probe.call",
    "probe.judging",
    "probe.run",
    "probe.load",
)
AGENT_PURE = (
    "flow",
    "protocol",
    "asking",
    "playout",
    "lateness",
    "pace",
    "turn",
    "echo",
    "heard",
    "toc",
    "transit",
    "jitter",
    "sentences",
    "sse",
    "thoughts",
    "trouble",
    "dialogue",
    "script",
    "realtime",
    "silencing",
    "fault",
    "words",
    "turn_end",
    "saying",
    "manner",
    "sight",
    "realtime_session",
    "realtime_items",
    "near",
    "probe.recording",
    "probe.stretch",
    "probe.ear",
    "probe.outcome",
    "probe.findings",
)


@cache
def modules(package: str) -> dict[str, Path]:
    """Every module's name below the package (its own is left out), with its file."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT / package).with_suffix("").parts)
        found[name.removesuffix("__init__").rstrip(".")] = path
    del found[""]
    return found


def imported(path: Path) -> Iterator[str]:
    """Every dotted name that the file imports, at any depth; `from a import b` gives a.b and a."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def inner(package: str, path: Path) -> set[str]:
    """The package's modules that the file imports."""
    names = {name.removeprefix(f"{package}.") for name in imported(path) if name.startswith(f"{package}.")}
    return names & set(modules(package))


def outer(path: Path) -> set[str]:
    """The top-level packages that the file imports."""
    return {name.partition(".")[0] for name in imported(path)}


def present(names: tuple[str, ...], package: str) -> list[str]:
    """Those that exist: the tables also name what the design has for later."""
    return [name for name in names if name in modules(package)]


@pytest.mark.parametrize("name", present(tuple(ENGINE), "engine"))
def test_an_engine_module_imports_only_what_the_design_allows(name: str) -> None:
    assert inner("engine", modules("engine")[name]) - {name} <= set(ENGINE[name].split())


@pytest.mark.parametrize("level", range(len(AGENT_LEVELS)))
def test_agent_modules_import_only_from_below(level: int) -> None:
    below = {name for names in AGENT_LEVELS[:level] for name in names.split()}
    for name in present(tuple(AGENT_LEVELS[level].split()), "agent"):
        above = inner("agent", modules("agent")[name]) - below - {name}
        assert not above, f"agent.{name} imports {above}, which is not below it"


def test_the_engine_never_imports_the_agent_or_webrtc() -> None:
    """But for PyAV where a recording is decoded, and not before: tests/test_reference.py."""
    for name, path in modules("engine").items():
        allowed = {"av"} if name == "reference" else set()
        assert not outer(path) & (WEBRTC | {"agent"}) - allowed, name


def test_no_module_imports_transformers() -> None:
    """The checkpoint's own library: what the engine computes is written out here."""
    for package in ("engine", "agent"):
        for name, path in modules(package).items():
            assert "transformers" not in outer(path), f"{package}.{name}"


def test_loop_and_executor_meet_in_one_place() -> None:
    both = [n for n, path in modules("engine").items() if {"loop", "executor"} <= inner("engine", path)]
    assert both == ["worker"]


def test_the_agent_knows_nothing_of_stages_and_steps() -> None:
    inside = SCHEDULING | set(STAGES.split()) | {"executor", "models", "device"}
    for name, path in modules("agent").items():
        assert not inner("engine", path) & inside, name


def test_only_the_clock_reads_time_in_the_engine() -> None:
    readers = [name for name, path in modules("engine").items() if "time" in outer(path)]
    assert readers == ["clock"]


@pytest.mark.parametrize(
    ("package", "name"),
    [("engine", name) for name in present(PURE, "engine") if name != "clock"]
    + [("agent", name) for name in present(AGENT_PURE, "agent")],
)
def test_pure_modules_import_nothing_that_acts(package: str, name: str) -> None:
    acting = {"torch", "time", "datetime", "asyncio", "threading", "multiprocessing", "socket", "os", "subprocess"}
    assert not outer(modules(package)[name]) & (acting | WEBRTC)


def test_only_plots_need_the_extra_that_draws() -> None:
    drawing = [name for name, path in modules("engine").items() if "matplotlib" in outer(path)]
    assert drawing == ["plot"]


def strings(tree: ast.AST) -> Iterator[str]:
    """String constants and attribute names, without docstrings."""
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield node.value
        elif isinstance(node, ast.Attribute):
            yield node.attr


def test_cuda_is_known_to_device_only() -> None:
    files = {f"{package}.{name}": path for package in ("engine", "agent") for name, path in modules(package).items()}
    knowing = [name for name, path in files.items() if "cuda" in strings(ast.parse(path.read_text()))]
    assert knowing == ["engine.device"]


def brought_in(code: str) -> set[str]:
    """The top-level packages that are loaded after `code` ran in a fresh interpreter."""
    command = f"{code}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_pure_modules_bring_in_neither_torch_nor_webrtc() -> None:
    names = [f"engine.{name}" for name in present(PURE, "engine")]
    names += [f"agent.{name}" for name in present(AGENT_PURE, "agent")]
    assert not brought_in("import " + ", ".join(names)) & ({"torch"} | WEBRTC)


def test_the_runtime_leaves_its_callers_process_without_torch() -> None:
    assert not brought_in("import engine.runtime, engine.simulate, engine.__main__") & {"torch", "matplotlib"}


def test_the_engines_commands_work_without_a_webrtc_package() -> None:
    blocked = "; ".join(f"sys.modules[{name!r}] = None" for name in sorted(WEBRTC))
    there = [name for name in reached("__main__") if not name.startswith("fused")]  # loaded where Triton is
    reachable = ", ".join(f"engine.{name}" for name in sorted(there))
    brought_in(f"import sys; {blocked}; import {reachable}")


def reached(start: str) -> set[str]:
    """All engine modules that this one imports, directly or not, also inside of functions."""
    seen, todo = {start}, [start]
    while todo:
        for name in inner("engine", modules("engine")[todo.pop()]) - seen:
            seen.add(name)
            todo.append(name)
    return seen
