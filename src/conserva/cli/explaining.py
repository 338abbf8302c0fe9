"""`conserva explain`, `conserva compare`, `conserva methods`."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._util.files import write_parts
from ..engine.rules import DEFAULT
from ..errors import Error
from ..models.bundled import BUNDLED, DIGITS, IMAGES, MOLECULES
from ..results.explanation import Explanation
from ..results.generation import LOG_PROBABILITY, LOGIT
from ..results.result import Result
from ..results.saving import drawn
from .arguments import FORM, Commands, add_model, load_task, refuse
from .input_options import add_inputs, aimed, as_read, inputs_of, lines_of, target_of
from .output import put_json, put_json_list, say_written
from .progress import progress

if TYPE_CHECKING:
    from ..tasks import Causal, Seq2Seq, Task

MOST_DRAWN = 200
"""How many explanations of texts fit on one picture."""

EXPLAIN = """examples:
  conserva explain "a gorgeous, witty, seductive movie."
  conserva explain "not much of anything." --target "positive - negative" --method exact
  conserva explain --model cross-encoder/nli-deberta-v3-base "A man eats." --with "Someone is eating."
  conserva explain --file reviews.txt --words --html reviews.html
  echo "a joy." | conserva explain - --json
  conserva explain --smiles "CC(C)Cc1ccc(cc1)C(C)C(=O)O" --png ibuprofen.png
  conserva explain --digit 7 --html seven.html
  conserva explain --digit 7 --model digits --png seven.png
  conserva explain --model SmolLM2.gguf --prompt "The capital of France is" --contrast London
  conserva explain --model SmolLM2.gguf --prompt "Tell me a joke." --chat --generate 30 --html joke.html
  conserva explain --model google/vit-base-patch16-224 --image cat.jpg --html cat.html"""

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
    explain.add_argument("--file", type=Path, help="a file with one text a line")
    explain.add_argument("--method", default=DEFAULT, help="one of `conserva methods` (default: %(default)s)")
    _shared(explain)
    explain.add_argument(
        "--generate",
        type=int,
        nargs="?",
        const=40,
        metavar="N",
        help="let the model write N tokens (40), and explain each",
    )
    explain.add_argument("--continuation", metavar="TEXT", help="explain each token of this text after the prompt")
    explain.add_argument(
        "--score", choices=(LOGIT, LOG_PROBABILITY), help=f"what of a written token is explained (default: {LOGIT})"
    )
    explain.add_argument("--trace", action="store_true", help="show relevance at every layer")
    explain.set_defaults(run=_explain)

    compare = commands.add_parser("compare", help="explain by every method", epilog=COMPARE, **FORM)
    compare.add_argument("--methods", help="which, as a,b,c (default: all)")
    _shared(compare)
    compare.set_defaults(run=_compare, generate=None, continuation=None)

    methods = commands.add_parser("methods", help="list the methods", epilog=METHODS, **FORM)
    methods.add_argument("--json", action="store_true", help="as JSON")
    methods.set_defaults(run=_methods)


def _shared(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    add_model(parser, None, f"{BUNDLED}, {MOLECULES} for molecules, {DIGITS} for digits, {IMAGES} for images")
    parser.add_argument("--words", action="store_true", help="sum up the pieces of a word")
    parser.add_argument("--hide-special", action="store_true", help="leave out [CLS], [SEP] and their like")
    parser.add_argument(
        "--hide-sink", action="store_true", help="leave a language model's first token out of the picture"
    )
    parser.add_argument("--truncate", action="store_true", help="cut texts that are longer than the model takes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, metavar="PATH", help="write a page")
    parser.add_argument("--png", type=Path, metavar="PATH", help="write a picture (.png, .svg or .pdf)")


def _explain(given: argparse.Namespace) -> None:
    from ..explaining.explain import explain
    from ..tasks import Causal, Seq2Seq

    inputs, model = inputs_of(given, given.file)
    is_written = given.generate is not None or given.continuation is not None
    if given.file is not None and (is_written or given.trace):
        raise Error(f"--file {given.file}: give one text at a time with --generate, --continuation or --trace.")
    task = load_task(given, model)
    inputs = as_read(task, inputs, given)
    if isinstance(task, (Causal, Seq2Seq)) and is_written:
        _generate(task, inputs[0], given)
        return
    if given.score is not None:
        raise Error(f"--score {given.score} is that of tokens that are written: add --generate or --continuation.")
    if given.trace:
        _trace(task, inputs[0], given)
    elif given.file is not None:
        _write(_put(_explained(task, given), given), given)
    else:
        one = explain(task, inputs[0], aimed(task, inputs[0], given), **_options(given))
        _finish(_shaped(one, given), given)


def _explained(task: Task, given: argparse.Namespace) -> Iterator[Explanation]:
    """Yield the explanations of a file's texts, some at a time, so that a file of any length can be explained."""
    from ..explaining.explain import explain_stream

    said = f"--file {given.file}"
    count = sum(1 for _ in lines_of(given.file, said))
    if not count:
        raise Error(f"{said} holds no text.")
    if given.png and count > MOST_DRAWN:
        raise Error(f"{said} holds {count} texts, and --png draws {MOST_DRAWN} at most: leave one out.")

    def target(texts: Sequence[str]) -> Any:
        return [aimed(task, one, given) for one in texts] if given.contrast else target_of(given.target, task)

    with progress("explaining") as tell:
        stream = explain_stream(task, lines_of(given.file, said), target, **_options(given))
        for done, one in enumerate(stream, 1):
            yield _shaped(one, given)
            tell(done, count)


def _put(found: Iterable[Explanation], given: argparse.Namespace) -> Iterator[Explanation]:
    """Print explanations, and yield each once it is printed."""
    if given.json:
        yield from put_json_list(found, Explanation.to_dict)
        return
    for one in found:
        one.show()
        yield one


def _generate(task: Causal | Seq2Seq, prompt: Any, given: argparse.Namespace) -> None:
    from ..explaining.generate import explain_generation

    refuse("a generation", given, "target", "contrast", "png", "trace", "words", "hide_special", "hide_sink")
    tokens, score = 40 if given.generate is None else given.generate, given.score or LOGIT
    how = {"continuation": given.continuation, "tokens": tokens, "score": score, **_options(given)}
    _finish(explain_generation(task, prompt, **how), given)


def _trace(task: Task, one: Any, given: argparse.Namespace) -> None:
    from ..explaining.trace import trace

    refuse("a trace", given, "words", "hide_special", "hide_sink")
    _finish(trace(task, one, aimed(task, one, given), **_options(given)), given)


def _options(given: argparse.Namespace) -> dict[str, Any]:
    """Return the options of all explanations; what is printed as JSON says which weights were used."""
    return {"method": given.method, "truncate": given.truncate, "fingerprint": given.json}


def _finish(found: Result, given: argparse.Namespace) -> None:
    """Print a result, and save it where it is asked for."""
    if given.json:
        put_json(found.to_dict())
    else:
        found.show()
    for path in filter(None, (given.html, given.png)):
        say_written(found.save(path))


def _compare(given: argparse.Namespace) -> None:
    from ..attribution import find
    from ..explaining.compare import compare

    names = given.methods.split(",") if given.methods else None
    for name in names or ():
        find(name)
    inputs, model = inputs_of(given)
    task = load_task(given, model)
    (one,) = as_read(task, inputs, given)
    target = aimed(task, one, given)
    found = compare(task, one, target, methods=names, truncate=given.truncate, fingerprint=given.json)
    _finish(found.each(lambda one: _shaped(one, given)), given)


def _methods(given: argparse.Namespace) -> None:
    from ..attribution import methods, options

    if given.json:
        put_json(methods())
        return
    for name, summary in methods().items():
        chosen = ", ".join(f"{key}={value}" for key, value in options(name).items())
        print(f"{name:<14}{summary}" + (f" [{chosen}]" if chosen else ""))


def _shaped(one: Explanation, given: argparse.Namespace) -> Explanation:
    one = one.without_sink() if given.hide_sink else one
    one = one.merged() if given.words else one
    return one.visible() if given.hide_special else one


def _write(found: Iterable[Explanation], given: argparse.Namespace) -> None:
    """Write the page and the picture, if they are asked for; a page is written as its explanations come."""
    from ..views.explanation_figure import draw
    from ..views.explanation_page import page_parts

    kept = []

    def passing() -> Iterator[Explanation]:
        for one in found:
            if given.png:
                kept.append(one)
            yield one

    if given.html:
        write_parts(given.html, page_parts(passing()), f"--html {given.html}")
        say_written(given.html)
    else:
        deque(passing(), maxlen=0)
    if given.png:
        say_written(drawn(given.png, lambda path: draw(kept, path), f"--png {given.png}"))
