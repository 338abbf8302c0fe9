"""Parts of an experiment, one after the other or several at the same time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, connection, get_context, parent_process
from typing import Any

import torch

from ..._util.cores import cores
from ...engine.interrupts import DeferredSignals
from ...errors import Error

Say = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and of how much."""


def run_jobs(work: Callable[..., None], todo: Sequence[tuple[Any, ...]], jobs: int, say: Say | None, what: str) -> None:
    """Call `work` with each tuple of arguments; with several jobs in worker processes.

    Without worker processes each call also gets `say`, to report its own progress.
    """
    if jobs == 1:
        for one in todo:
            work(*one, say)
        return
    threads = max(1, cores() // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (threads,)) as pool:
        try:
            with _without_interrupts():
                running = [pool.submit(work, *one) for one in todo]
            for done, job in enumerate(as_completed(running), 1):
                job.result()
                if say is not None:
                    say(what, done, len(todo))
        except BrokenProcessPool:
            raise Error(
                f"One of the {jobs} worker processes was killed, as the system does when memory runs out: give fewer "
                "--jobs. What was done so far is kept: run the same command again."
            ) from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in active_children():
                worker.terminate()
            raise


def _begin(threads: int) -> None:
    """Prepare a worker process, which ends when the process that started it ends, even if that is killed."""
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Block SIGINT while workers start. A new process inherits the blocked signals.

    A terminal sends SIGINT to all processes; this process ends the workers itself. In this process an interrupt waits
    until the block ends: raised while a worker starts, it would leave that worker waiting for its job forever.
    """
    with DeferredSignals():
        if not hasattr(signal, "pthread_sigmask"):
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
