"""What a voice can do of what is asked of it: its modes, its languages, guidance. It does not know text or codes."""

from __future__ import annotations

from engine.checks import RequestError
from engine.core import Mode, ModelSpec, Request
from engine.reference import check_cloning


def check_mode(request: Request, spec: ModelSpec) -> None:
    """Raises RequestError for a mode, or a language, that the voice does not know, and for a text that it cannot read
    while it is being written."""
    if request.open and not spec.open_text:
        raise RequestError(
            f"voice {spec.name} reads whole texts only, got a request whose text is open; send its text sentence by "
            "sentence",
            "open",
        )
    if request.reference is not None:
        check_cloning(spec)
    if request.mode not in spec.modes:
        known = ", ".join(sorted(spec.modes))
        raise RequestError(
            f"voice {spec.name} knows the modes {known}, got a request of mode {request.mode}; "
            f"{_advice(request, spec)}",
            "instruction" if request.instruction else "reference",
        )
    check_wishes(request.language, request.sampling.cfg_scale, spec)


def check_wishes(language: str, cfg_scale: float | None, spec: ModelSpec) -> None:
    """Raises RequestError for a language or a scale that the voice does not know in any mode."""
    if cfg_scale not in (None, 1.0, spec.sampling.cfg_scale) and not spec.guided:
        raise RequestError(
            f"cfg_scale must be left out: voice {spec.name} is not guided, got {cfg_scale:g}; take one with "
            "guidance, like Breeze TTS 2",
            "cfg_scale",
        )
    if language and language.lower() not in spec.languages:
        known = ", ".join(spec.languages) or "none"
        raise RequestError(
            f"language must be one of those that voice {spec.name} knows ({known}) or empty, got {language!r}; "
            "choose one of them",
            "language",
        )


def _advice(request: Request, spec: ModelSpec) -> str:
    if request.mode is Mode.PLAIN:
        wanted = {Mode.DESIGN: "an instruction", Mode.CLONE: "a reference", Mode.DIRECTION: "both"}
        return f"give {' or '.join(what for mode, what in wanted.items() if mode in spec.modes)}"
    return "leave out the instruction (design, direction) or the reference (clone, direction)"
