"""What a caller of the demo page hears of each policy, beside synthetic listeners: the last part of `bench page`.

It knows the page by its buttons and the server by its messages, and nothing of scheduling. The policies take turns,
because the rest of a machine changes within minutes; a caller who stutters under one of them had the same replies and
the same company under the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from agent.bench_report import SENTENCES, Advance
from agent.browser import BrowserError, Heard, tab
from agent.browser import Listener as Tab
from agent.demo import POLICIES

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

SETTLE_SECONDS = 3.0
"""With a policy, before it counts: utterances that began under the other are over, or nearly so."""
REPLIES = 2
"""Under one policy, before it is the other's turn."""
SLIDER_SECONDS = 0.3
"""In which the page tells the server where the slider rests."""


@dataclass(frozen=True, slots=True)
class Reply:
    """One that the caller asked for."""

    first_audio_ms: float | None
    """From the speak message to the first PCM, as the server counts it; None where all voices were busy."""
    stutters: int
    missed_ms: float
    """Of silence inside its speech."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What was heard of one policy."""

    policy: str
    replies: int
    refused: int
    """All voices were busy, and would have been for too long."""
    replies_with_stutters: int
    stutters: int
    missed_ms: float
    """Of silence inside speech, in all replies together."""
    longest_ms: float
    """Of it, in one reply."""
    first_audio_ms: float
    """p50, with what a reply has to wait until its speech would not make others stutter."""

    @classmethod
    def of(cls, policy: str, replies: Sequence[Reply]) -> Policy:
        """Raises BrowserError where nothing was heard."""
        heard = [reply for reply in replies if reply.first_audio_ms is not None]
        if not heard:
            raise BrowserError(f"with the policy {policy} all replies were refused: try fewer synthetic listeners")
        return cls(
            policy=policy,
            replies=len(replies),
            refused=len(replies) - len(heard),
            replies_with_stutters=sum(reply.stutters > 0 for reply in heard),
            stutters=sum(reply.stutters for reply in heard),
            missed_ms=round(sum(reply.missed_ms for reply in heard)),
            longest_ms=round(max(reply.missed_ms for reply in heard)),
            first_audio_ms=round(median(reply.first_audio_ms or 0.0 for reply in heard)),
        )


@dataclass(frozen=True, slots=True)
class Compared:
    """The policies, as a caller hears them."""

    synthetic_listeners: int
    policies: list[Policy]


async def compared(
    browser: Browser, url: str, load: int, order: Iterable[str], advance: Advance = lambda done: None
) -> Compared:
    """Replies under each policy, in this order of policies, on a server that is for show. Raises BrowserError."""
    replies: dict[str, list[Reply]] = {policy: [] for policy in POLICIES}
    async with tab(browser, url) as listener:
        await listener.connect()
        await slide(listener.page, load)
        for count, policy in enumerate(order):
            await choose(listener.page, policy)
            for _ in range(REPLIES):
                replies[policy].append(await replied(listener, SENTENCES[len(replies[policy]) % len(SENTENCES)]))
            advance(count + 1)
        await choose(listener.page, POLICIES[0])
        await slide(listener.page, 0)
    return Compared(load, [Policy.of(policy, some) for policy, some in replies.items()])


async def slide(page: Page, count: int) -> None:
    """Moves the slider for synthetic listeners, and leaves it there until the page tells the server."""
    await page.wait_for_selector("#demo:visible")
    await page.fill("#load", str(count))
    await page.wait_for_timeout(1000 * SLIDER_SECONDS)  # it sends where the slider rests


async def choose(page: Page, policy: str) -> None:
    await page.click(f"#policies button >> nth={POLICIES.index(policy)}")
    await page.wait_for_timeout(1000 * SETTLE_SECONDS)


async def replied(listener: Tab, text: str) -> Reply:
    """What becomes of one reply."""
    await listener.gather()
    before = len(listener.heard.messages)
    await listener.speak(text)
    await listener.until_silent()
    heard = await listener.gather()
    return reply(Heard(messages=heard.messages[before:]))


def reply(heard: Heard) -> Reply:
    """Of the messages that came meanwhile."""
    started, missed = heard.of_type("speech.started"), heard.of_type("speech.underrun")
    first = float(started[0]["ttfa_ms"]) if started else None
    return Reply(first, len(missed), sum(each["missed_ms"] for each in missed))
