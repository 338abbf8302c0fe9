"""`conserva evaluate`."""

from __future__ import annotations

import argparse
from pathlib import Path

from .._util.files import write_text
from ..models.bundled import BUNDLED, DIGITS, IMAGES, MOLECULES
from ..results.saving import drawn
from .arguments import FORM, Commands, add_data, add_model, load_task, refuse
from .output import put_json, say_written
from .progress import progress

EVALUATE = """examples:
  conserva evaluate --data reviews.csv --methods gi,ah+ln,exact --count 200
  conserva evaluate --data sst2.parquet --split dev --protocol paper --out results/sst2
  conserva evaluate --data glue:sst2 --methods random,gi,ah+ln --json > result.json
  conserva evaluate --model bace --data molecules.csv --steps each --mask induced
  conserva evaluate --model mnist --data mnist --count 20 --mask blank --steps 25
  conserva evaluate --model digits --data mnist --count 20

A model of molecules reads a file with a column of SMILES, a model of images a folder that has a folder of them for each
label. With --out everything is kept in that folder: the result, every curve of every sample, the figures, a report. A
run that was stopped goes on where it was when the same command is given again."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("evaluate", help="measure how faithful methods are", epilog=EVALUATE, **FORM)
    add_data(
        parser,
        "a .csv, .tsv, .jsonl, .json or .parquet file, a folder of images, or the name of a dataset",
        "texts or SMILES",
    )
    parser.add_argument("--methods", help="which, as a,b,c (default: all)")
    parser.add_argument("--protocol", default="default", help="default or paper (default: %(default)s)")
    parser.add_argument(
        "--watch", help="the class whose probability is watched, predicted or true (default: the protocol's)"
    )
    parser.add_argument(
        "--mask",
        help="of tokens unk, mask, pad or drop (default: the protocol's); of nodes token, induced or blank (default: "
        "token); of patches mean or grey (default: mean)",
    )
    parser.add_argument("--steps", help="in how many steps features go, or each for one at a time (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="of the draw and the bootstrap (default: %(default)s)")
    parser.add_argument("--random-seeds", type=int, default=5, help="random orders to average (default: %(default)s)")
    parser.add_argument("--no-reference", action="store_true", help="leave out the yardsticks")
    parser.add_argument("--truncate", action="store_true", help="cut texts that are longer than the model takes")
    parser.add_argument(
        "--batch-tokens", type=int, help="tokens, nodes or patches explained at once (default: what suits the device)"
    )
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="keep everything there, and go on where it was")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_model(parser, BUNDLED, f"{BUNDLED}; of graphs there are {MOLECULES} and {DIGITS}, of images {IMAGES}")
    parser.set_defaults(run=_evaluate, out_needs=("pyarrow", "matplotlib"))


def _evaluate(given: argparse.Namespace) -> None:
    from ..datasets import read_labelled
    from ..datasets.graph_catalogue import GRAPH_DATASETS
    from ..evaluation.run import evaluate
    from ..evaluation.store import save
    from ..tasks import Image
    from ..views.evaluation_terminal import show

    task = load_task(given)
    data = given.data
    if isinstance(task, Image) or data in GRAPH_DATASETS:  # which their task reads itself, and others refuse
        refuse(f"--data {data}", given, "text_column", "label_column", "split")
    else:
        data = read_labelled(data, text=given.text_column, label=given.label_column, split=given.split)
    with progress("evaluating") as say:
        found = evaluate(
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
            truncate=given.truncate,
            out=given.out,
            batch_tokens=given.batch_tokens,
            progress=say,
        )
    if given.json:
        put_json(found.to_dict())
    else:
        show(found)
    if given.out:
        from ..views.curves import draw_conservation, draw_curves
        from ..views.evaluation_page import page

        written = save(found, given.out)
        drawn(given.out / "curves.png", lambda path: draw_curves(found, path))
        drawn(given.out / "conservation.png", lambda path: draw_conservation(found, path))
        write_text(given.out / "report.html", page(found))
        say_written(*written, *(given.out / name for name in ("curves.png", "conservation.png", "report.html")))
