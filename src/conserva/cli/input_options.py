"""What is to be explained, as the command line gives it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from .._util.files import MEBIBYTE, check_readable, reason
from ..errors import Error
from ..models.bundled import BUNDLED, DIGITS, IMAGES, MOLECULES
from .arguments import refuse

if TYPE_CHECKING:
    from ..tasks import Task


LARGEST_STREAM = 2**50
"""How many bytes a file may have that is read line by line: as many as a disk holds."""

LARGEST_INPUT = 64 * MEBIBYTE
"""How many bytes of standard input are read as one text."""


class Way(NamedTuple):
    """A way to give an input: its option, the tasks that take it, and the bundled model for it if there is one."""

    option: str
    tasks: tuple[str, ...]
    reads: str
    bundled: str | None


WAYS = {
    "smiles": Way("--smiles", ("Graph",), "graphs", MOLECULES),
    "digit": Way("--digit", ("Graph", "Image"), "graphs or images", DIGITS),
    "prompt": Way("--prompt", ("Causal",), "prompts", None),
    "image": Way("--image", ("Image",), "images", IMAGES),
    "audio": Way("--audio", ("Speech",), "audio", None),
}


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what is explained."""
    parser.add_argument("text", nargs="?", help="the text, or - for standard input")
    parser.add_argument(
        "--with",
        dest="second",
        metavar="TEXT",
        help="what belongs to the text: the second text of a pair, the context of a question, the sentence to compare "
        "it with, the word to tag, the answer so far",
    )
    parser.add_argument("--prompt", metavar="TEXT", help="a language model's prompt, or - for standard input")
    parser.add_argument(
        "--chat", action="store_true", help="the prompt is a user's message: put it as the model's chat"
    )
    parser.add_argument(
        "--image", type=Path, metavar="PATH", help="an image; the bundled model reads digits, white on black"
    )
    parser.add_argument("--audio", type=Path, metavar="PATH", help="speech, as a WAV file")
    parser.add_argument("--smiles", help="a molecule, as CCO")
    parser.add_argument(
        "--digit",
        metavar="N",
        help="a digit: 0 to 9, an image of MNIST as test:12, or a file; a graph, or to a model of images an image",
    )
    parser.add_argument(
        "--target", help="a label, a class index, a word, or a contrast 'a - b' (default: the prediction)"
    )
    parser.add_argument("--contrast", metavar="OTHER", help="explain the target, or the prediction, rather than this")


def inputs_of(given: argparse.Namespace, file: Path | None = None) -> tuple[list[Any], str]:
    """Return what is to be explained, and the model for it. The texts of a file are read later, by `lines_of`."""
    ways = {"text": given.text, "--file": file, **{way.option: getattr(given, name) for name, way in WAYS.items()}}
    chosen = [name for name, value in ways.items() if value is not None]
    if len(chosen) != 1:
        said = f", not {' and '.join(chosen)}" if chosen else ""
        options = " or ".join(way.option for way in WAYS.values())
        raise Error(f"Give a text, - for standard input, --file PATH, {options}: one of them{said}.")
    if given.second is not None and given.text is None:
        raise Error(f"--with {given.second!r} belongs to a text: give that too.")
    if given.chat and given.prompt is None:
        raise Error("--chat puts a --prompt as a chat: give that too.")
    name = next((name for name in WAYS if getattr(given, name) is not None), None)
    if name is None:
        texts: list[Any] = [read_text(given.text)] if file is None else []
        inputs = texts if given.second is None else [(texts[0], given.second)]
        return inputs, given.model or BUNDLED
    way = WAYS[name]
    model = given.model or way.bundled
    if model is None:
        raise Error(f"{way.option} needs a model that reads {way.reads}: name one with --model.")
    return [_input(name, getattr(given, name), given.chat)], model


def _input(name: str, value: Any, chat: bool) -> Any:
    if name == "prompt":
        text = read_text(value)
        return [{"role": "user", "content": text}] if chat else text
    return value if isinstance(value, str) else str(value)


def as_read(task: Task, inputs: list[Any], given: argparse.Namespace) -> list[Any]:
    """Return inputs as the task takes them: a digit is a graph to some, an image to others.

    Raise if a model was given what it does not read: it would take a molecule's SMILES for a sentence.
    """
    from .. import tasks
    from ..tasks import Causal, Image, Seq2Seq

    for name, way in WAYS.items():
        value = getattr(given, name, None)
        if value is None or isinstance(task, tuple(getattr(tasks, one) for one in way.tasks)):
            continue
        bundled = f"Leave out --model for the bundled {way.bundled!r}, or name" if way.bundled else "Name"
        raise Error(
            f"{way.option} {str(value)!r:.60}: {task.name} reads {task.noun}s. {bundled} a model of {way.reads}."
        )
    if given.second is not None and not task.is_one((given.text, given.second)):
        raise Error(f"--with {given.second!r}: {task.name} takes a {task.noun} by itself: leave it out.")
    writes = isinstance(task, (Causal, Seq2Seq))
    for option, value in (("--generate", given.generate), ("--continuation", given.continuation)):
        if value is not None and not writes:
            raise Error(f"{option} {value!r}: {task.name} writes nothing. Name a language model.")
    if isinstance(task, Image):
        refuse("an image", given, *(name for name in ("truncate", "words", "hide_special") if name in given))
    return inputs if given.digit is None else [_digit(task, one) for one in inputs]


def _digit(task: Task, given: str) -> Any:
    from ..datasets.drawn import digit_graph, read_digit
    from ..tasks import Graph
    from ..tasks.pixels import named

    if isinstance(task, Graph):
        return digit_graph(given)
    one = read_digit(given)
    return named(one.image, one.name)


def target_of(target: str | None, task: Task) -> str | int | None:
    """Return a target as the task takes it: a number is a class, but for models whose classes are words."""
    from ..tasks import Blanks, Question
    from ..tasks.writer import Writer

    is_number = target is not None and target.removeprefix("-").isdecimal()
    is_word = isinstance(task, (Writer, Blanks, Question)) or target in task.labels
    return int(target) if target is not None and is_number and not is_word else target


def aimed(task: Task, one: Any, given: argparse.Namespace) -> Any:
    """Return what is explained of an input; a contrast without a target is one with what is predicted."""
    if given.contrast is None:
        return target_of(given.target, task)
    if given.target is not None:
        return f"{given.target} - {given.contrast}"
    import torch

    from ..tasks import Blanks
    from ..tasks.writer import Writer

    encoded = task.encode(one, truncate=given.truncate)
    task.aim(None, encoded)  # refuses outputs of which none is predicted
    with torch.no_grad():
        index = int(task.model(**task.batch([encoded])).logits[0].argmax())
    if isinstance(task, (Writer, Blanks)):  # a token's text may be that of another one too
        return index, task.aim(given.contrast, encoded)
    return f"{task.titled(None, index, encoded)} - {given.contrast}"


def lines_of(path: Path, given: str) -> Iterator[str]:
    """Yield the texts of a UTF-8 file, one a line, as they are read; empty lines are left out."""
    check_readable(path, given, limit=LARGEST_STREAM)
    number = 0
    try:
        with path.open(encoding="utf-8-sig") as lines:
            for line in lines:
                number += 1
                if line.strip():
                    yield line.strip()
    except OSError as error:
        raise Error(f"{given} cannot be read: {reason(error)}.") from None
    except UnicodeDecodeError:
        raise Error(f"{given} is not UTF-8 (after line {number}): save it as UTF-8.") from None


def read_text(text: str) -> str:
    """Return a text, or what standard input holds for -."""
    if text != "-":
        return text
    try:
        content = sys.stdin.buffer.read(LARGEST_INPUT + 1)
        if len(content) > LARGEST_INPUT:
            raise Error(f"Standard input holds more than {LARGEST_INPUT / MEBIBYTE:.0f} MiB: give a shorter text.")
        return content.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise Error(f"Standard input is not UTF-8 (byte {error.start}).") from None
