"""Many cases in a process of their own: one that hangs, crashes or takes all memory is told from the others."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import traceback
import unicodedata
from collections.abc import Callable, Mapping
from typing import Any

import conserva

SECONDS = 60
"""How long a case may take, on a slow machine with others."""

MOST_MEMORY = 2 * 2**30
"""By how many bytes a case may let the process grow."""

_LIMIT = 6 * 2**30
"""By how many bytes it can grow at all: no attack shall take the memory of others on the machine."""


def failures(cases: Mapping[str, Callable[[], Any]]) -> list[str]:
    """Run cases, and return what is wrong with some: each must work, or raise an `Error` of one printable line."""
    names, wrong = list(cases), []
    start = 0
    while start < len(names):
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            os.close(reader)
            _be_the_child(writer, [(name, cases[name]) for name in names[start:]])
        os.close(writer)
        done, reason = _heard(reader, wrong)
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
        start += done
        if start < len(names):
            ended = f"ended the process with {os.waitstatus_to_exitcode(status)}"
            wrong.append(f"{names[start]}: {reason or ended}")
            start += 1
    return wrong


def _heard(reader: int, wrong: list[str]) -> tuple[int, str]:
    """Hear of one case after another; return how many ended, and why no more did, if that is known."""
    done, held = 0, b""
    while True:
        if not select.select([reader], [], [], SECONDS)[0]:
            return done, f"hangs for {SECONDS} s"
        found = os.read(reader, 65536)
        if not found:
            return done, ""
        *lines, held = (held + found).split(b"\n")
        for line in lines:
            done += 1
            if said := json.loads(line):
                wrong.append(said)


def _be_the_child(writer: int, cases: list[tuple[str, Callable[[], Any]]]) -> None:
    sink = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(sink, number)
    with open("/proc/self/statm", encoding="ascii") as file:
        most = int(file.read().split()[0]) * resource.getpagesize() + _LIMIT
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    for name, call in cases:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        said = _said(call)
        grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
        if not said and grown > MOST_MEMORY:
            said = f"took {grown / 2**30:.1f} GiB"
        os.write(writer, json.dumps(f"{name}: {said}" if said else "").encode() + b"\n")
    os._exit(0)


def _said(call: Callable[[], Any]) -> str:
    try:
        call()
    except conserva.Error as error:
        text = str(error)
        if not text or any(unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp") for one in text):
            return f"raised an Error that is no printable line: {text!r}"
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-6:]
        where = " < ".join(f"{os.path.basename(one.filename)}:{one.lineno}" for one in reversed(last))
        return f"raised {type(error).__name__}: {str(error)[:300]!r} at {where}"
    return ""
