"""`conserva reproduce`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from .._util.nearest import did_you_mean
from ..datasets.catalogue import DATASETS, GRAPH_NAMES
from ..errors import Error
from ..paper.training.recipe import EMBEDDINGS
from .arguments import FORMATTER, Commands, add_device, device_of
from .output import print_json, report_written
from .progress import progress_of_parts
from .train_command import add_embeddings

if TYPE_CHECKING:
    from ..paper.experiments.plan import Plan

REPRODUCE = """examples:
  conserva reproduce text --quick --out quick
  conserva reproduce text --device cuda --jobs 8 --out results/text
  conserva reproduce text --datasets sst2,semaine --seeds 0 --out results/text
  conserva reproduce graphs --quick --out quick-graphs
  conserva reproduce graphs --device cuda --jobs 6 --out results/graphs
  conserva reproduce graphs --datasets bace --masks token,induced --post-norm --out results/post-norm

text: tables 1 and 2 of Ali et al. (2022) on seven text datasets, with attention-only classifiers.
graphs: the same tables on molecules (bace) and superpixels (mnist), with Graphormers. The paper does not say how nodes
are removed, so there are several masks. token: they are hidden from attention. induced: they are deleted from the
graph. blank: they stay without features.

Trains the missing models, evaluates every method on them, and writes tables, curves, conservation and examples to the
folder. An interrupted run is resumed from the folder. --quick runs all steps on a small part of the data, as a test;
its numbers are meaningless."""

_OPTIONS = {"text": ("as_released", "embeddings"), "graphs": ("masks", "post_norm")}
"""The options that only one of the experiments has."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("reproduce", help="the paper's experiments", epilog=REPRODUCE, **FORMATTER)
    parser.add_argument("experiment", choices=tuple(_OPTIONS), help="tables 1 and 2 on texts, or on graphs")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="the output folder")
    parser.add_argument("--datasets", help="the datasets, comma-separated (default: all of the experiment)")
    parser.add_argument("--seeds", default="0,1,2", help="the seeds of the models (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a small part of the data, one seed, minutes on a CPU")
    add_device(parser)
    parser.add_argument("--jobs", type=int, default=1, help="models to run in parallel (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    texts = parser.add_argument_group("text")
    texts.add_argument(
        "--as-released", action="store_true", default=None, help="classifiers with the quirks of the released code"
    )
    add_embeddings(parser, f"{EMBEDDINGS}; with --quick the bundled")
    graphs = parser.add_argument_group("graphs")
    graphs.add_argument("--masks", help="how to mask nodes, comma-separated (default: token,induced,blank)")
    graphs.add_argument("--post-norm", action="store_true", default=None, help="post-norm instead of pre-norm layers")
    parser.set_defaults(run=_reproduce, check=_check, out_needs=("matplotlib",))


def _check(given: argparse.Namespace) -> None:
    for experiment, options in _OPTIONS.items():
        for name in options if experiment != given.experiment else ():
            if getattr(given, name) is not None:
                raise Error(
                    f"--{name.replace('_', '-')} is an option of reproduce {experiment}, not of reproduce "
                    f"{given.experiment}: leave it out."
                )
    if given.jobs < 1:
        raise Error(f"--jobs {given.jobs} is not positive: give 1 or more.")
    known = DATASETS if given.experiment == "text" else GRAPH_NAMES
    for name in _names(given.datasets):
        if name not in known and (hint := did_you_mean(name, known)):  # others are looked up by the experiment
            raise Error(f"--datasets {given.datasets}: {name!r} is unknown.{hint} Choose from {', '.join(known)}.")
    _seeds(given)


def _reproduce(given: argparse.Namespace) -> None:
    if given.quick:
        import torch

        torch.set_num_threads(1)  # for so little data, several threads are slower
    from ..paper.experiments.run import reproduce
    from ..paper.views.results import summary, write

    plan = _text_plan(given) if given.experiment == "text" else _graph_plan(given)
    with progress_of_parts() as on_progress:
        results = reproduce(plan, given.out, jobs=given.jobs, say=on_progress)
    if given.json:
        print_json([json.loads(result.to_json()) for result in results])
    else:
        summary(results)
    report_written(*write(results, given.out))


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
        raise Error(f"--masks {given.masks}: {', '.join(unknown)} is not one of {', '.join(MASKS)}.")
    return GraphPlan(
        datasets=_names(given.datasets) or tuple(GRAPH_DATASETS),
        seeds=_seeds(given),
        device=str(device_of(given)),
        quick=given.quick,
        masks=masks,
        shape={"pre_norm": False} if given.post_norm else {},
    )


def _names(given: str | None) -> tuple[str, ...]:
    """Split a comma-separated list of names, without duplicates."""
    return tuple(dict.fromkeys(given.split(","))) if given else ()


def _seeds(given: argparse.Namespace) -> tuple[int, ...]:
    try:
        seeds = tuple(int(seed) for seed in given.seeds.split(","))
    except ValueError:
        raise Error(f"--seeds {given.seeds} is not a list of integers: give them as 0,1,2.") from None
    return seeds[:1] if given.quick else seeds
