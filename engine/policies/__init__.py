"""Other ways to choose what runs next, emulated for comparison: they share stages, batch limits, costs and the chunk
ladder with the Predictor, and only order the work differently. Nobody is served by them.
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
PREDICTOR = "predictor"
NAMES = (*(policy.name for policy in EMULATIONS), PREDICTOR)


def make(name: str, predictor: Predictor, limits: Limits) -> Policy:
    """The policy of that name. Raises ValueError for another."""
    if name == PREDICTOR:
        return Predicted(predictor, limits)
    for policy in EMULATIONS:
        if policy.name == name:
            return policy.within(limits)
    raise ValueError(f"expected a policy out of {', '.join(NAMES)}, got {name!r}")
