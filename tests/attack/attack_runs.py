"""Small runs that attacks disturb: their data, their commands, and their results, which must always be the same."""

from __future__ import annotations

import ctypes
import json
import os
import random
import select
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import safetensors
from PIL import Image

from attacking import Outcome, Running, run, start

NOUNS = ("a", "joy", "bore", "film", "plot", "fun")
ADJECTIVES = ("dull", "lovely", "tedious", "moving", "long", "short", "witty", "sad")
WORDS = NOUNS + ADJECTIVES
NAMES = {"one": ("Anna", "Maria", "Ingrid"), "two": ("Otto", "Paul", "Emil")}
SEMAINE = {"train": (844, 2291, 1129), "dev": (92, 261, 132), "test": (158, 488, 232)}
"""The rows of each label that the dataset is known to have: made-up texts take their place."""


@dataclass(frozen=True)
class Command:
    """A command that writes a folder `out` in the folder it runs in."""

    arguments: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)


def make_data(folder: Path, texts: int = 30, mentions: int = 600) -> dict[str, Command]:
    """Write data to a folder, and return commands that read it."""
    rng = random.Random(0)
    made = [" ".join(rng.choices(WORDS, k=rng.randint(2, 9))) for _ in range(texts)]
    rows = "".join(f"{text},{number % 2}\n" for number, text in enumerate(made))
    (folder / "x.csv").write_text(f"text,label\n{rows}")
    (folder / "groups").mkdir()
    for group, names in NAMES.items():
        (folder / "groups" / f"{group}.txt").write_text("\n".join(names))
    every = [name for names in NAMES.values() for name in names]
    lines = (f"{rng.choice(every)} {rng.choice(made)} {number}\n" for number in range(mentions))
    (folder / "x.txt").write_text("".join(lines))
    columns = [
        (f"{WORDS[number % 14]} {WORDS[number * 3 % 13]}", label, split)
        for split, counts in SEMAINE.items()
        for label, count in enumerate(counts)
        for number in range(count)
    ]
    (folder / "silicone_sem").mkdir()
    table = pyarrow.table(dict(zip(("text", "label", "split"), map(list, zip(*columns, strict=True)), strict=True)))
    pyarrow.parquet.write_table(table, folder / "silicone_sem" / "silicone_sem.parquet")

    def command(*arguments: str) -> Command:
        return Command((*arguments, "--out", "out"), {"CONSERVA_DATA": str(folder)})

    evaluate = ("evaluate", "--data", f"{folder}/x.csv", "--methods", "gi,random", "--random-seeds", "1")
    train = ("train", "semaine", "--embeddings", "sentiment", "--count", "48", "--epochs", "3", "--tokens", "8")
    return {
        "evaluate": command(*evaluate, "--steps", "3", "--no-reference"),
        "bias": command("bias", "--data", f"{folder}/x.txt", "--groups", f"{folder}/groups", "--swaps", "0"),
        "train": command(*train),
        "reproduce": command("reproduce", "text", "--quick", "--datasets", "semaine"),
    }


def results(out: Path) -> dict[str, bytes]:
    """Return all files of a run by name: of tables the rows, of all others the bytes; no journals, no hidden files."""
    found = {}
    for path in _files(out):
        if path.suffix != ".jsonl":
            name = str(path.relative_to(out))
            found[name] = _rows(path) if path.suffix == ".parquet" else path.read_bytes()
    return found


def _files(out: Path) -> list[Path]:
    """Return the files of a run, but for hidden ones and those in hidden folders."""
    found = (path for path in sorted(out.rglob("*")) if path.is_file())
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(out).parts)]


def _rows(path: Path) -> bytes:
    rows = pyarrow.parquet.read_table(path).to_pylist()
    return "\n".join(sorted(json.dumps(row) for row in rows)).encode()


def half_written(out: Path) -> list[str]:
    """Return the files of a run that were not written to their end, but for journals and hidden files."""
    return [str(path.relative_to(out)) for path in _files(out) if not _is_whole(path)]


def _is_whole(path: Path) -> bool:
    try:
        if path.suffix == ".json":
            json.loads(path.read_bytes())
        elif path.suffix == ".html":
            return path.read_text(encoding="utf-8").rstrip().endswith("</html>")
        elif path.suffix == ".png":
            with Image.open(path) as image:
                image.load()
        elif path.suffix == ".parquet":
            pyarrow.parquet.read_table(path)
        elif path.suffix == ".safetensors":
            with safetensors.safe_open(path, "pt") as tensors:
                list(tensors.keys())
        elif path.suffix in (".md", ".svg"):
            return path.read_bytes().endswith(b"\n")
    except Exception:  # each library has its own for files that end too early
        return False
    return True


def differences(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> list[str]:
    """Return the names of files that only one of two runs has, or whose content is not the same."""
    return [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]


class Watch:
    """Tells how often something was created, written, closed, renamed or deleted in a folder and the folders in it."""

    _WANTED = 0x2 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200  # modify, close_write, moved_from, moved_to, create, delete
    _CREATE, _FOLDER = 0x100, 0x40000000

    def __init__(self, folder: Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._queue = self._libc.inotify_init1(os.O_NONBLOCK)
        assert self._queue >= 0, os.strerror(ctypes.get_errno())
        self._folders: dict[int, Path] = {}
        self.events = 0
        for one in (folder, *filter(Path.is_dir, folder.rglob("*"))):
            self._add(one)

    def _add(self, folder: Path) -> None:
        number = self._libc.inotify_add_watch(self._queue, os.fsencode(folder), self._WANTED)
        if number >= 0:
            self._folders[number] = folder

    def wait(self, seconds: float) -> None:
        """Count what happens, until something does or the time is over."""
        if not select.select([self._queue], [], [], seconds)[0]:
            return
        content, place = os.read(self._queue, 65536), 0
        while place < len(content):
            number, mask, _, length = struct.unpack_from("iIII", content, place)
            name = content[place + 16 : place + 16 + length].rstrip(b"\0")
            place += 16 + length
            self.events += 1
            if mask & self._CREATE and mask & self._FOLDER:
                self._add(self._folders[number] / os.fsdecode(name))

    def close(self) -> None:
        os.close(self._queue)


@dataclass(frozen=True)
class Moment:
    """When something happens to a run: at a share of its time, or of what happens to its files."""

    share: float
    by_time: bool

    def __str__(self) -> str:
        return f"at {self.share:.3f} of {'its time' if self.by_time else 'what happens to its files'}"


@dataclass(frozen=True)
class Run:
    """A run that was not disturbed."""

    command: Command
    results: Mapping[str, bytes]
    seconds: float
    events: int

    def again(self, folder: Path, moment: Moment, disturb: Callable[[Running], None]) -> Outcome:
        """Run the command in a folder, do something at a moment, and return how it ends."""
        seconds, events = (self.seconds, 1e9) if moment.by_time else (600, self.events)
        return _run(self.command, folder, moment.share * seconds, 1 + moment.share * events, disturb)[0]

    def check_again(self, folder: Path) -> None:
        """Run the command in a folder where it was disturbed, and check that its results are the same."""
        outcome = run(self.command.arguments, cwd=folder, env=self.command.env)
        assert not outcome.faults(0), outcome.faults(0)
        changed = differences(self.results, results(folder / "out"))
        assert not changed, f"{changed} are not as in an undisturbed run"
        assert not half_written(folder / "out")


class Undisturbed:
    """Runs that nobody disturbs, each when it is first asked for."""

    def __init__(self, folders: pytest.TempPathFactory) -> None:
        self._folders, self._known = folders, dict[str, Run]()
        self.commands = make_data(folders.mktemp("data"))

    def run(self, name: str) -> Run:
        """Return the run of a command."""
        if name not in self._known:
            folder, command, began = self._folders.mktemp(name), self.commands[name], time.monotonic()
            outcome, events = _run(command, folder, 600, 1e9, lambda running: None)
            assert not outcome.faults(0), outcome.faults(0)
            assert not half_written(folder / "out")
            self._known[name] = Run(command, results(folder / "out"), time.monotonic() - began, events)
        return self._known[name]


def _run(
    command: Command, folder: Path, seconds: float, events: float, disturb: Callable[[Running], None]
) -> tuple[Outcome, int]:
    """Run a command, and do something once so much time has passed or so much has happened in its folder.

    Return how it ended, and how much has happened.
    """
    watch = Watch(folder)
    running = start(command.arguments, cwd=folder, env=command.env)
    running.wait_until_begun()
    end = time.monotonic() + seconds
    while running.is_alive() and watch.events < events and time.monotonic() < end:
        watch.wait(min(0.05, max(0.0, end - time.monotonic())))
    disturb(running)
    watch.close()
    return running.wait(120), watch.events
