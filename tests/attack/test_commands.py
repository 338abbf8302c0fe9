"""Attack: hostile arguments to every command; it says what is wrong in a line, and never hangs or falls over."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import conserva.models
from attack_runs import make_data
from attacking import Tally, add_cases, hostile_text, rng_of, run, times

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names and devices of Linux")

BUNDLED = Path(next(iter(conserva.models.__path__))) / "sentiment"
LIMITS = {"RLIMIT_AS": 4 * 2**30}
"""An endless file that is read as a whole must not take the machine's memory."""
SECONDS = 120
"""What is still at work by then hangs: each command takes a fraction of a second."""
NUMBERS = ("0", "-1", "1", "3", str(10**30), str(-(10**30)), "nan", "inf", "1e400", "0x10", "1.5", "", " 2", "²", "٣")
NONSENSE = ("", ",", ",,", "gi,", ",gi", "gi,gi", "nonsense", "gi:steps", "gi:steps=", "random:seed=x", "ig:steps=-1")
METHODS = (*NONSENSE, "random:seed=-1", "ig:steps=nan", "ah+ln:gamma=1e400", ":", "a" * 5000, "gi:at=", "gi:at=nowhere")
ENDLESS = ("/dev/zero", "/dev/urandom", "/proc/self/mem", "/dev/full", "/dev/stdin", "/proc/self/environ", "/dev/fd/0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, and with things that are not what their names say."""
    folder = tmp_path_factory.mktemp("commands")
    make_data(folder, texts=6, mentions=12)
    for name in ("pipe", "pipe.csv", "pipe.txt", "pipe.html", "pipe.png"):
        os.mkfifo(folder / name)
    (folder / "empty.csv").touch()
    (folder / "empty.txt").touch()
    (folder / "folder.csv").mkdir()
    (folder / "folder.html").mkdir()
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 8)
    (folder / "binary.txt").write_bytes(bytes(range(256)) * 8)
    (folder / "one.csv").write_text("text,label\n" + "x" * 200_000 + ",0\n")
    (folder / "loop").symlink_to("loop")
    (folder / "gone").symlink_to("nowhere/at/all")
    _hostile_model(folder / "hostile")
    return folder


def _hostile_model(folder: Path) -> None:
    """Save the bundled model with labels that nobody would choose."""
    shutil.copytree(BUNDLED, folder)
    path = folder / "config.json"
    config = json.loads(path.read_text())
    labels = ["\x1b[2J\x1b]0;owned\x07\n<script>owned()</script>", "\u202e\x9b31m - \ud800" + "x" * 3000]
    config["id2label"] = dict(enumerate(labels))
    config["label2id"] = {label: index for index, label in enumerate(labels)}
    path.write_text(json.dumps(config))


def argument(text: str) -> str:
    """Return a text as it can stand on a command line: any bytes but NUL."""
    return os.fsdecode(text.replace("\0", "").encode("utf-8", "surrogatepass"))


def hostile_argument(rng: random.Random) -> str:
    if rng.random() < 0.15:
        return os.fsdecode(bytes(rng.randrange(1, 256) for _ in range(rng.choice([1, 8, 300]))))
    return argument(hostile_text(rng, surrogates=True))


def path_to_read(rng: random.Random) -> str:
    """Return the name of something that is to be read, and mostly cannot be."""
    kinds: list[Callable[[], str]] = [
        lambda: rng.choice(ENDLESS),
        lambda: rng.choice(["pipe", "pipe.csv", "pipe.txt", "empty.csv", "empty.txt", "folder.csv", "one.csv"]),
        lambda: rng.choice(["binary.csv", "binary.txt", "loop", "gone", ".", "..", "/", "", "x.csv/", "x.csv/y"]),
        lambda: rng.choice(["x" * 300, "x" * 300 + ".csv", "x/" * 3000, "~nobody/x", "~", "-", "--", "x.csv", "x.txt"]),
        lambda: hostile_argument(rng) + rng.choice(["", ".csv", ".txt", ".png", ".wav", ".parquet"]),
    ]
    return rng.choice(kinds)()


def path_to_write(rng: random.Random, endings: tuple[str, ...]) -> str:
    """Return the name of something that is to be written, and mostly cannot be."""
    kinds: list[Callable[[], str]] = [
        lambda: rng.choice(["/dev/full", "/dev/null", "/proc/self/mem", "/proc/new", "/sys/new", "/", ".", ""]),
        lambda: rng.choice(["pipe.html", "pipe.png", "folder.html", "loop", "gone", "x.csv/new", "no/folder/there"]),
        lambda: rng.choice(["x" * 300, "x" * 300, "x" * 251, "~nobody/x", "-", "new"]) + rng.choice(endings),
        lambda: hostile_argument(rng)[:200].replace("/", "") + rng.choice(endings),
    ]
    return rng.choice(kinds)()


def value(rng: random.Random, option: str) -> str:
    """Return something to put behind an option."""
    if option in ("--html", "--png"):
        return path_to_write(rng, (".html", ".png", ".svg", ".pdf", ".exe", ""))
    if option == "--out":
        return path_to_write(rng, ("", ".csv", ".jsonl", ".parquet"))
    if option in ("--model", "--tagger", "--embeddings", "NAME"):
        return rng.choice([path_to_read(rng), hostile_argument(rng), "sentiment", "digits", "bace", "hostile", "a/b/c"])
    if option in ("--data", "--file", "--groups", "--image", "--audio"):
        return rng.choice([path_to_read(rng), "x.csv", "x.txt", "groups", f"{path_to_read(rng)},{path_to_read(rng)}"])
    if option in ("--method", "--methods", "--rules"):
        return rng.choice([*METHODS, "gi", "exact", hostile_argument(rng)])
    if option in NUMERIC:
        return rng.choice([*NUMBERS, hostile_argument(rng)])
    if option in CHOICES:
        return rng.choice([*CHOICES[option], hostile_argument(rng)])
    return rng.choice([hostile_argument(rng), "positive", "positive - negative", "a joy", "0", "-", "--", ""])


NUMERIC = (
    *("--count", "--steps", "--seed", "--random-seeds", "--batch-tokens", "--swaps", "--level", "--max-gap", "--jobs"),
    *("--epochs", "--learning-rate", "--batch-size", "--patience", "--tokens", "--seeds", "--width", "--generate"),
)
CHOICES = {
    "--protocol": ("default", "paper", "other"),
    "--mask": ("unk", "mask", "pad", "drop", "token", "mean"),
    "--device": ("cpu", "cuda", "cuda:99", "meta", "mps", "nowhere"),
    "--score": ("logit", "log_probability"),
    "--dtype": ("float64", "bfloat16", "int8"),
    "--windows": ("64,16", "9,9", "0,0", "5", "1,999999999999"),
    "--datasets": ("sst2", "semaine", ",", "semaine,semaine"),
    "--digit": ("7", "10", "-1", "test:0", "test:99999999", "pipe", "x.csv"),
    "--smiles": ("CCO", "C" * 300, "C1CC", "(((", ""),
    "--steps": ("each", "0"),
}
FLAGS = {
    "explain": ("--json", "--words", "--hide-special", "--hide-sink", "--truncate", "--trace", "--chat", "--numbers"),
    "compare": ("--json", "--words", "--hide-special", "--truncate", "--windows", "--numbers"),
    "audit": ("--json", "--full"),
    "doctor": ("--json",),
    "evaluate": ("--json", "--no-reference", "--truncate"),
    "bias": ("--json", "--keep-ordinary", "--skip-ambiguous", "--no-truncate"),
    "train": ("--json", "--as-released", "--hold-out", "--post-norm"),
    "reproduce": ("--json", "--quick", "--as-released", "--post-norm"),
    "methods": ("--json",),
    "models": ("--json",),
    "completion": (),
}
INPUTS = ("TEXT", "--with", "--prompt", "--image", "--audio", "--smiles", "--digit", "--target", "--contrast")
OPTIONS = {
    "explain": (
        *INPUTS,
        "--file",
        "--method",
        "--model",
        "--device",
        "--html",
        "--png",
        "--generate",
        "--continuation",
        "--score",
        *("--out", "--text-column", "--with-column", "--id-column", "--windows", "--dtype", "--batch-tokens"),
    ),
    "compare": (*INPUTS, "--methods", "--model", "--device", "--html", "--png"),
    "audit": ("NAME", "--model", "--device", "--text", "--target", "--rules", "--max-gap", "--html", "--png"),
    "doctor": ("NAME", "--model", "--device", "--text", "--target", "--rules"),
    "evaluate": (
        *(
            "--text-column",
            "--label-column",
            "--split",
            "--count",
            "--methods",
            "--protocol",
            "--watch",
            "--mask",
            "--steps",
        ),
        *("--seed", "--random-seeds", "--device", "--batch-tokens", "--out", "--model"),
    ),
    "bias": (
        *(
            "--text-column",
            "--label-column",
            "--split",
            "--count",
            "--groups",
            "--tagger",
            "--target",
            "--method",
            "--level",
        ),
        *("--swaps", "--seed", "--device", "--batch-tokens", "--out", "--model"),
    ),
    "train": ("--seed", "--epochs", "--learning-rate", "--batch-size", "--count", "--device", "--tokens", "--patience"),
    "reproduce": ("--datasets", "--seeds", "--device", "--jobs", "--embeddings", "--masks"),
    "methods": ("TEXT",),
    "models": ("TEXT",),
    "completion": ("TEXT",),
}
NEEDED = {
    "explain": (["a joy"], ["a joy"], [], ["--file", "x.csv", "--out", "new.csv"], ["--file", "x.txt"]),
    "compare": (["a joy", "--methods", "gi"],),
    "evaluate": (["--data", "x.csv", "--methods", "gi", "--steps", "2"],),
    "bias": (["--data", "x.txt", "--groups", "groups", "--swaps", "1"],),
    "train": (["semaine", "--out", "new", "--embeddings", "sentiment", "--count", "4", "--epochs", "1"],),
    "reproduce": (["text", "--out", "x.csv/new"],),
}
"""What a command needs to come to its work; what is drawn stands behind it, and takes its place."""


def drawn(rng: random.Random) -> list[str]:
    """Return a command with options that were drawn, most of which are nonsense."""
    command = rng.choice(list(OPTIONS))
    arguments = [command, *rng.choice(NEEDED.get(command, ([],)))]
    for option in rng.choices(OPTIONS[command], k=rng.choice([1, 1, 1, 2, 2, 3])):
        given = value(rng, option)
        if option in ("TEXT", "NAME"):
            arguments.append(given)
        else:
            arguments += [f"{option}={given}"] if rng.random() < 0.7 else [option, given]
    for flag in FLAGS[command]:
        if rng.random() < 0.15:
            arguments.append(flag)
    if rng.random() < 0.03:
        arguments.append(rng.choice([f"--{hostile_argument(rng)}", hostile_argument(rng), "--debugger"]))
    return arguments


def check(arguments: list[str], folder: Path, stdin: bytes = b"a joy") -> None:
    """Run a command in a folder, and check that it ends as it should."""
    env = {"CONSERVA_DATA": str(folder), "HF_HUB_OFFLINE": "1"}
    outcome = run(arguments, SECONDS, cwd=folder, env=env, stdin=stdin, limits=LIMITS)
    assert not outcome.faults(0, 1, 2), outcome.faults(0, 1, 2)
    if "--json" in arguments and "--" not in arguments and outcome.code == 0:
        json.loads(outcome.out)


def test_commands_that_were_drawn(folder: Path) -> None:
    rng, tally = rng_of("commands"), Tally()
    for _ in range(times(150)):
        arguments = drawn(rng)
        add_cases("commands")
        with tally.case(f"check({arguments!r}, folder)"):
            check(arguments, folder, hostile_text(rng).encode())
    tally.check()


@pytest.mark.parametrize(
    "option", ["--file", "--data", "--groups", "--model", "--image", "--audio", "--digit", "--text"]
)
def test_what_cannot_be_read(option: str, folder: Path) -> None:
    tally = Tally()
    command = {
        "--data": ["bias", "--groups", "groups"],
        "--groups": ["bias", "--data", "x.txt"],
        "--model": ["explain", "a joy"],
        "--text": ["audit", "--model", "digits"],
    }.get(option, ["explain"])
    paths = [*ENDLESS, "pipe", "pipe.csv", "pipe.txt", "folder.csv", "loop", "x" * 300, "\udcff\x1b[2J\n.txt"]
    for path in paths[:: max(1, round(3 / times(1)))] if option not in ("--data", "--file") else paths:
        with tally.case(f"check({[*command, f'{option}={path}']!r}, folder)"):
            check([*command, f"{option}={path}"], folder)
    tally.check()


@pytest.mark.parametrize("command", ["explain", "compare", "audit", "doctor"])
def test_labels_of_a_hostile_model(command: str, folder: Path) -> None:
    rng, tally = rng_of(f"hostile labels {command}"), Tally()
    text = {"explain": ["a joy"], "compare": ["a joy", "--methods", "gi"]}.get(command, [])
    for _ in range(times(3)):
        more = rng.choice([[], ["--json"], ["--target", "0"], ["--target", "nonsense"], ["--target", "1 - 0"]])
        arguments = [command, *text, "--model", "hostile", *more]
        add_cases("commands")
        with tally.case(f"check({arguments!r}, folder)"):
            check(arguments, folder)
    tally.check()


def test_texts_that_were_drawn(folder: Path) -> None:
    rng, tally = rng_of("texts of commands"), Tally()
    for _ in range(times(25)):
        text = hostile_argument(rng)
        arguments = [
            "explain",
            *rng.choice([["--", text], ["-"], ["x", f"--target={text}"], ["x", f"--contrast={text}"]]),
        ]
        arguments[1:1] = rng.choice([[], ["--json"], ["--words"], ["--trace"], ["--html", "texts.html"]])
        add_cases("hostile texts")
        with tally.case(f"check({arguments!r}, folder, {os.fsencode(text)!r})"):
            check(arguments, folder, os.fsencode(text))
    tally.check()
