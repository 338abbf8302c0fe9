"""`conserva explain`, `conserva compare`, `conserva methods`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import Error
from ..explanation import Explanation
from ..loading import BUNDLED, DIGITS, MOLECULES
from ..tasks import Graph, Task
from .form import FORM, Commands, add_model
from .progress import progress

EXPLAIN = """examples:
  conserva explain "a gorgeous, witty, seductive movie."
  conserva explain "not much of anything." --target "positive - negative" --method exact
  conserva explain --file reviews.txt --words --html reviews.html
  echo "a joy." | conserva explain - --json
  conserva explain --smiles "CC(C)Cc1ccc(cc1)C(C)C(=O)O" --png ibuprofen.png
  conserva explain --digit 7 --html seven.html"""

COMPARE = """examples:
  conserva compare "has a lot of the virtues of eastwood at his best."
  conserva compare "a joy." --methods gi,ah+ln,exact --html compare.html
  conserva compare --digit 4 --png four.png"""

METHODS = """A method's options stand in brackets, as they are when none is given. To choose others:
  conserva explain "a joy." --method ig:steps=100
  conserva compare "a joy." --methods random:seed=1,random:seed=2,rollout:rows=all"""


def add(commands: Commands) -> None:
    """Add the commands to the parser."""
    explain = commands.add_parser("explain", help="explain a prediction", epilog=EXPLAIN, **FORM)
    explain.add_argument("text", nargs="?", help="the text, or - for standard input")
    explain.add_argument("--file", type=Path, help="a file with one text a line")
    explain.add_argument("--method", default="ah+ln", help="one of `conserva methods` (default: %(default)s)")
    explain.set_defaults(run=_explain)
    _shared(explain)

    compare = commands.add_parser("compare", help="explain by every method", epilog=COMPARE, **FORM)
    compare.add_argument("text", nargs="?", help="the text, or - for standard input")
    compare.add_argument("--methods", help="which, as a,b,c (default: all)")
    compare.set_defaults(run=_compare)
    _shared(compare)

    methods = commands.add_parser("methods", help="list the methods", epilog=METHODS, **FORM)
    methods.add_argument("--json", action="store_true", help="as JSON")
    methods.set_defaults(run=_methods)


def _shared(parser: argparse.ArgumentParser) -> None:
    add_model(parser, None, f"{BUNDLED}, {MOLECULES} for molecules, {DIGITS} for digits")
    parser.add_argument("--smiles", help="a molecule instead of a text, as CCO")
    parser.add_argument(
        "--digit", metavar="N", help="a digit instead of a text: 0 to 9, an image of MNIST as test:12, or a file"
    )
    parser.add_argument("--target", help="a label, a class index, or a contrast 'a - b' (default: the prediction)")
    parser.add_argument("--words", action="store_true", help="sum up the pieces of a word")
    parser.add_argument("--hide-special", action="store_true", help="leave out [CLS], [SEP] and their like")
    parser.add_argument("--truncate", action="store_true", help="cut texts that are longer than the model takes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, metavar="PATH", help="write a page")
    parser.add_argument("--png", type=Path, metavar="PATH", help="write a picture (.png, .svg or .pdf)")


def _explain(given: argparse.Namespace) -> None:
    from ..explain import explain
    from ..loading import load

    inputs, model = _inputs(given, given.file)
    task = load(model)
    _check_reads_graphs(task, given)
    if len(inputs) == 1:
        found = [explain(task, inputs[0], _target(given), given.method, truncate=given.truncate)]
    else:
        with progress("explaining") as say:
            done = 0

            def further(count: int) -> None:
                nonlocal done
                done += count
                say(done, len(inputs))

            target = _target(given)
            found = explain(task, inputs, target, given.method, truncate=given.truncate, progress=further)
    found = [_shaped(one, given) for one in found]
    if given.json:
        whole = [json.loads(one.to_json()) for one in found]
        print(json.dumps(whole if given.file else whole[0], ensure_ascii=False, indent=2))
    else:
        from ..views.terminal import show

        show(found)
    _write(found, given)


def _compare(given: argparse.Namespace) -> None:
    from ..explain import explain
    from ..loading import load
    from ..methods import find, methods

    names = given.methods.split(",") if given.methods else list(methods())
    for name in names:
        find(name)
    (one_input,), model = _inputs(given)
    task = load(model)
    _check_reads_graphs(task, given)
    rows: dict[str, Explanation | str] = {}
    for name in names:
        try:
            rows[name] = _shaped(explain(task, one_input, _target(given), name, truncate=given.truncate), given)
        except Error as error:
            rows[name] = str(error)
    found = [one for one in rows.values() if isinstance(one, Explanation)]
    if not found:
        raise Error(str(next(iter(rows.values()))))
    if given.json:
        whole = {name: one if isinstance(one, str) else json.loads(one.to_json()) for name, one in rows.items()}
        print(json.dumps(whole, ensure_ascii=False, indent=2))
    else:
        from ..views.terminal import compare

        compare(rows)
    _write(found, given, {name: one for name, one in rows.items() if isinstance(one, str)})


def _methods(given: argparse.Namespace) -> None:
    from ..methods import methods, options

    if given.json:
        print(json.dumps(methods(), indent=2))
        return
    for name, summary in methods().items():
        chosen = ", ".join(f"{key}={value}" for key, value in options(name).items())
        print(f"{name:<14}{summary}" + (f" [{chosen}]" if chosen else ""))


def _inputs(given: argparse.Namespace, file: Path | None = None) -> tuple[list[Any], str]:
    """Return what is to be explained, and the model for it."""
    ways = {"text": given.text, "--file": file, "--smiles": given.smiles, "--digit": given.digit}
    chosen = [name for name, value in ways.items() if value is not None]
    if len(chosen) != 1:
        said = f", not {' and '.join(chosen)}" if chosen else ""
        raise Error(f"Give a text, - for standard input, --file PATH, --smiles or --digit: one of them{said}.")
    if given.smiles is not None:
        return [given.smiles], given.model or MOLECULES
    if given.digit is not None:
        from ..datasets.drawn import digit_graph

        return [digit_graph(given.digit)], given.model or DIGITS
    return ([_read(given.text)] if file is None else _lines(file)), given.model or BUNDLED


def _check_reads_graphs(task: Task, given: argparse.Namespace) -> None:
    """Raise if a molecule or a digit was given to a model of texts, which would read the SMILES as a sentence."""
    for option, value, bundled in (("--smiles", given.smiles, MOLECULES), ("--digit", given.digit, DIGITS)):
        if value is not None and not isinstance(task, Graph):
            raise Error(
                f"{option} {value!r:.60}: {task.name} reads texts. Leave out --model for the bundled {bundled!r}, or "
                "name a model of graphs."
            )


def _lines(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise Error(f"--file {file}: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise Error(f"--file {file} is not UTF-8 (byte {error.start}): save it as UTF-8.") from None
    texts = [line for line in lines if line.strip()]
    if not texts:
        raise Error(f"--file {file} holds no text.")
    return texts


def _read(text: str) -> str:
    if text != "-":
        return text
    try:
        return sys.stdin.buffer.read().decode("utf-8").strip()
    except UnicodeDecodeError as error:
        raise Error(f"Standard input is not UTF-8 (byte {error.start}).") from None


def _target(given: argparse.Namespace) -> str | int | None:
    target: str | None = given.target
    return int(target) if target is not None and target.removeprefix("-").isdecimal() else target


def _shaped(one: Explanation, given: argparse.Namespace) -> Explanation:
    one = one.merged() if given.words else one
    return one.visible() if given.hide_special else one


def _write(found: Sequence[Explanation], given: argparse.Namespace, refused: Mapping[str, str] | None = None) -> None:
    if given.html:
        from ..views.html import page

        given.html.write_text(page(found, refused), encoding="utf-8")
        print(f"wrote {given.html}", file=sys.stderr)
    if given.png:
        from ..views.figure import draw

        draw(found, given.png)
        print(f"wrote {given.png}", file=sys.stderr)
