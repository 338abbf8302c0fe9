"""Parts of an experiment that run side by side."""

from __future__ import annotations

import os
import signal
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from conserva.paper.experiments.jobs import run_jobs


def write(path: Path, text: str) -> None:
    path.write_text(f"{text} by {os.getpid()}")


def test_jobs_run_in_processes_of_their_own(tmp_path: Path) -> None:
    said: list[tuple[str, int, int]] = []
    run_jobs(write, [(tmp_path / name, name) for name in "ab"], 2, lambda *told: said.append(told), "files")
    assert said == [("files", 1, 2), ("files", 2, 2)]
    written = [(tmp_path / name).read_text() for name in "ab"]
    assert [text.split()[0] for text in written] == ["a", "b"]
    assert str(os.getpid()) not in " ".join(written)


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="signals of POSIX")
def test_an_interrupt_while_workers_start_waits_and_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system may hand it to any thread; Python handles it in the main thread, in the middle of whatever it does."""
    submit, submitted, done = ProcessPoolExecutor.submit, list[bool](), threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()

    def interrupted(pool: Any, *what: Any) -> Any:
        signal.pthread_kill(other.ident or 0, signal.SIGINT)
        time.sleep(0.05)
        found = submit(pool, *what)
        submitted.append(True)
        return found

    monkeypatch.setattr(ProcessPoolExecutor, "submit", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_jobs(write, [(tmp_path / "a", "a")], 2, None, "files")
        assert submitted == [True]
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    finally:
        signal.signal(signal.SIGINT, before)
        done.set()
