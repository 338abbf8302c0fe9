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
from .arguments import FORMATTER, Commands, add_model, load_task, refuse
from .input_options import add_inputs, inputs_of, lines_of, prepared, target_for, target_of
from .output import print_json, print_json_list, report_written
from .progress import progress

if TYPE_CHECKING:
    from ..tasks import Causal, Seq2Seq, Task

MOST_DRAWN = 200
"""The maximum number of text explanations in one picture."""

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

METHODS = """The options of a method are in brackets, with their defaults. To change them:
  conserva explain "a joy." --method ig:steps=100
  conserva compare "a joy." --methods random:seed=1,random:seed=2,rollout:rows=all"""


def add(commands: Commands) -> None:
    """Add the commands to the parser."""
    explain = commands.add_parser("explain", help="explain a prediction", epilog=EXPLAIN, **FORMATTER)
    explain.add_argument("--file", type=Path, help="a file with one text per line")
    explain.add_argument("--method", default=DEFAULT, help="one of `conserva methods` (default: %(default)s)")
    _shared(explain)
    explain.add_argument(
        "--generate",
        type=int,
        nargs="?",
        const=40,
        metavar="N",
        help="generate N tokens (default: 40), and explain each",
    )
    explain.add_argument("--continuation", metavar="TEXT", help="explain each token of this text after the prompt")
    explain.add_argument(
        "--score", choices=(LOGIT, LOG_PROBABILITY), help=f"the explained quantity of each token (default: {LOGIT})"
    )
    explain.add_argument("--trace", action="store_true", help="show relevance at every layer")
    explain.set_defaults(run=_explain)

    compare = commands.add_parser("compare", help="explain by every method", epilog=COMPARE, **FORMATTER)
    compare.add_argument("--methods", help="the methods, comma-separated (default: all)")
    _shared(compare)
    compare.set_defaults(run=_compare, generate=None, continuation=None)

    methods = commands.add_parser("methods", help="list the methods", epilog=METHODS, **FORMATTER)
    methods.add_argument("--json", action="store_true", help="print JSON")
    methods.set_defaults(run=_methods)


def _shared(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    add_model(parser, None, f"{BUNDLED}, {MOLECULES} for molecules, {DIGITS} for digits, {IMAGES} for images")
    parser.add_argument("--words", action="store_true", help="merge the subword tokens of a word")
    parser.add_argument("--hide-special", action="store_true", help="hide [CLS], [SEP] and other special tokens")
    parser.add_argument(
        "--hide-sink", action="store_true", help="hide a language model's first token, the attention sink"
    )
    parser.add_argument("--truncate", action="store_true", help="truncate texts that exceed the maximum length")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", type=Path, metavar="PATH", help="write a page")
    parser.add_argument("--png", type=Path, metavar="PATH", help="write a picture (.png, .svg or .pdf)")


def _explain(given: argparse.Namespace) -> None:
    from ..explaining.explain import explain
    from ..tasks import Causal, Seq2Seq

    inputs, model = inputs_of(given, given.file)
    generates = given.generate is not None or given.continuation is not None
    if given.file is not None and (generates or given.trace):
        raise Error(f"--file {given.file} does not work with --generate, --continuation or --trace: give one text.")
    task = load_task(given, model)
    inputs = prepared(task, inputs, given)
    if isinstance(task, (Causal, Seq2Seq)) and generates:
        _generate(task, inputs[0], given)
        return
    if given.score is not None:
        raise Error(f"--score {given.score} applies to generated tokens only: add --generate or --continuation.")
    if given.trace:
        _trace(task, inputs[0], given)
    elif given.file is not None:
        _write(_printed(_explained(task, given), given), given)
    else:
        explanation = explain(task, inputs[0], target_for(task, inputs[0], given), **_options(given))
        _finish(_displayed(explanation, given), given)


def _explained(task: Task, given: argparse.Namespace) -> Iterator[Explanation]:
    """Yield the explanations of a file's texts lazily, so that a file of any length can be explained."""
    from ..explaining.explain import explain_stream

    option = f"--file {given.file}"
    count = sum(1 for _ in lines_of(given.file, option))
    if not count:
        raise Error(f"{option} has no text.")
    if given.png and count > MOST_DRAWN:
        raise Error(f"{option} has {count} texts, but --png draws at most {MOST_DRAWN}: use --html, or a shorter file.")

    def target(texts: Sequence[str]) -> Any:
        return [target_for(task, text, given) for text in texts] if given.contrast else target_of(given.target, task)

    with progress("explaining") as report:
        stream = explain_stream(task, lines_of(given.file, option), target, **_options(given))
        for done, explanation in enumerate(stream, 1):
            yield _displayed(explanation, given)
            report(done, count)


def _printed(explanations: Iterable[Explanation], given: argparse.Namespace) -> Iterator[Explanation]:
    """Print explanations, and yield each after it is printed."""
    if given.json:
        yield from print_json_list(explanations, Explanation.to_dict)
        return
    for explanation in explanations:
        explanation.show()
        yield explanation


def _generate(task: Causal | Seq2Seq, prompt: Any, given: argparse.Namespace) -> None:
    from ..explaining.generate import explain_generation

    refuse("a generation", given, "target", "contrast", "png", "trace", "words", "hide_special", "hide_sink")
    tokens, score = 40 if given.generate is None else given.generate, given.score or LOGIT
    options = {"continuation": given.continuation, "tokens": tokens, "score": score, **_options(given)}
    _finish(explain_generation(task, prompt, **options), given)


def _trace(task: Task, item: Any, given: argparse.Namespace) -> None:
    from ..explaining.trace import trace

    refuse("a trace", given, "words", "hide_special", "hide_sink")
    _finish(trace(task, item, target_for(task, item, given), **_options(given)), given)


def _options(given: argparse.Namespace) -> dict[str, Any]:
    """Return the options shared by all explanations; JSON output includes the hash of the weights."""
    return {"method": given.method, "truncate": given.truncate, "fingerprint": given.json}


def _finish(result: Result, given: argparse.Namespace) -> None:
    """Print a result, and save it to the files of --html and --png."""
    if given.json:
        print_json(result.to_dict())
    else:
        result.show()
    for path in filter(None, (given.html, given.png)):
        report_written(result.save(path))


def _compare(given: argparse.Namespace) -> None:
    from ..attribution import find
    from ..explaining.compare import compare

    names = given.methods.split(",") if given.methods else None
    for name in names or ():
        find(name)
    inputs, model = inputs_of(given)
    task = load_task(given, model)
    (item,) = prepared(task, inputs, given)
    target = target_for(task, item, given)
    comparison = compare(task, item, target, methods=names, truncate=given.truncate, fingerprint=given.json)
    _finish(comparison.each(lambda explanation: _displayed(explanation, given)), given)


def _methods(given: argparse.Namespace) -> None:
    from ..attribution import methods, options

    if given.json:
        print_json(methods())
        return
    for name, summary in methods().items():
        chosen = ", ".join(f"{key}={value}" for key, value in options(name).items())
        print(f"{name:<14}{summary}" + (f" [{chosen}]" if chosen else ""))


def _displayed(explanation: Explanation, given: argparse.Namespace) -> Explanation:
    """Apply --hide-sink, --words and --hide-special."""
    explanation = explanation.without_sink() if given.hide_sink else explanation
    explanation = explanation.merged() if given.words else explanation
    return explanation.visible() if given.hide_special else explanation


def _write(explanations: Iterable[Explanation], given: argparse.Namespace) -> None:
    """Write the files of --html and --png; a page is written incrementally."""
    from ..views.explanation_figure import draw
    from ..views.explanation_page import page_parts

    kept = []

    def keeping() -> Iterator[Explanation]:
        for explanation in explanations:
            if given.png:
                kept.append(explanation)
            yield explanation

    if given.html:
        write_parts(given.html, page_parts(keeping()), f"--html {given.html}")
        report_written(given.html)
    else:
        deque(keeping(), maxlen=0)
    if given.png:
        report_written(drawn(given.png, lambda path: draw(kept, path), f"--png {given.png}"))
