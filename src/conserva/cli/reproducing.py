"""`conserva reproduce`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..errors import Error
from ..training.recipe import EMBEDDINGS
from .form import FORM, Commands, add_embeddings, device_of
from .progress import progress_of_parts

REPRODUCE = """examples:
  conserva reproduce text --quick --out quick
  conserva reproduce text --device cuda --jobs 8 --out results/text
  conserva reproduce text --datasets sst2,semaine --seeds 0 --out results/text

Trains the classifiers that are missing, evaluates every method on them under the protocol of Ali et al. (2022), and
writes tables, curves, conservation and example sentences to the folder. What is done already stays: a run that was
stopped goes on where it was. --quick takes a small slice of everything, to see the whole path; its numbers mean
nothing."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("reproduce", help="the paper's experiments", epilog=REPRODUCE, **FORM)
    parser.add_argument("experiment", choices=("text",), help="text: tables 1 and 2 on seven datasets")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where everything goes")
    parser.add_argument("--datasets", help="which, as a,b,c (default: all)")
    parser.add_argument("--seeds", default="0,1,2", help="of the classifiers, as a,b,c (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a small slice of everything, one seed, minutes on a CPU")
    parser.add_argument("--as-released", action="store_true", help="classifiers with the quirks of the released code")
    parser.add_argument("--device", default="cpu", help="where models run, as cuda (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="classifiers side by side (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_embeddings(parser, f"{EMBEDDINGS}; with --quick the bundled")
    parser.set_defaults(run=_reproduce)


def _reproduce(given: argparse.Namespace) -> None:
    import torch

    from ..datasets import DATASETS
    from ..experiments.plan import Plan
    from ..experiments.text import reproduce
    from ..loading import BUNDLED
    from ..views.results import summary, write

    if given.jobs < 1:
        raise Error(f"--jobs {given.jobs}: one or more.")
    plan = Plan(
        datasets=tuple(given.datasets.split(",") if given.datasets else DATASETS),
        seeds=(0,) if given.quick else _seeds(given.seeds),
        embeddings=given.embeddings or (BUNDLED if given.quick else EMBEDDINGS),
        device=device_of(given.device),
        as_released=given.as_released,
        quick=given.quick,
    )
    if given.quick:
        torch.set_num_threads(1)  # on so small a slice threads wait for each other longer than they work
    with progress_of_parts() as say:
        results = reproduce(plan, given.out, jobs=given.jobs, say=say)
    if given.json:
        print(json.dumps([json.loads(one.to_json()) for one in results], ensure_ascii=False))
    else:
        summary(results)
    for path in write(results, given.out):
        print(f"wrote {path}", file=sys.stderr)


def _seeds(given: str) -> tuple[int, ...]:
    try:
        return tuple(int(one) for one in given.split(","))
    except ValueError:
        raise Error(f"--seeds {given}: whole numbers with commas between, as 0,1,2.") from None
