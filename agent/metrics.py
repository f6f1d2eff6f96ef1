"""Counts what the agent does and writes it, with what the engine counted, in Prometheus' text format.

It does not know sessions or peers: they count, it adds up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

TTFA_BUCKETS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.0, 5.0)
SILENCE_BUCKETS = (0.01, 0.02, 0.03, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0)
ANSWER_BUCKETS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0)


class EngineCollector(Collector):
    """The engine's own numbers, named breezert_engine_*: what ends in _total is a counter."""

    def __init__(self, snapshot: Callable[[], Mapping[str, float]]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        for name, value in sorted(self._snapshot().items()):
            name = name.removeprefix("engine_")
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            yield family(f"breezert_engine_{name}", f"The engine's {name.replace('_', ' ')}.", value)


class AgentMetrics:
    """Every count of the agent, in a registry of its own."""

    def __init__(self, snapshot: Callable[[], Mapping[str, float]]) -> None:
        self._registry = registry = CollectorRegistry(auto_describe=False)
        registry.register(EngineCollector(snapshot))
        self.peers = Gauge("breezert_peers", "Calls that are open.", registry=registry)
        tasks = Gauge("breezert_tasks", "Tasks of the event loop that are not over.", registry=registry)
        tasks.set_function(lambda: len(asyncio.all_tasks()))
        self.calls_ended = Counter("breezert_calls_ended", "Calls that ended, by why.", ["why"], registry=registry)
        self.refused = Counter("breezert_refused", "HTTP requests refused, by status.", ["status"], registry=registry)
        self.answer = Histogram(
            "breezert_answer_seconds", "From offer to answer.", buckets=ANSWER_BUCKETS, registry=registry
        )
        self.ttfa = Histogram(
            "breezert_ttfa_seconds",
            "From the speak message to the first PCM, of utterances that had to wait for no other.",
            buckets=TTFA_BUCKETS,
            registry=registry,
        )
        self.barge_in = Histogram(
            "breezert_barge_in_seconds",
            "From the first frame of a user's speech, or a stop, to the last audible packet.",
            buckets=SILENCE_BUCKETS,
            registry=registry,
        )
        self.utterances = Counter(
            "breezert_utterances", "Utterances that are over, by reason.", ["reason"], registry=registry
        )
        self.errors = Counter("breezert_errors", "Error events sent, by code.", ["code"], registry=registry)
        self.packets = Counter("breezert_packets", "Audio packets sent.", registry=registry)
        self.stalls = Counter(
            "breezert_pacing_stalls",
            "Times that packets were so late that their clock was set anew.",
            registry=registry,
        )
        self.underruns = Counter(
            "breezert_underruns", "Times that speech stood still before its end.", registry=registry
        )
        self.missed = Counter("breezert_underrun_seconds", "Silence sent inside utterances.", registry=registry)

    def render(self) -> bytes:
        """The exposition, for a scraper. To be called on the event loop."""
        return generate_latest(self._registry)
