"""`conserva explain`, `conserva compare`, `conserva methods`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..engine.rules import DEFAULT
from ..errors import Error
from ..models.bundled import BUNDLED, DIGITS, IMAGES, MOLECULES
from ..results.generation import LOG_PROBABILITY, LOGIT
from ..results.result import Result
from .arguments import FORMATTER, Commands, add_batch_tokens, add_model, load_task, refuse
from .file_explaining import add_file, check_file_options, explain_file
from .input_options import add_inputs, check_inputs, inputs_of, prepared, target_for
from .output import print_entry, print_json, report_written
from .parts import displayed_parts, print_result
from .windows_option import add_windows

if TYPE_CHECKING:
    from ..tasks import Causal, Seq2Seq, Task

EXPLAIN = """examples:
  conserva explain "a gorgeous, witty, seductive movie."
  conserva explain "not much of anything." --target "positive - negative" --method exact
  conserva explain --model cross-encoder/nli-deberta-v3-base "A man eats." --with "Someone is eating."
  conserva explain --file reviews.txt --words --html reviews.html
  conserva explain --file reviews.csv --text-column body --id-column key --out why.parquet
  echo "a joy." | conserva explain - --json
  conserva explain --smiles "CC(C)Cc1ccc(cc1)C(C)C(=O)O" --png ibuprofen.png
  conserva explain --digit 7 --html seven.html
  conserva explain --digit 7 --model digits --png seven.png
  conserva explain --model SmolLM2.gguf --prompt "The capital of France is" --contrast London
  conserva explain --model SmolLM2.gguf --prompt "Tell me a joke." --chat --generate 30 --html joke.html
  conserva explain --model google/vit-base-patch16-224 --image cat.jpg --html cat.html

With --out, every row of the file is a row of a table: .csv (with lists as JSON), .jsonl or .parquet. A row that cannot
be explained gets an error there, and the run goes on. An interrupted run is resumed when the same command is given
again; the table of a finished run is replaced. Pages show texts in tokens, words and sentences, by a switch."""

COMPARE = """examples:
  conserva compare "has a lot of the virtues of eastwood at his best."
  conserva compare "a joy." --methods gi,ah+ln,exact --html compare.html
  conserva compare --digit 4 --png four.png"""

METHODS = """The options of a method are in brackets, with their defaults. To change them:
  conserva explain "a joy." --method ig:steps=100
  conserva compare "a joy." --methods random:seed=1,random:seed=2,rollout:rows=all"""


def add(commands: Commands) -> None:
    """Add the commands to the parser."""
    usage = "%(prog)s [TEXT] [options]"
    explain = commands.add_parser("explain", help="explain a prediction", usage=usage, epilog=EXPLAIN, **FORMATTER)
    explain.add_argument("--method", default=DEFAULT, help="one of `conserva methods` (default: %(default)s)")
    _shared(explain)
    add_file(explain)
    generated = explain.add_argument_group("generated text, and layers")
    generated.add_argument(
        "--generate",
        type=int,
        nargs="?",
        const=40,
        metavar="N",
        help="generate N tokens (default: 40), and explain each",
    )
    generated.add_argument("--continuation", metavar="TEXT", help="explain each token of this text after the prompt")
    generated.add_argument(
        "--score", choices=(LOGIT, LOG_PROBABILITY), help=f"the explained quantity of each token (default: {LOGIT})"
    )
    generated.add_argument("--trace", action="store_true", help="show relevance at every layer")
    explain.set_defaults(run=_explain, check=_check_explain)

    compare = commands.add_parser("compare", help="explain by every method", usage=usage, epilog=COMPARE, **FORMATTER)
    compare.add_argument("--methods", help="the methods, comma-separated (default: all)")
    _shared(compare)
    compare.set_defaults(run=_compare, check=_check_compare, generate=None, continuation=None)

    methods = commands.add_parser("methods", help="list the methods", epilog=METHODS, **FORMATTER)
    methods.add_argument("--json", action="store_true", help="print JSON")
    methods.set_defaults(run=_methods, imports=())


def _shared(parser: argparse.ArgumentParser) -> None:
    add_inputs(parser)
    model = parser.add_argument_group("model")
    add_model(model, None, f"{BUNDLED}; {MOLECULES} for molecules, {DIGITS} for digits, {IMAGES} for images")
    add_batch_tokens(model)
    texts = parser.add_argument_group("texts")
    texts.add_argument("--words", action="store_true", help="merge the subword tokens of a word")
    texts.add_argument("--hide-special", action="store_true", help="hide [CLS], [SEP] and other special tokens")
    texts.add_argument(
        "--hide-sink", action="store_true", help="hide a language model's first token, the attention sink"
    )
    texts.add_argument("--truncate", action="store_true", help="truncate texts that exceed the maximum length")
    add_windows(texts)
    output = parser.add_argument_group("output")
    output.add_argument("--numbers", action="store_true", help="print the scores beside the coloured tokens")
    output.add_argument("--json", action="store_true", help="print JSON")
    output.add_argument("--html", type=Path, metavar="PATH", help="write a page")
    output.add_argument("--png", type=Path, metavar="PATH", help="write a picture (.png, .svg or .pdf)")


_OF_EXPLANATIONS = ("words", "hide_special", "hide_sink", "windows", "batch_tokens", "numbers")
"""The options that apply to explanations only."""


def _check_explain(given: argparse.Namespace) -> None:
    check_inputs(given, given.file)
    generates = given.generate is not None or given.continuation is not None
    if given.file is not None and (generates or given.trace):
        raise Error(f"--file {given.file} does not work with --generate, --continuation or --trace: give one text.")
    if given.score is not None and not generates:
        raise Error(f"--score {given.score} applies to generated tokens only: add --generate or --continuation.")
    _check_shared(given)
    if generates:
        refuse("a generation", given, "target", "contrast", "png", "trace", *_OF_EXPLANATIONS)
    if given.trace:
        refuse("a trace", given, *_OF_EXPLANATIONS)
    check_file_options(given)


def _check_compare(given: argparse.Namespace) -> None:
    check_inputs(given)
    _check_shared(given)


def _check_shared(given: argparse.Namespace) -> None:
    if given.windows and given.truncate:
        raise Error("--windows and --truncate exclude each other: windows cover the whole text.")
    if given.batch_tokens is not None and given.batch_tokens < 1:
        raise Error(f"--batch-tokens {given.batch_tokens} is too small: give 1 or more.")


def _explain(given: argparse.Namespace) -> None:
    from ..explaining.explain import explain
    from ..tasks import Causal, Seq2Seq

    inputs, model = inputs_of(given, given.file)
    task = load_task(given, model)
    inputs = prepared(task, inputs, given)
    if isinstance(task, (Causal, Seq2Seq)) and (given.generate is not None or given.continuation is not None):
        _generate(task, inputs[0], given)
    elif given.trace:
        _trace(task, inputs[0], given)
    elif given.file is not None:
        explain_file(task, given)
    else:
        explanation = explain(task, inputs[0], target_for(task, inputs[0], given), **_options(given))
        _finish(displayed_parts(explanation, given), given)


def _generate(task: Causal | Seq2Seq, prompt: Any, given: argparse.Namespace) -> None:
    from ..explaining.generate import explain_generation

    tokens, score = 40 if given.generate is None else given.generate, given.score or LOGIT
    options = {"continuation": given.continuation, "tokens": tokens, "score": score, **_options_of_one(given)}
    _finish(explain_generation(task, prompt, **options), given)


def _trace(task: Task, item: Any, given: argparse.Namespace) -> None:
    from ..explaining.trace import trace

    _finish(trace(task, item, target_for(task, item, given), **_options_of_one(given)), given)


def _options(given: argparse.Namespace) -> dict[str, Any]:
    """Return the options shared by explanations in batches."""
    return {**_options_of_one(given), "windows": given.windows, "batch_tokens": given.batch_tokens}


def _options_of_one(given: argparse.Namespace) -> dict[str, Any]:
    """Return the options shared by all explanations; JSON output includes the hash of the weights."""
    return {"method": given.method, "truncate": given.truncate, "fingerprint": given.json}


def _finish(result: Result, given: argparse.Namespace) -> None:
    """Print a result, and save it to the files of --html and --png."""
    if given.json:
        print_json(result.to_dict())
    else:
        print_result(result, given)
    for path in filter(None, (given.html, given.png)):
        report_written(result.save(path))


def _compare(given: argparse.Namespace) -> None:
    from ..explaining.compare import compare

    inputs, model = inputs_of(given)
    task = load_task(given, model)
    (item,) = prepared(task, inputs, given)
    target = target_for(task, item, given)
    comparison = compare(
        task,
        item,
        target,
        methods=given.methods.split(",") if given.methods else None,
        truncate=given.truncate,
        windows=given.windows,
        batch_tokens=given.batch_tokens,
        fingerprint=given.json,
    )
    _finish(comparison.each(lambda explanation: displayed_parts(explanation, given)), given)


def _methods(given: argparse.Namespace) -> None:
    from ..attribution import methods, options

    if given.json:
        print_json(methods())
        return
    for name, summary in methods().items():
        chosen = ", ".join(f"{key}={value}" for key, value in options(name).items())
        print_entry(f"{name:<14}", summary + (f" [{chosen}]" if chosen else ""))
