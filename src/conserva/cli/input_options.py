"""The options that give an input and a target, and their conversion to what a task accepts."""

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
"""The maximum size in bytes of a file that is read line by line: in effect, no limit."""

LARGEST_INPUT = 64 * MEBIBYTE
"""The maximum size in bytes of a text from standard input."""


class InputOption(NamedTuple):
    """An option that gives an input other than a text."""

    flag: str
    tasks: tuple[str, ...]
    """The class names of the tasks that accept it."""
    reads: str
    """The inputs of these tasks, in error messages."""
    bundled: str | None
    """The default model, if one is bundled."""


INPUT_OPTIONS = {
    "smiles": InputOption("--smiles", ("Graph",), "graphs", MOLECULES),
    "digit": InputOption("--digit", ("Graph", "Image"), "graphs or images", DIGITS),
    "prompt": InputOption("--prompt", ("Causal",), "prompts", None),
    "image": InputOption("--image", ("Image",), "images", IMAGES),
    "audio": InputOption("--audio", ("Speech",), "audio", None),
}


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """Add the options that give the input and the target."""
    parser.add_argument("text", nargs="?", help="the text, or - for standard input")
    parser.add_argument(
        "--with",
        dest="second",
        metavar="TEXT",
        help="the second part of the input: the second text of a pair, the context of a question, the sentence to "
        "compare with, the word to tag, the beginning of the answer",
    )
    parser.add_argument(
        "--target", help="a label, a class index, a word, or a contrast 'a - b' (default: the prediction)"
    )
    parser.add_argument("--contrast", metavar="OTHER", help="explain the target, or the prediction, minus this one")
    others = parser.add_argument_group("inputs other than a text")
    others.add_argument("--prompt", metavar="TEXT", help="a language model's prompt, or - for standard input")
    others.add_argument(
        "--chat", action="store_true", help="apply the model's chat template to the prompt, as a user's message"
    )
    others.add_argument(
        "--image", type=Path, metavar="PATH", help="an image; the bundled model reads digits, white on black"
    )
    others.add_argument("--audio", type=Path, metavar="PATH", help="speech, as a WAV file")
    others.add_argument("--smiles", help="a molecule, such as CCO")
    others.add_argument(
        "--digit",
        metavar="N",
        help="a digit: 0 to 9, an image of MNIST such as test:12, or a file; read as a graph or, by models of images, "
        "as an image",
    )


def check_inputs(given: argparse.Namespace, file: Path | None = None) -> None:
    """Raise an error unless exactly one input is given, with options that apply to it."""
    others = {option.flag: getattr(given, name) for name, option in INPUT_OPTIONS.items()}
    options = {"text": given.text, "--file": file, **others}
    chosen = [name for name, value in options.items() if value is not None]
    if len(chosen) != 1:
        known = " or ".join(option.flag for option in INPUT_OPTIONS.values())
        received = f", not {' and '.join(chosen)}" if chosen else ""
        raise Error(f"Give one input: a text, - for standard input, --file PATH, {known}{received}.")
    if given.second is not None and given.text is None:
        raise Error(f"--with {given.second!r} needs a text as the first part of the input: give one.")
    if given.chat and given.prompt is None:
        raise Error("--chat needs a prompt: give one with --prompt.")
    name = _input_option(given)
    if name is not None and given.model is None and INPUT_OPTIONS[name].bundled is None:
        option = INPUT_OPTIONS[name]
        raise Error(f"{option.flag} needs a model that takes {option.reads}: give one with --model.")


def _input_option(given: argparse.Namespace) -> str | None:
    """Return the name of the given option of `INPUT_OPTIONS`."""
    return next((name for name in INPUT_OPTIONS if getattr(given, name) is not None), None)


def inputs_of(given: argparse.Namespace, file: Path | None = None) -> tuple[list[Any], str]:
    """Return the inputs and the name of the model. The texts of `file` are not read here."""
    name = _input_option(given)
    if name is None:
        texts: list[Any] = [read_text(given.text)] if file is None else []
        inputs = texts if given.second is None else [(texts[0], given.second)]
        return inputs, given.model or BUNDLED
    model = given.model or INPUT_OPTIONS[name].bundled
    assert model is not None  # by `check_inputs`
    return [_input(name, getattr(given, name), given.chat)], model


def _input(name: str, value: Any, chat: bool) -> Any:
    if name == "prompt":
        text = read_text(value)
        return [{"role": "user", "content": text}] if chat else text
    return value if isinstance(value, str) else str(value)


def prepared(task: Task, inputs: list[Any], given: argparse.Namespace) -> list[Any]:
    """Convert inputs to what the task accepts: a digit becomes a graph or an image.

    Raises an error if an option does not match the task: a text model would accept a molecule's SMILES as a sentence.
    """
    from .. import tasks
    from ..tasks import Causal, Image, Seq2Seq

    for name, option in INPUT_OPTIONS.items():
        value = getattr(given, name, None)
        if value is None or isinstance(task, tuple(getattr(tasks, class_name) for class_name in option.tasks)):
            continue
        bundled = f"leave out --model for the bundled {option.bundled!r}, or give" if option.bundled else "give"
        raise Error(
            f"{option.flag} {str(value)!r:.60}: {task.name} takes {task.noun}s; {bundled} a model of {option.reads}."
        )
    if given.second is not None and not task.is_single((given.text, given.second)):
        raise Error(f"--with {given.second!r}: the input of {task.name} is a {task.noun} alone: leave it out.")
    generates = isinstance(task, (Causal, Seq2Seq))
    for flag, value in (("--generate", given.generate), ("--continuation", given.continuation)):
        if value is not None and not generates:
            raise Error(f"{flag} {value!r}: {task.name} does not generate text; give a language model.")
    if isinstance(task, Image):
        refuse("an image", given, *(name for name in ("truncate", "words", "hide_special") if name in given))
    return inputs if given.digit is None else [_digit(task, digit) for digit in inputs]


def _digit(task: Task, given: str) -> Any:
    from ..datasets.drawn import digit_graph, read_digit
    from ..tasks import Graph
    from ..tasks.pixels import named

    if isinstance(task, Graph):
        return digit_graph(given)
    digit = read_digit(given)
    return named(digit.image, digit.name)


def target_of(target: str | None, task: Task) -> str | int | None:
    """Convert --target: a number is a class index, except for tasks whose targets are words."""
    from ..tasks import Blanks, Question
    from ..tasks.writer import Writer

    is_number = target is not None and target.removeprefix("-").isdecimal()
    is_word = isinstance(task, (Writer, Blanks, Question)) or target in task.labels
    return int(target) if target is not None and is_number and not is_word else target


def target_for(task: Task, item: Any, given: argparse.Namespace) -> Any:
    """Return the target for one input; --contrast without --target is a contrast with the predicted class."""
    if given.contrast is None:
        return target_of(given.target, task)
    if given.target is not None:
        return f"{given.target} - {given.contrast}"
    import torch

    from ..tasks import Blanks
    from ..tasks.writer import Writer

    encoded = task.encode(item, truncate=given.truncate)
    task.resolve_target(None, encoded)  # an error if there is no predicted class, as with several regression outputs
    with torch.no_grad():
        index = int(task.model(**task.batch([encoded])).logits[0].argmax())
    if isinstance(task, (Writer, Blanks)):  # several tokens may have the same text
        return index, task.resolve_target(given.contrast, encoded)
    return f"{task.target_title(None, index, encoded)} - {given.contrast}"


def lines_of(path: Path, given: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 file lazily, without empty ones; `given` is the option, for error messages."""
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
    """Return a text, or the content of standard input for "-"."""
    if text != "-":
        return text
    try:
        content = sys.stdin.buffer.read(LARGEST_INPUT + 1)
        if len(content) > LARGEST_INPUT:
            raise Error(f"Standard input has more than {LARGEST_INPUT / MEBIBYTE:.0f} MiB: give a shorter text.")
        return content.decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise Error(f"Standard input is not UTF-8 (byte {error.start}).") from None
