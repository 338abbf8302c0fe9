"""`conserva reproduce`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Error
from ..paper.training.recipe import EMBEDDINGS
from .arguments import FORM, Commands, add_device, device_of
from .output import put_json, say_written
from .progress import progress_of_parts
from .training import add_embeddings

if TYPE_CHECKING:
    from ..paper.experiments.plan import Plan

REPRODUCE = """examples:
  conserva reproduce text --quick --out quick
  conserva reproduce text --device cuda --jobs 8 --out results/text
  conserva reproduce text --datasets sst2,semaine --seeds 0 --out results/text
  conserva reproduce graphs --quick --out quick-graphs
  conserva reproduce graphs --device cuda --jobs 6 --out results/graphs
  conserva reproduce graphs --datasets bace --masks token,induced --post-norm --out results/post-norm

text: tables 1 and 2 of Ali et al. (2022) on seven datasets of texts, by attention-only classifiers.
graphs: the same tables on molecules (bace) and superpixels (mnist), by Graphormers. The paper does not say how nodes
are removed, so there are several maskings. token: nothing looks at them any more. induced: the graph is read anew
without them. blank: they stay and say nothing.

Trains the models that are missing, evaluates every method on them, and writes tables, curves, conservation and examples
to the folder. What is done already stays: a run that was stopped goes on where it was. --quick takes a small slice of
everything, to see the whole path; its numbers mean nothing."""

_OPTIONS = {"text": ("as_released", "embeddings"), "graphs": ("masks", "post_norm")}
"""Options that only one experiment has."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("reproduce", help="the paper's experiments", epilog=REPRODUCE, **FORM)
    parser.add_argument("experiment", choices=tuple(_OPTIONS), help="which: tables 1 and 2 on texts, or on graphs")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="where everything goes")
    parser.add_argument("--datasets", help="which, as a,b,c (default: all of the experiment)")
    parser.add_argument("--seeds", default="0,1,2", help="of the models, as a,b,c (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a small slice of everything, one seed, minutes on a CPU")
    add_device(parser)
    parser.add_argument("--jobs", type=int, default=1, help="models side by side (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    texts = parser.add_argument_group("text")
    texts.add_argument(
        "--as-released", action="store_true", default=None, help="classifiers with the quirks of the released code"
    )
    add_embeddings(parser, f"{EMBEDDINGS}; with --quick the bundled")
    graphs = parser.add_argument_group("graphs")
    graphs.add_argument("--masks", help="how nodes are taken away, as a,b (default: token,induced,blank)")
    graphs.add_argument(
        "--post-norm", action="store_true", default=None, help="norms after the sums, not before the layers"
    )
    parser.set_defaults(run=_reproduce, out_needs=("matplotlib",))


def _reproduce(given: argparse.Namespace) -> None:
    for experiment, options in _OPTIONS.items():
        for name in options if experiment != given.experiment else ():
            if getattr(given, name) is not None:
                raise Error(
                    f"--{name.replace('_', '-')} is an option of reproduce {experiment}, not of reproduce "
                    f"{given.experiment}: leave it out."
                )
    if given.jobs < 1:
        raise Error(f"--jobs {given.jobs}: one or more.")
    if given.quick:
        import torch

        torch.set_num_threads(1)  # on so small a slice threads wait for each other longer than they work
    from ..paper.experiments.run import reproduce
    from ..paper.views.results import summary, write

    plan = _text_plan(given) if given.experiment == "text" else _graph_plan(given)
    with progress_of_parts() as say:
        results = reproduce(plan, given.out, jobs=given.jobs, say=say)
    if given.json:
        put_json([json.loads(one.to_json()) for one in results])
    else:
        summary(results)
    say_written(*write(results, given.out))


def _text_plan(given: argparse.Namespace) -> Plan:
    from ..datasets import DATASETS
    from ..models.bundled import BUNDLED
    from ..paper.experiments.texts import TextPlan

    return TextPlan(
        datasets=_names(given.datasets) or tuple(DATASETS),
        seeds=_seeds(given),
        device=str(device_of(given)),
        quick=given.quick,
        embeddings=given.embeddings or (BUNDLED if given.quick else EMBEDDINGS),
        as_released=bool(given.as_released),
    )


def _graph_plan(given: argparse.Namespace) -> Plan:
    from ..datasets.graph_catalogue import GRAPH_DATASETS
    from ..paper.experiments.graphs import GraphPlan
    from ..tasks.graph import MASKS

    masks = _names(given.masks) or MASKS
    if unknown := [mask for mask in masks if mask not in MASKS]:
        raise Error(f"--masks {given.masks}: {', '.join(unknown)} is none of {', '.join(MASKS)}.")
    return GraphPlan(
        datasets=_names(given.datasets) or tuple(GRAPH_DATASETS),
        seeds=_seeds(given),
        device=str(device_of(given)),
        quick=given.quick,
        masks=masks,
        shape={"pre_norm": False} if given.post_norm else {},
    )


def _names(given: str | None) -> tuple[str, ...]:
    """Return names that were given with commas between, each once."""
    return tuple(dict.fromkeys(given.split(","))) if given else ()


def _seeds(given: argparse.Namespace) -> tuple[int, ...]:
    try:
        seeds = tuple(int(one) for one in given.seeds.split(","))
    except ValueError:
        raise Error(f"--seeds {given.seeds}: whole numbers with commas between, as 0,1,2.") from None
    return seeds[:1] if given.quick else seeds
