"""What opening a call may meet, as an answer over HTTP: the same for every protocol that asks for one.

It does not know how it is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from agent.calls import CallRefused
from agent.guard import Refusal, busy
from agent.offer import OfferError
from agent.protocol import MAX_REASON_CHARS
from engine.checks import RequestError


@contextmanager
def refusals() -> Iterator[None]:
    """Around Calls.open: what it raises, as an answer over HTTP. Raises Refusal."""
    try:
        yield
    except OfferError as error:
        raise Refusal(400, "bad_request", str(error)) from error
    except RequestError as error:
        raise Refusal(400, "bad_request", str(error)[:MAX_REASON_CHARS]) from error
    except CallRefused as error:
        raise busy(error, error.retry_after) from error
