"""Emulation: whoever was served longest ago goes first."""

from engine.policies.ordered import Ordered

POLICY = Ordered("round-robin", "processor sharing", lambda candidate, _: (candidate.stream.served_at,))
