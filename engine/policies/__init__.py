"""Other ways to choose what runs next, emulated for comparison. Nobody is served by them.

They share stages, batch limits, step limit, costs and ladder with the Predictor (only the chunks of fixed-chunks may
take longer than the step limit). They defend no deadlines, though two of them order by one: no stream is held at
max_lead, and no chunk is sent in part.
"""

from __future__ import annotations

from engine.choice import Predicted
from engine.core import Limits
from engine.policies import fixed_chunks, fixed_wait, newest_first, round_robin, run_to_completion, urgency_margin
from engine.policies.ordered import Ordered
from engine.policy import Policy
from engine.predictor import Predictor

EMULATIONS: tuple[Ordered, ...] = (
    run_to_completion.POLICY,
    newest_first.POLICY,
    round_robin.POLICY,
    fixed_chunks.POLICY,
    fixed_wait.POLICY,
    urgency_margin.POLICY,
)
SOURCES = {policy.name: policy.source for policy in EMULATIONS}
"""Of each emulation's settings."""
PREDICTOR = "predictor"
NAMES = (*(policy.name for policy in EMULATIONS), PREDICTOR)


def make(name: str, predictor: Predictor, limits: Limits) -> Policy:
    """The policy of that name. Raises ValueError for another."""
    if name == PREDICTOR:
        return Predicted(predictor, limits)
    for policy in EMULATIONS:
        if policy.name == name:
            return policy.within(predictor, limits)
    raise ValueError(f"expected a policy out of {', '.join(NAMES)}, got {name!r}")
