"""Reads what an engine writes into its pipe, in a process of its own, as an engine's owner does. It keeps nothing.

So that calibration has the company that a running engine has.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection


def read(connection: Connection) -> None:
    """Until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it reaches whole groups; the owner decides when this ends
    try:
        while True:
            connection.recv()
    except EOFError:
        connection.close()


@contextmanager
def reading() -> Iterator[Connection]:
    """The end to write into."""
    context = multiprocessing.get_context("spawn")
    theirs, ours = context.Pipe(duplex=False)
    process = context.Process(target=read, args=(theirs,), name="breezert-reader", daemon=True)
    process.start()
    theirs.close()  # so that a reader that died is noticed
    with ours:
        yield ours
    process.join()
