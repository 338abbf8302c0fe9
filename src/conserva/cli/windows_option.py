"""The option --windows."""

from __future__ import annotations

import argparse
import re

from .arguments import Options

_NUMBERS = re.compile(r"([0-9]{1,9}),([0-9]{1,9})")


def add_windows(parser: Options) -> None:
    """Add the option --windows, whose value is False, True or (length, overlap)."""
    parser.add_argument(
        "--windows",
        nargs="?",
        const=True,
        default=False,
        type=_parsed,
        metavar="LENGTH,OVERLAP",
        help="explain longer texts in windows of so many tokens (default: the maximum length, a quarter overlapping)",
    )


def _parsed(text: str) -> tuple[int, int]:
    match = _NUMBERS.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not LENGTH,OVERLAP, such as 256,64; without numbers, write --windows after the text"
        )
    return int(match[1]), int(match[2])
