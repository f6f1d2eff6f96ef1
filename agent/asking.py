"""What a client asks to have said, as the engine is asked for it. It knows neither calls nor queues."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agent.manner import FIRST_SPEAKER, Manner
from agent.protocol import Error, Speak
from engine.checks import RequestError, check_written, shown
from engine.core import ErrorCode, Mode, ModelSpec, Reference, Request, SamplingParams
from engine.modes import check_wishes


def unsayable(speak: Speak, max_chars: int) -> Error | None:
    """Why this cannot be said in one utterance of at most so many characters."""
    if not (speak.open or speak.text.strip()):
        return Error(code=ErrorCode.BAD_REQUEST, message="there is no text to say", id=speak.id, field="text")
    if len(speak.text) > max_chars:
        message = f"a text has at most {max_chars} characters, this one has {len(speak.text)}: say it in parts"
        return Error(code=ErrorCode.TOO_LONG, message=message, id=speak.id, field="text")
    return None


def to_request(speak: Speak, manner: Manner, spec: ModelSpec, reference: Reference | None, epoch: int) -> Request:
    """A text said in this manner, and like the reference. Raises RequestError, which names the field."""
    sampling = sampling_of(spec.sampling, speak.seed, speak.temperature, manner.cfg_scale)
    return Request(
        speak.text,
        sampling,
        FIRST_SPEAKER if manner.speaker is None else manner.speaker,
        manner.instruction or "",
        reference,
        epoch,
        language=manner.language or "",
        open=speak.open,
    )


def check_manner(manner: Manner, spec: ModelSpec) -> None:
    """Raises RequestError, which names the field, for a manner in which nothing can be said, like whomever."""
    request = to_request(Speak(id="any", text=""), manner, spec, None, epoch=0)
    for name in ("speaker", "instruction", "language"):
        check_written(name, getattr(request, name), spec.max_text_chars)
    if request.instruction and spec.modes.isdisjoint((Mode.DESIGN, Mode.DIRECTION)):
        raise RequestError(f"instruction must be left out: the voice {spec.name} follows none", "instruction")
    check_wishes(request.language, request.sampling.cfg_scale, spec)
    if spec.speakers and request.speaker.strip("[]").lower() not in names(spec.speakers):
        known = ", ".join(spec.speakers)
        raise RequestError(f"speaker must be one of {known} or empty, got {shown(request.speaker)}", "speaker")


def names(speakers: Sequence[str]) -> set[str]:
    """What they may be called, in small letters: a name, a place in the list from S0 on, or nothing."""
    return {"", *(name.lower() for name in speakers), *(f"s{place}" for place in range(len(speakers)))}


def sampling_of(
    own: SamplingParams, seed: int | None, temperature: float | None, cfg_scale: float | None
) -> SamplingParams:
    """The voice's own, with what a client wants otherwise. Raises RequestError, which names the field."""
    return replace(
        own,
        seed=own.seed if seed is None else seed,
        temperature=own.temperature if temperature is None else temperature,
        cfg_scale=own.cfg_scale if cfg_scale is None else cfg_scale,
    )
