"""Does an explanation of a language model point at the known reason for an answer?

`python benchmarks/evidence --model FILE --data FOLDER --kinds known,ioi --items 20 --out results.jsonl` draws items of
each kind, keeps those that the model answers rightly by greedy decoding, explains the answer by every method, and
prints tables: the measures by kind and method. The results are written line by line, so that a run that was stopped
goes on where it was, and the same file takes further items, kinds and methods.

An item counts if the model says all tokens of its answer; explained is the logit of the first of them, or the sum of
all (`--target sum`). The kinds squad, known and ioi need their files in the folder of `--data`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # this folder is a package of that one

import conserva
from conserva._util.journal import Journal
from evidence import methods
from evidence.item import SPLITS, Source
from evidence.kinds import KINDS
from evidence.run import Amount, Run, Settings, checked
from evidence.summary import tables

BEGIN = "\n"
"""What stands before plain prompts where the tokenizer puts nothing there: the first token is an attention sink."""


def main(given: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = argparse.ArgumentParser(
        "evidence", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--model", required=True, help="a folder, a GGUF file, or a name on the hub")
    options.add_argument("--data", type=Path, default=Path(), help="the folder with the files of squad, known and ioi")
    options.add_argument("--kinds", default=",".join(KINDS), help="kinds of items, with commas between them")
    options.add_argument("--methods", default=",".join(methods.default()), help="methods, with commas between them")
    options.add_argument("--items", type=int, default=Amount.items, help="how many items of a kind must be answered")
    options.add_argument("--tries", type=int, help="after how many items of a kind to give up; default: 10 x --items")
    options.add_argument("--split", choices=SPLITS, default=SPLITS[0])
    options.add_argument("--target", choices=["first", "sum"], default="first", help="the answer's first token, or all")
    options.add_argument("--tokens", type=int, default=Amount.tokens, help="pass over items with more tokens")
    options.add_argument("--lengths", default="128,256", help="tokens of generated documents, in turn")
    options.add_argument("--ablations", type=int, default=Settings.ablations, help="of each item for LDS; 0 for none")
    options.add_argument(
        "--parts", type=int, default=Settings.parts, help="the most parts that are removed of a document"
    )
    options.add_argument("--timed", type=int, default=Amount.timed, help="of how many items of a kind to measure costs")
    options.add_argument("--by", default="depth,length,hops", help="labels of items to show top-1 by")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--device", default="cpu")
    options.add_argument("--out", type=Path, required=True, help="the file of results, to be gone on with if it exists")
    options.add_argument("--table", type=Path, help="also write the tables to this file")
    chosen = options.parse_args(given)
    if chosen.items < 1 or chosen.parts < 2 or chosen.ablations < 0:
        options.error("--items must be at least 1, --parts at least 2, and --ablations not negative")
    kinds, wanted = chosen.kinds.split(","), chosen.methods.split(",")
    task = checked(conserva.load(chosen.model), kinds, wanted).to(chosen.device)
    lengths = [int(length) for length in chosen.lengths.split(",")]
    begin = "" if adds_a_beginning(task.tokenizer) else BEGIN
    settings = Settings(chosen.target, begin, chosen.ablations, chosen.parts, chosen.seed)
    amount = Amount(chosen.items, chosen.tries or 10 * chosen.items, chosen.tokens, chosen.timed)
    about = {"model": task.name, "weights": task.fingerprint, "split": chosen.split, **asdict(settings)}
    journal = Journal(chosen.out, about, "a benchmark of evidence", "file")
    source = Source(chosen.data, task.tokenizer, chosen.seed, lengths)
    try:
        run = Run(task, settings, amount, journal)
        measured = {}
        for kind in kinds:
            measured[kind] = run.kind(kind, source, chosen.split, wanted)
            print(f"{kind}: {len(measured[kind])} items", file=sys.stderr, flush=True)
    finally:
        journal.close()
    text = tables(run.found, measured, wanted, chosen.by.split(",") if chosen.by else [], chosen.seed)
    print(text)
    if chosen.table:
        chosen.table.write_text(text, encoding="utf-8")


def adds_a_beginning(tokenizer: Any) -> bool:
    """Return whether a tokenizer puts a special token before a text."""
    return tokenizer("a")["input_ids"][0] in tokenizer.all_special_ids


if __name__ == "__main__":
    main()
