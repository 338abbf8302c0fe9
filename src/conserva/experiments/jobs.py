"""Parts of an experiment, one after the other or several side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import Any

import torch

from ..cores import cores

Say = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and of how much."""


def run_jobs(
    work: Callable[..., None], todo: Sequence[tuple[Any, ...]], jobs: int, say: Say | None, what: str = "classifiers"
) -> None:
    """Call `work` with each tuple of arguments; in processes of their own if several may run side by side.

    One after the other, each is also given `say`, to tell of its own progress.
    """
    if jobs == 1:
        for one in todo:
            work(*one, say)
        return
    threads = max(1, cores() // jobs)
    with ProcessPoolExecutor(jobs, get_context("spawn"), torch.set_num_threads, (threads,)) as pool:
        running = [pool.submit(work, *one) for one in todo]
        try:
            for done, job in enumerate(as_completed(running), 1):
                job.result()
                if say is not None:
                    say(what, done, len(todo))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
