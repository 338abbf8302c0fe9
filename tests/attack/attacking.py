"""What all attacks share: random numbers by seed, hostile text, and the command line in processes that start at once.

`make attack` sets ATTACK_SEED to a fresh number and ATTACK_SCALE to how many times the cases of a plain test run.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = int(os.environ.get("ATTACK_SEED", "0"))
SCALE = float(os.environ.get("ATTACK_SCALE", "0.5"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)


def rng_of(name: str) -> random.Random:
    """Return the random numbers of one attack: others of the same run do not change them."""
    return random.Random(f"{SEED} {name}")


def times(count: int) -> int:
    """Return how many cases an attack has, given how many it has in a plain test run."""
    return max(1, round(count * SCALE))


def add_cases(what: str, number: int = 1) -> None:
    """Add cases to the totals that `make attack` prints in the end."""
    if path := os.environ.get("ATTACK_COUNTS"):
        with open(path, "a") as file:
            file.write(f"{what}\t{number}\n")  # in one piece: several processes write to the same file


class Tally:
    """Counts the cases of an attack and collects those that fail, so that one failure does not hide the others."""

    def __init__(self) -> None:
        self.cases = 0
        self.failures: list[str] = []

    @contextmanager
    def case(self, what: object) -> Iterator[None]:
        """Run a case; `what` is what reproduces it."""
        self.cases += 1
        try:
            yield
        except Exception as error:
            name = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
            self.failures.append(f"{what}: {name}{str(error)[:2000]}")

    def check(self) -> None:
        """Fail if a case has failed."""
        told = "\n".join(self.failures[:20])
        assert not self.failures, f"{len(self.failures)} of {self.cases} cases failed (seed {SEED}):\n{told}"


ESCAPES = (
    "\x1b]0;owned\x07",  # sets the title of a terminal
    "\x1b]52;c;b3duZWQ=\x07",  # writes to the clipboard
    "\x1b[2J\x1b[H",  # clears the screen
    "\x1b[31m",
    "\x9b31m",  # the same in one character, as C1
    "\x9d0;owned\x9c",
    "\x00",
    "\x07\x08\x7f",
    "\r",
    "\n",
    "\t",
    "\x85",
    "\u2028",
    "\u202eowned\u202c",
    "\ufffe",
    "\uffff",
)
MARKUP = (
    "<script>owned()</script>",
    "</script><script>owned()</script>",
    "<img src=x onerror=owned()>",
    "\"'><svg onload=owned()>",
    "]]><!--",
    "-->",
    "&amp;&lt;&#x0;",
    "[bold red]owned[/]",
    "[link=file:///etc/passwd]x[/link]",
    "{{7*7}}{%for%}",
    "$x^2$ \\frac{1}{2} $",
    "javascript:owned()",
    "%s%n{}{0.__class__}",
)
SCRIPTS = (
    "a joy.",
    "καλό",
    "很好看的电影",
    "فيلم جميل",
    "הסרט",
    "🎬👩‍👩‍👧‍👧🇪🇺",
    "e\u0301\u0323",
    "\u200b\u200d\ufeff",
    "ﷺ" * 5,
    "Ǆ",
)
SURROGATES = ("\ud800", "\udfff", "\udc80", "\udbff\ud800")


def hostile_text(rng: random.Random, *, surrogates: bool = False, parts: int = 4) -> str:
    """Return a text made of what breaks programs: escapes, markup, rare scripts, long words, random characters."""
    kinds: list[Sequence[str]] = [ESCAPES, MARKUP, SCRIPTS, *([SURROGATES] if surrogates else [])]
    pieces = []
    for _ in range(rng.randint(1, parts)):
        kind = rng.randrange(len(kinds) + 3)
        if kind < len(kinds):
            pieces.append(rng.choice(kinds[kind]))
        elif kind == len(kinds):
            pieces.append("".join(chr(rng.randrange(0x20)) for _ in range(rng.randint(1, 4))))
        elif kind == len(kinds) + 1:
            pieces.append("".join(_any_character(rng) for _ in range(rng.randint(1, 8))))
        else:
            pieces.append(rng.choice(["x" * rng.choice([1, 40, 300]), "a bore from start to end", " ", "\u00a0"]))
    return rng.choice(["", " "]).join(pieces)


def _any_character(rng: random.Random) -> str:
    while True:
        code = rng.choice([rng.randrange(0x250), rng.randrange(0x10000), rng.randrange(0x110000)])
        if not 0xD800 <= code < 0xE000:
            return chr(code)


_SGR = re.compile(r"\x1b\[[0-9;]*m")
_CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
_TOLD = re.compile(r"wrote |[^:]+: \d+ of \d+, ")
LONGEST_LINE = 2100


@dataclass(frozen=True)
class Outcome:
    """How a process ended: its exit code, minus the signal that killed it, and what it wrote."""

    code: int
    out: bytes
    err: bytes

    @property
    def has_traceback(self) -> bool:
        return b"Traceback" in self.err or b"Traceback" in self.out

    @property
    def error(self) -> str:
        """The last line of standard error."""
        return (self.err.decode("utf-8", "replace").splitlines() or [""])[-1]

    def faults(self, *codes: int) -> list[str]:
        """Return what is wrong with the way a command ended that may end with these codes (0, 1 or 2 by default)."""
        found = []
        if self.code not in (codes or (0, 1, 2)):
            found.append(f"it ended with {self.code}")
        if self.has_traceback:
            found.append("it wrote a traceback")
        if b"Internal error" in self.err:
            found.append("nobody has thought of this error")
        for name, written in (("output", self.out), ("error", self.err)):
            try:
                text = written.decode("utf-8")
            except UnicodeDecodeError:
                found.append(f"its standard {name} is not UTF-8")
                continue
            if control := _CONTROLS.search(_SGR.sub("", text)):
                found.append(f"its standard {name} has {control[0]!r}")
        lines = [line for line in self.err.decode("utf-8", "replace").split("\n") if line and not _TOLD.match(line)]
        if any(len(line) > LONGEST_LINE for line in lines):
            found.append(f"a line of its standard error has {max(map(len, lines))} characters")
        if self.code == 0 and lines:
            found.append("it ended well and complained")
        if self.code in (1, 130) and not (len(lines) == 1 and lines[0].startswith("conserva: ")):
            found.append(f"its error has {len(lines)} lines, not one that begins with 'conserva: '")
        return [*found, f"standard error: {self.err[-1500:]!r}"] if found else []


class Running:
    """A command that was started in a process of its own."""

    def __init__(self, process: Any, folder: Path) -> None:
        self._process, self._folder = process, folder

    @property
    def pid(self) -> int:
        return int(self._process.pid)

    def wait_until_begun(self) -> None:
        """Wait until the command line is being run: all before is not its work."""
        wait_for(lambda: (self._folder / "begun").exists() or not self.is_alive())

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self._process.pid is not None and self._process.is_alive():
            os.kill(self._process.pid, number)

    def is_alive(self) -> bool:
        return bool(self._process.is_alive())

    def wait(self, timeout: float = 300) -> Outcome:
        """Return how the command ended. What it wrote to standard output and error is deleted."""
        self._process.join(timeout)
        hangs = self._process.is_alive()
        if hangs:
            self._process.kill()
            self._process.join()
        out, err = ((self._folder / name).read_bytes() for name in ("out", "err"))
        shutil.rmtree(self._folder)
        assert not hangs, f"still running after {timeout} s: {err[-500:]!r}"
        return Outcome(self._process.exitcode, out, err)


def start(
    arguments: Sequence[str],
    *,
    cwd: str | Path | None = None,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    stdout: str | Path | None = None,
    limits: Mapping[str, int] | None = None,
    gate: Path | None = None,
) -> Running:
    """Start `conserva` with these arguments, forked from a process that has imported everything already.

    Parameters
    ----------
    arguments
        Without the program's name.
    cwd
        The folder it runs in; otherwise a temporary one.
    stdin, stdout
        The content of its standard input, and a file that its standard output goes to.
    env
        Environment variables to set; PYTHONIOENCODING holds for the standard streams as if Python were started anew.
    limits
        Limits of the system by name, as RLIMIT_NOFILE. RLIMIT_AS is how much memory it may take beyond what it has.
    gate
        A file that the command waits for, so that several can start at the same moment.
    """
    folder = Path(tempfile.mkdtemp(prefix="attack-"))
    (folder / "in").write_bytes(stdin)
    for name in ("out", "err"):
        (folder / name).touch()
    how = (str(cwd or folder), str(folder), dict(env or {}), str(stdout or "out"), dict(limits or {}), gate)
    process = _context().Process(target=_main, args=(list(arguments), *how), daemon=False)
    process.start()
    return Running(process, folder)


def run(arguments: Sequence[str], timeout: float = 300, **how: Any) -> Outcome:
    """Run `conserva` with these arguments to its end."""
    return start(arguments, **how).wait(timeout)


def _context() -> Any:
    here = os.path.dirname(__file__)
    if here not in os.environ.get("PYTHONPATH", ""):  # the server looks for what it preloads there
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["attack_preload"])
    return context


def _main(
    arguments: list[str],
    cwd: str,
    folder: str,
    env: dict[str, str],
    stdout: str,
    limits: dict[str, int],
    gate: Path | None,
) -> None:
    """Be the process: with its own standard streams, folder and environment, and nothing of the parent's."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    streams = (("in", os.O_RDONLY, 0), (stdout, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 1), ("err", os.O_WRONLY, 2))
    for name, flags, number in streams:
        descriptor = os.open(os.path.join(folder, name), flags)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.update(env)
    os.chdir(cwd)
    encoding, _, errors = env.get("PYTHONIOENCODING", "utf-8").partition(":")
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding=encoding, errors=errors or "strict", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding=encoding, errors="backslashreplace", closefd=False, buffering=1)  # noqa: SIM115
    sys.argv = ["conserva", *arguments]
    code = 70
    try:
        import torch

        from conserva.cli import program

        torch.set_num_threads(1)  # a fork leaves a broken pool of threads, which is made anew here
        Path(folder, "begun").touch()
        if gate is not None:
            wait_for(gate.exists)
        for name, most in limits.items():
            used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            most += used if name == "RLIMIT_AS" else 0
            resource.setrlimit(getattr(resource, name), (most, most))
        program()
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException as error:
        code = 71
        if isinstance(error, KeyboardInterrupt) and getattr(error.__traceback__, "tb_next", None) is None:
            code = 130  # before the command began, or after its end
            print("conserva: interrupted", file=sys.stderr)
        else:
            traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            traceback.print_exc()
            code = 120
    os._exit(code)


def wait_for(condition: Any, timeout: float = 60) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.002)
