"""`conserva evaluate`."""

from __future__ import annotations

import argparse
from pathlib import Path

from .._util.files import write_text
from ..datasets.catalogue import GRAPH_NAMES
from ..models.bundled import BUNDLED, DIGITS, IMAGES, MOLECULES
from ..results.saving import drawn
from .arguments import FORMATTER, Commands, add_batch_tokens, add_data, add_model, check_data, load_task, refuse
from .output import print_json, report_written
from .progress import progress

SUBSETS = 32
"""The default number of subsets of `--lds`."""

EVALUATE = """examples:
  conserva evaluate --data reviews.csv --methods gi,ah+ln,exact --count 200
  conserva evaluate --data sst2.parquet --split dev --protocol paper --out results/sst2
  conserva evaluate --data glue:sst2 --methods random,gi,ah+ln --json > result.json
  conserva evaluate --model bace --data molecules.csv --steps each --mask induced
  conserva evaluate --model mnist --data mnist --count 20 --mask blank --steps 25
  conserva evaluate --model digits --data mnist --count 20
  conserva evaluate --data reviews.csv --srg --lds 32 --tau
  conserva evaluate --model path/to/nli --data pairs.csv --text-column premise --with-column hypothesis

For a model of molecules --data is a file with a column of SMILES, for a model of images a folder with one subfolder of
images per label. With --out the result, the curves of every sample, the figures and a report are written to that
folder. An interrupted run is resumed when the same command is given again."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("evaluate", help="measure how faithful methods are", epilog=EVALUATE, **FORMATTER)
    add_data(
        parser,
        "a .csv, .tsv, .jsonl, .json or .parquet file, a folder of images, or the name of a dataset",
        "texts or SMILES",
    )
    parser.add_argument("--with-column", metavar="NAME", help="the column of second texts, for models of pairs")
    parser.add_argument("--methods", help="the methods, comma-separated (default: all)")
    parser.add_argument("--protocol", default="default", help="default or paper (default: %(default)s)")
    parser.add_argument(
        "--watch", help="the class whose probability is tracked, predicted or true (default: by the protocol)"
    )
    parser.add_argument(
        "--mask",
        help="how to mask tokens: unk, mask, pad or drop (default: by the protocol); nodes: token, induced or blank "
        "(default: token); patches: mean or grey (default: mean)",
    )
    parser.add_argument("--steps", help="the number of masking steps, or each for one feature per step (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of draw and bootstrap (default: %(default)s)")
    parser.add_argument("--random-seeds", type=int, default=5, help="random orders to average (default: %(default)s)")
    parser.add_argument("--no-reference", action="store_true", help="leave out the baselines")
    parser.add_argument("--srg", action="store_true", help="measure the symmetric relevance gain (one more curve)")
    parser.add_argument(
        "--lds",
        type=int,
        default=0,
        nargs="?",
        const=SUBSETS,
        metavar="K",
        help="measure the linear datamodelling score on K random subsets of features (without K: %(const)s)",
    )
    parser.add_argument(
        "--tau", action="store_true", help="measure Kendall's tau with leave-one-out (one forward pass per feature)"
    )
    parser.add_argument("--truncate", action="store_true", help="truncate texts that exceed the maximum length")
    add_batch_tokens(parser, "tokens, nodes or patches")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write everything there, and resume from there")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_model(parser, BUNDLED, f"{BUNDLED}; also {MOLECULES} and {DIGITS} for graphs, {IMAGES} for images")
    parser.set_defaults(run=_evaluate, check=_check, out_needs=("pyarrow", "matplotlib"))


def _check(given: argparse.Namespace) -> None:
    from ..evaluation.additional import Additional
    from ..evaluation.protocol import protocol_of

    steps = int(given.steps) if given.steps and given.steps.isdecimal() else given.steps
    protocol_of(given.protocol, given.watch, True, steps)
    Additional(given.srg, given.lds, given.tau)
    if given.data not in GRAPH_NAMES:
        check_data(given.data)


def _evaluate(given: argparse.Namespace) -> None:
    from ..datasets import read_labelled
    from ..datasets.graph_catalogue import GRAPH_DATASETS
    from ..evaluation.run import evaluate
    from ..evaluation.store import save
    from ..tasks import Image
    from ..views.evaluation_terminal import show

    task = load_task(given)
    data = given.data
    if isinstance(task, Image) or data in GRAPH_DATASETS:  # the task reads these itself, or raises an error
        refuse(f"--data {data}", given, "text_column", "with_column", "label_column", "split")
    else:
        columns = {"text": given.text_column, "second": given.with_column, "label": given.label_column}
        data = read_labelled(data, **columns, split=given.split)
    with progress("evaluating") as on_progress:
        evaluation = evaluate(
            task,
            data,
            given.methods.split(",") if given.methods else None,
            protocol=given.protocol,
            watch=given.watch,
            mask=given.mask,
            steps=int(given.steps) if given.steps and given.steps.isdecimal() else given.steps,
            count=given.count,
            seed=given.seed,
            random_seeds=given.random_seeds,
            reference=not given.no_reference,
            srg=given.srg,
            lds=given.lds,
            tau=given.tau,
            truncate=given.truncate,
            out=given.out,
            batch_tokens=given.batch_tokens,
            progress=on_progress,
        )
    if given.json:
        print_json(evaluation.to_dict())
    else:
        show(evaluation)
    if given.out:
        from ..views.curves import draw_conservation, draw_curves
        from ..views.evaluation_page import page

        written = save(evaluation, given.out)
        drawn(given.out / "curves.png", lambda path: draw_curves(evaluation, path))
        drawn(given.out / "conservation.png", lambda path: draw_conservation(evaluation, path))
        write_text(given.out / "report.html", page(evaluation))
        report_written(*written, *(given.out / name for name in ("curves.png", "conservation.png", "report.html")))
