"""Loading and saving models without output of transformers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Disable the progress bars and log messages of transformers in the block; exceptions are still raised."""
    from logging import CRITICAL

    from transformers.utils import logging

    showed_bars, level = logging.is_progress_bar_enabled(), logging.get_verbosity()
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    logging.set_verbosity(CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if showed_bars:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]
