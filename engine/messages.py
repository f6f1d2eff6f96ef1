"""What crosses the pipe between a runtime and its engine. It imports no torch, so that the media process needs none."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from engine.checks import RequestError, shown
from engine.core import SPEAKING, Cancel, Encode, Limits, ModelSpec, Output, Playhead, Request, Stage
from engine.recorder import Ran

EMBEDDED_VOICE = Path(__file__).parent / "voices" / "breeze-mini"
PATIENCE = 30.0
"""Seconds without a piece after which the text of an open request is taken to be complete."""


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """What to load and where. Everything crosses a pipe, so it is plain data."""

    voice: Path = EMBEDDED_VOICE
    """A checkpoint folder of the official layout."""
    device: str = "auto"
    dtype: str | None = None
    """fp32 or bf16; None is bf16 on CUDA and fp32 on the CPU."""
    in_process: bool = False
    """A thread of this process instead of a process of its own: for tests and debuggers."""
    limits: Limits | None = None
    """None holds `slots` requests of any length."""
    slots: int | None = None
    """Requests at once, unless `limits` say so (one with guidance counts twice); None lets the device decide."""
    profile: Path | None = None
    """What steps cost, as calibrate wrote it: the Predictor's prior. None: the one that comes with the engine for this
    voice and kind of device, if any."""
    max_wait: float = 2.0
    """Takes the place of limits.max_wait: predicted seconds that a new caller may have to wait for others' deadlines.
    Infinity serves everybody at once, late or not."""
    max_queued: int | None = None
    """As in Limits; None leaves it at what the limits say."""
    policy: str = "predictor"
    """Out of engine.policies.NAMES; the others are emulations, for benches."""
    explain: bool = False
    """Print every decision of the scheduler in one line, to standard error."""
    normalise: bool | None = None
    """Whether numbers, symbols and markup are written out as words before the voice reads them; None: as it says."""
    random_weights: str | None = None
    """Instead of a voice: random weights at the dimensions of this model, see engine.random_weights. For benches."""
    graphs: frozenset[Stage] = frozenset(SPEAKING)
    """Stages that run as captured graphs of fused kernels, on CUDA; the others run op by op, as ENCODE always does. The
    CPU has no graphs."""
    threads: int | None = None
    """Threads of one operation on the CPU; None lets the device decide."""
    record: bool = False
    """Keep a record of all steps, for Runtime.ran and Runtime.follow: for benches, and for those who watch."""
    tell_seconds: float = 1.0
    """How often, at most, a busy engine tells its metrics and its record."""


@dataclass(frozen=True, slots=True)
class StartUp:
    """What an engine did before it was ready, in seconds; it was started, and had imported PyTorch, before that."""

    weights: float
    """Until they are on the device and every kernel is compiled or found compiled."""
    graphs: float
    warm_up: float
    num_graphs: int
    graph_bytes: int
    """Memory that they took."""


@dataclass(frozen=True, slots=True)
class Ready:
    """The voice is loaded and warm."""

    spec: ModelSpec
    limits: Limits
    device: str
    """What the device calls itself."""
    start_up: StartUp


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The voice could not be loaded; the text says why."""

    message: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The engine's metrics, by name."""

    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Recorded:
    """Steps that ran since the last of these."""

    ran: tuple[Ran, ...]


@dataclass(frozen=True, slots=True)
class Numbered:
    """A request on its way in, with the id that its outputs will carry."""

    request_id: int
    epoch: int
    packed: bytes
    """The Request, pickled by itself: one that cannot be read again fails alone, and is still known by its id."""
    submitted_at: float
    """On CLOCK_MONOTONIC, which all processes of a machine share."""

    @property
    def request(self) -> Request:
        """Raises whatever what a caller put into it raises."""
        request: Request = pickle.loads(self.packed)
        return request


@dataclass(frozen=True, slots=True)
class TextPiece:
    """More of the text of an open request; `done`: with it the text is complete."""

    request_id: int
    text: str
    done: bool = False
    came_at: float | None = None
    """As in core.Text."""


def packed(request: Request) -> bytes:
    """For Numbered. Raises RequestError, which names the field that is no plain data."""
    try:
        return pickle.dumps(request)
    except Exception as error:  # whatever a caller's own type raises
        wrong = next((field.name for field in fields(request) if not _plain(getattr(request, field.name))), "request")
        came = shown(getattr(request, wrong, request))
        problem = f"{type(error).__name__}: {error}"
        raise RequestError(f"{wrong} must be plain data that can be pickled, got {came} ({problem})") from error


def _plain(value: object) -> bool:
    try:
        pickle.dumps(value)
    except Exception:  # as above
        return False
    return True


@dataclass(frozen=True, slots=True)
class SetPolicy:
    """From now on the policy of that name, out of engine.policies.NAMES, decides: for demonstrations."""

    name: str


@dataclass(frozen=True, slots=True)
class Close:
    """The end: nothing more will be asked."""


ToWorker = Numbered | TextPiece | Encode | Cancel | Playhead | SetPolicy | Close
FromWorker = Ready | StartFailed | Snapshot | Recorded | Output
