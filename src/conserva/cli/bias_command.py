"""`conserva bias`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from .._util.files import expanded, write_text
from ..engine.rules import DEFAULT
from ..errors import Error
from .arguments import FORMATTER, Commands, add_batch_tokens, add_data, add_model, check_data, load_task
from .input_options import lines_of
from .output import print_json, report_written
from .progress import progress

BIAS = """examples:
  conserva bias --data reviews.csv --groups names --out results/names
  conserva bias --data sst2.parquet --split test --groups cities.txt,villages.txt
  conserva bias --data sentences.txt --groups lists/ --count 2000 --json > study.json
  conserva bias --model path/to/model --data reviews.jsonl --groups names --target "good - bad" --method exact

Explains the difference of two classes' logits for every text that mentions a word of a group, and compares the
relevance of the groups' words. A .txt file has one text per line, and is read line by line. --groups is a folder of
.txt files, or files such as a.txt,b.txt, each a group with one word or phrase per line; or "names", the lists of first
names in the folder CONSERVA_DATA. Words listed with a capital letter are names: they match only capitalised words,
except in texts without capitals, where names that are ordinary words ("Will", "Grace") are left out. Words of several
groups form a separate group, "ambiguous".

With --out the study, its mentions and a report are written to that folder. An interrupted run is resumed when the same
command is given again."""


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser("bias", help="compare the relevance of groups of words", epilog=BIAS, **FORMATTER)
    add_data(parser, "a .txt, .csv, .tsv, .jsonl, .json or .parquet file, or the name of a dataset of texts", "texts")
    parser.add_argument("--groups", help="a folder, files such as a.txt,b.txt, or names (default: names)")
    parser.add_argument("--tagger", metavar="MODEL", help="a token classifier, whose tags such as PER are the groups")
    parser.add_argument("--target", help="the contrast, such as 'good - bad' (default: of two classes, second - first)")
    parser.add_argument("--method", default=DEFAULT, help="one of `conserva methods` (default: %(default)s)")
    parser.add_argument("--level", type=float, default=0.05, help="the significance level (default: %(default)s)")
    parser.add_argument("--keep-ordinary", action="store_true", help="also count names that are ordinary words")
    parser.add_argument("--skip-ambiguous", action="store_true", help="leave out words of several groups")
    parser.add_argument("--swaps", type=int, default=10, help="entities to swap as a check (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="the seed of draws and tests (default: %(default)s)")
    parser.add_argument("--no-truncate", action="store_true", help="fail on texts that exceed the maximum length")
    add_batch_tokens(parser)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write everything there, and resume from there")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_model(parser)
    parser.set_defaults(run=_bias, check=_check, out_needs=("pyarrow",))


def _check(given: argparse.Namespace) -> None:
    if given.tagger is not None and given.groups is not None:
        raise Error(f"--groups {given.groups} and --tagger {given.tagger} both define groups: give one of them.")
    has_columns = given.text_column or given.label_column or given.split
    if expanded(given.data).suffix.lower() == ".txt" and has_columns:
        raise Error(f"--data {given.data} has no columns: --text-column, --label-column and --split are for tables.")
    if not 0 < given.level < 1:
        raise Error(f"--level {given.level:g} is not a significance level: give a number between 0 and 1.")
    check_data(given.data)


def _bias(given: argparse.Namespace) -> None:
    from ..bias_study.run import bias

    groups = _groups(given)
    texts = _texts(given)
    task = load_task(given)
    with progress("reading texts") as on_progress:
        study = bias(
            task,
            texts,
            groups,
            target=given.target,
            method=given.method,
            level=given.level,
            ordinary="keep" if given.keep_ordinary else "skip",
            ambiguous="skip" if given.skip_ambiguous else "own",
            swaps=given.swaps,
            seed=given.seed,
            truncate=not given.no_truncate,
            batch_tokens=given.batch_tokens,
            out=given.out,
            progress=on_progress,
        )
    if given.json:
        print_json(study.to_dict())
    else:
        from ..views.bias_summary import show

        show(study)
    if given.out:
        from ..views.bias_page import page

        write_text(given.out / "report.html", page(study))
        report_written(*(given.out / name for name in ("bias.json", "mentions.parquet", "report.html")))


def _groups(given: argparse.Namespace) -> Any:
    """Return the groups: word lists, their files, or a tagger."""
    if given.tagger is None:
        groups = given.groups or "names"
        return groups.split(",") if "," in groups else groups
    from ..bias_study.tagger import tagger_of

    return tagger_of(given.tagger)


def _texts(given: argparse.Namespace) -> Any:
    """Return the texts: lazily from a .txt file, or all texts of a table or a dataset."""
    from ..bias_study.collect import Corpus
    from ..datasets import Labelled, read_labelled

    path, option = expanded(given.data), f"--data {given.data}"
    if path.suffix.lower() != ".txt":
        data = read_labelled(given.data, text=given.text_column, label=given.label_column, split=given.split)
        return data.take(given.count, given.seed)
    if given.count is None:
        return Corpus(
            ((line, None) for line in lines_of(path, option)),
            sum(1 for _ in lines_of(path, option)),
            str(path),
        )
    return Labelled(tuple(lines_of(path, option)), None, str(path)).take(given.count, given.seed)
