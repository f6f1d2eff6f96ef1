"""Emulation: requests without first audio go first (first come first among them), then the others by arrival."""

from engine.core import Stage
from engine.policies.ordered import Ordered

POLICY = Ordered(
    "newest-first",
    "start priority without deadlines, as servers of text models prefer prefill to decoding (vLLM, SGLang)",
    lambda candidate, _: (
        not candidate.stream.starting,
        candidate.stage is not Stage.CODEC,
        candidate.stream.submitted_at,
    ),
)
