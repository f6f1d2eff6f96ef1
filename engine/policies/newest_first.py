"""Emulation: requests without first audio go first (first come first among them), then the others by arrival; within
each of the two, a chunk that is ready for the codec goes before frames.

That last part is not in the order by arrival, and makes this baseline stronger. In the systems that it stands for, the
codec is a stage of its own that takes a chunk as soon as it is complete. Here one device runs all stages: by arrival
alone, an older stream's next frame would go before a finished chunk until that stream ends, and there would be gaps
from a load of about 1 on.
"""

from engine.core import Stage
from engine.policies.ordered import Ordered

POLICY = Ordered(
    "newest-first",
    "vLLM and SGLang prefer prefill to decoding",
    lambda candidate, _: (
        not candidate.stream.starting,
        candidate.stage is not Stage.CODEC,
        candidate.stream.submitted_at,
    ),
)
