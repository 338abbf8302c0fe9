"""Which rule set points at the words that carry the answer? Planted facts, and a causal language model that reads them.

`python benchmarks/planted.py --model FOLDER --gguf NAME` draws documents with one planted fact and a plain prompt that
asks for it, keeps those on which the model's next token is the answer's first, and explains that token by every rule
set: its logit (`answer`), and its logit less that of another answer of the same kind (`contrast`). A GGUF file needs
the packages `gguf` and `accelerate`. Results go to planted.json; planted.jsonl beside it holds what is done, so that a
run that was stopped goes on.

Each measure is taken three times. The main one is `document`: the tokens before the question, without the first. The
question repeats the subject's words and stands next to the output, so what falls there tells how near a token is, not
where the fact was read; and a model of this kind sends attention that it has no use for to the first token, the sink.
`prompt` has the question too, `whole` also the sink. `hit` says whether the highest score lies on the planted answer,
`sentence` whether it lies in the planted sentence, `largest` whether the largest score of either sign lies on the
answer; `positive` and `absolute` are the answer's share of the positive and of the absolute relevance; `rank` is that
of its best token. `random` and `a-last` are there to be compared with.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer

import conserva
import planted_facts
import timing
from conserva._util.journal import Journal
from conserva.attribution import find
from conserva.bias_study.testing import holm
from conserva.cli.progress import progress
from conserva.engine.passes import Relevance
from conserva.evaluation.statistics import Bootstrap, Table
from conserva.models.quiet import quiet_loading
from planted_facts import Document, Encoded, drawn

RULES = ("gi", "ah+ln", "attnlrp", "exact")
BESIDE = ("random", "a-last")
TARGETS = ("answer", "contrast")
SCOPES = ("document", "prompt", "whole")
MEASURES = ("hit", "sentence", "largest", "positive", "absolute", "rank")
HITS = ("hit", "sentence", "largest")
AT_ONCE = 16
TRIES_FOR_ONE = 20
LEAST_OUTPUT = 1e-6
"""In bfloat16 two logits may be equal: of their difference, which is 0, a relative gap has no meaning."""
EXAMPLE = ("The capital of France is", " Paris", " London")


def main(given: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", type=Path, required=True, help="the model's folder")
    options.add_argument("--gguf", help="the name of a GGUF file in that folder")
    options.add_argument("--count", type=int, default=100, help="how many documents the model must have answered")
    options.add_argument("--tokens", type=int, default=1000, help="the length of a document, its question included")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float64"])
    options.add_argument("--device", default="auto", help="auto, cpu, cuda, ...")
    options.add_argument("--rules", default=",".join(RULES), help="rule sets, with commas between them")
    options.add_argument("--examples", action="store_true", help="also explain one short sentence, token by token")
    options.add_argument("--out", type=Path, default=timing.RESULTS, help="the folder of the results")
    chosen = options.parse_args(given)
    rules = chosen.rules.split(",")
    for name in rules:
        conserva.rules(name)  # a name that is none is refused here, before anything runs
    device = timing.default_device() if chosen.device == "auto" else torch.device(chosen.device)
    if chosen.count < 1:
        options.error(f"--count {chosen.count} leaves nothing to measure: choose at least 1")
    tokenizer, model = load(chosen.model, chosen.gguf, getattr(torch, chosen.dtype), device)
    settings = {
        "machine": timing.machine(device),
        "model": chosen.gguf or chosen.model.name,
        "sha256": digest(weight_files(chosen.model, chosen.gguf)),
        "documents sha256": digest([Path(planted_facts.__file__)]),
        "dtype": chosen.dtype,
        "tokens": chosen.tokens,
        "seed": chosen.seed,
        "rules": rules,
    }
    tried, rows = study(model, tokenizer, settings, chosen.count, chosen.out / "planted.jsonl")
    summary = summarise(rows, rules, chosen.seed)
    record = {**settings, "conserva": conserva.__version__, "tried": tried, "count": len(rows), **summary}
    show(record)
    if chosen.examples:
        record["examples"] = examples(model, tokenizer, rules)
        show_examples(record["examples"])
    write(chosen.out / "planted.json", record, rows)


def load(folder: Path, gguf: str | None, dtype: torch.dtype, device: torch.device) -> tuple[Any, nn.Module]:
    extra = {"gguf_file": gguf} if gguf else {}
    with quiet_loading():
        tokenizer = AutoTokenizer.from_pretrained(folder, **extra)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, **extra)
    return tokenizer, model.to(device).eval()


def weight_files(folder: Path, gguf: str | None) -> list[Path]:
    found = [folder / gguf] if gguf else sorted(folder.glob("*.safetensors"))
    if not found:
        raise conserva.Error(f"--model {folder} has no safetensors file: name its weights with --gguf.")
    return found


def digest(paths: Sequence[Path]) -> str:
    found = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while part := file.read(2**20):
                found.update(part)
    return found.hexdigest()


def study(
    model: nn.Module, tokenizer: Any, settings: Mapping[str, Any], wanted: int, journal: Path
) -> tuple[int, list[dict[str, Any]]]:
    """Return how many documents were tried until so many were answered, and what was measured on those.

    What an earlier run with the same settings has tried and measured is taken from its journal, in the same order.
    """
    said: dict[int, int] = {}
    done: dict[int, dict[str, Any]] = {}

    def take(line: dict[str, Any]) -> None:
        if "row" in line:
            done[line["row"]["number"]] = line["row"]
        else:
            said.update({int(number): token for number, token in line["said"].items()})

    lines = Journal(journal, settings, "a study of planted facts")
    for _, found in lines.records:
        take(found)
    answered: list[tuple[Document, Encoded]] = []
    rows = []
    try:
        with progress("answered documents") as say:
            for number, (planted, encoded) in enumerate(drawn(tokenizer, settings["tokens"], settings["seed"])):
                if number not in said:
                    said.update(new := predictions(model, tokenizer, settings, number))
                    lines.append({"said": new})
                if said[number] == encoded.target:
                    answered.append((planted, encoded))
                    say(len(answered), wanted)
                if len(answered) == wanted:
                    break
                if number + 1 >= TRIES_FOR_ONE * wanted:
                    raise conserva.Error(
                        f"The model answered {len(answered)} of {number + 1} documents of {settings['tokens']} tokens, "
                        f"too few to find {wanted}: choose shorter documents or another model."
                    )
        with progress("explained documents") as say:
            for planted, encoded in answered:
                if planted.number not in done:
                    done[planted.number] = explained(model, planted, encoded, settings["rules"])
                    lines.append({"row": done[planted.number]})
                rows.append(done[planted.number])
                say(len(rows), wanted)
    finally:
        lines.close()
    return answered[-1][0].number + 1, rows


def predictions(model: nn.Module, tokenizer: Any, settings: Mapping[str, Any], first: int) -> dict[int, int]:
    """Return the model's next token for a batch of documents, by their number."""
    documents = drawn(tokenizer, settings["tokens"], settings["seed"], first)
    batch = [next(documents)[1].ids for _ in range(AT_ONCE)]
    longest, ends = max(map(len, batch)), [len(ids) - 1 for ids in batch]
    kept = sorted(set(ends))
    # Pads behind a prompt change nothing before them: in a causal model no token sees a later one.
    padded = torch.tensor([ids + [0] * (longest - len(ids)) for ids in batch])
    device = next(model.parameters()).device
    with torch.inference_mode():
        logits = model(input_ids=padded.to(device), logits_to_keep=torch.tensor(kept, device=device)).logits
    tokens = logits.argmax(-1).tolist()
    return {first + i: tokens[i][kept.index(end)] for i, end in enumerate(ends)}


def explained(model: nn.Module, planted: Document, encoded: Encoded, rules: Sequence[str]) -> dict[str, Any]:
    """Return the measures of one document: for each target and contender, and for each scope."""
    inputs = inputs_of(encoded.ids, model)
    found: dict[str, dict[str, Any]] = {target: {} for target in TARGETS}
    for name in rules:
        for target, result in zip(TARGETS, split(model, inputs, encoded.target, encoded.other, name), strict=True):
            measures = measured(result.scores()[0].double().cpu().numpy(), encoded)
            gap, output = abs(float(result.ledger.gap[0])), abs(float(result.ledger.output[0]))
            found[target][name] = {**measures, "gap": _short(gap / max(output, LEAST_OUTPUT))}
    for name in BESIDE:  # these know nothing of targets
        scores = find(name).apply(model, inputs, [(-1, encoded.target)]).scores["input_ids"]
        found["answer"][name] = measured(scores[0].double().cpu().numpy(), encoded)
    return {
        "number": planted.number,
        "kind": planted.kind,
        "planted": planted.answer,
        "depth": _short(planted.depth),
        "tokens": len(encoded.ids),
        **found,
    }


def inputs_of(ids: Sequence[int], model: nn.Module) -> dict[str, Tensor]:
    given = torch.tensor([list(ids)], device=next(model.parameters()).device)
    return {"input_ids": given, "attention_mask": torch.ones_like(given)}


def split(model: nn.Module, inputs: Mapping[str, Tensor], token: int, other: int, name: str) -> list[Relevance]:
    """Return the split of the next token's logit, and that of its logit less another's, from one forward pass."""

    def contrast(output: Any) -> Tensor:
        return output.logits[:, -1, token] - output.logits[:, -1, other]  # type: ignore[no-any-return]

    last = {**inputs, "logits_to_keep": 1}
    return conserva.relevance(model, last, targets=[(-1, token), contrast], rules=name, ledger=True)


def measured(scores: np.ndarray, encoded: Encoded) -> dict[str, Any]:
    """Return the measures of one document's scores in every scope, in the order of `MEASURES`, and the sink's share."""
    places = {"document": range(1, encoded.question), "prompt": range(1, len(scores)), "whole": range(len(scores))}
    found: dict[str, Any] = {
        name: [_short(one) for one in _within(scores, encoded, np.array(places[name]))] for name in SCOPES
    }
    return {**found, "sink": _short(_share(np.abs(scores), np.array([0]), np.arange(len(scores))))}


def _within(scores: np.ndarray, encoded: Encoded, places: np.ndarray) -> tuple[float, ...]:
    answer = np.intersect1d(encoded.answer, places)
    highest, largest = places[scores[places].argmax()], places[np.abs(scores[places]).argmax()]
    return (
        float(highest in encoded.answer),
        float(highest in encoded.sentence),
        float(largest in encoded.answer),
        _share(np.maximum(scores, 0), answer, places),
        _share(np.abs(scores), answer, places),
        float(1 + (scores[places] > scores[answer].max(initial=-np.inf)).sum()),
    )


def _share(amounts: np.ndarray, part: np.ndarray, places: np.ndarray) -> float:
    total = float(amounts[places].sum())
    return float(amounts[part].sum()) / total if total else 0.0


def _short(number: float) -> float:
    return float(f"{number:.5g}")


def wilson(hits: int, trials: int) -> list[float]:
    """Return a share with its 95 % Wilson interval."""
    z = statistics.NormalDist().inv_cdf(0.975)
    share, wide = hits / trials, z * z / trials
    middle = (share + wide / 2) / (1 + wide)
    reach = z * math.sqrt(share * (1 - share) / trials + wide / (4 * trials)) / (1 + wide)
    return [share, max(0.0, middle - reach), min(1.0, middle + reach)]


def mcnemar(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the exact p value of McNemar's test: is one of two the more often right where they differ?"""
    only_a = sum(x > y for x, y in zip(a, b, strict=True))
    only_b = sum(x < y for x, y in zip(a, b, strict=True))
    apart, fewer = only_a + only_b, min(only_a, only_b)
    return min(1.0, 2 * sum(math.comb(apart, k) for k in range(fewer + 1)) / 2**apart)


def summarise(rows: Sequence[Mapping[str, Any]], rules: Sequence[str], seed: int) -> dict[str, Any]:
    """Return each contender's measures with 95 % intervals, and the rule sets' differences in pairs."""
    means: dict[str, Any] = {}
    pairs: dict[str, Any] = {}
    for target in TARGETS:
        names = list(rows[0][target])
        means[target] = {name: _means([row[target][name] for row in rows], seed) for name in names}
        pairs[target] = [
            {"scope": scope, "measure": measure, **pair}
            for scope in SCOPES
            for measure in ("hit", "largest", "positive", "absolute")
            for pair in _pairs({name: _column(rows, target, name, scope, measure) for name in rules}, measure, seed)
        ]
    return {"means": means, "pairs": pairs}


def _means(found: Sequence[Mapping[str, Any]], seed: int) -> dict[str, Any]:
    one: dict[str, Any] = {}
    for scope in SCOPES:
        columns = dict(zip(MEASURES, zip(*(each[scope] for each in found), strict=True), strict=True))
        one[scope] = {
            measure: wilson(round(sum(values)), len(values)) if measure in HITS else interval(values, seed)
            for measure, values in columns.items()
        }
        one[scope]["median rank"] = statistics.median(columns["rank"])
    one["sink"] = interval([each["sink"] for each in found], seed)
    if "gap" in found[0]:
        gaps = [each["gap"] for each in found]
        one |= {"gap": interval(gaps, seed), "median gap": statistics.median(gaps)}
    return one


def _pairs(columns: Mapping[str, Sequence[float]], measure: str, seed: int) -> list[dict[str, Any]]:
    """Return the paired difference of every two rule sets; p values of hits are Holm's, over these pairs."""
    found: list[dict[str, Any]] = [
        {"a": a, "b": b, "difference": interval(np.subtract(columns[a], columns[b]), seed)}
        for a, b in combinations(columns, 2)
    ]
    if measure not in HITS:
        return found
    corrected = holm([mcnemar(columns[one["a"]], columns[one["b"]]) for one in found])
    return [{**one, "p": p} for one, p in zip(found, corrected, strict=True)]


def _column(rows: Sequence[Mapping[str, Any]], target: str, name: str, scope: str, measure: str) -> list[float]:
    return [row[target][name][scope][MEASURES.index(measure)] for row in rows]


def interval(values: Sequence[float] | np.ndarray, seed: int) -> list[float]:
    """Return a mean with its 95 % bootstrap interval."""
    (found,) = Bootstrap(Table.of(np.array(values, dtype=float)[:, None]), seed).intervals(slice(1))
    return [found.mean, found.low, found.high]


def show(record: Mapping[str, Any]) -> None:
    print(f"{record['count']} answered documents of {record['tokens']} tokens, of {record['tried']} tried")
    for target, contenders in record["means"].items():
        for scope in SCOPES:
            print(f"\n{target}, {scope}: 95 % intervals; rank and gap are medians")
            heads = "".join(f"{measure:^18}" for measure in MEASURES[:-1])
            print(f"{'':<9}{heads}{'rank':>7}{'sink':>7}{'gap':>9}")
            for name, one in contenders.items():
                cells = "".join(f"{_cell(one[scope][measure]):^18}" for measure in MEASURES[:-1])
                gap = f"{one['median gap']:9.2g}" if "median gap" in one else f"{'-':>9}"
                print(f"{name:<9}{cells}{one[scope]['median rank']:7.0f}{one['sink'][0]:7.2f}{gap}")
    for target, pairs in record["pairs"].items():
        print(f"\n{target}, document: differences in pairs")
        for pair in (one for one in pairs if one["scope"] == SCOPES[0]):
            p = f"  p = {pair['p']:.2g}" if "p" in pair else ""
            print(f"{pair['measure']:<10}{pair['a']:>8} - {pair['b']:<8}{_cell(pair['difference'])}{p}")


def _cell(found: Sequence[float]) -> str:
    return f"{found[0]:.2f} [{found[1]:.2f}, {found[2]:.2f}]"


def examples(model: nn.Module, tokenizer: Any, rules: Sequence[str]) -> list[dict[str, Any]]:
    """Explain what follows a short sentence: the predicted token, and one token rather than another."""
    text, one, other = EXAMPLE
    inputs = inputs_of(tokenizer(text)["input_ids"], model)
    with torch.inference_mode():
        predicted = int(model(**inputs).logits[0, -1].argmax())
    first, second = (tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in (one, other))
    tokens = [tokenizer.decode([i]) for i in inputs["input_ids"][0].tolist()]
    found = []
    for name in rules:
        alone, _ = split(model, inputs, predicted, second, name)
        _, contrast = split(model, inputs, first, second, name)
        for target, result in ((tokenizer.decode([predicted]), alone), (f"{one} - {other}", contrast)):
            scores = [_short(score) for score in result.scores()[0].tolist()]
            books = {key: _short(float(getattr(result.ledger, key)[0])) for key in ("output", "biases", "gap")}
            found.append({"rules": name, "target": target, "scores": list(zip(tokens, scores, strict=True)), **books})
    return found


def show_examples(found: Sequence[Mapping[str, Any]]) -> None:
    print(f"\n{EXAMPLE[0]!r}")
    for one in found:
        scores = "  ".join(f"{token!r} {score:.2f}" for token, score in one["scores"])
        print(f"{one['rules']:<9}{one['target']!r:<22}{one['output']:.2f} = {scores}  gap {one['gap']:.2g}")


def write(path: Path, record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the result with a line for each contender, pair and document, so that it can be read and compared."""
    parts = {key: _laid_out(value, 2) for key, value in {**record, "measures": list(MEASURES)}.items()}
    parts["rows"] = _laid_out(list(rows), 1)
    lines = ",\n".join(f"{json.dumps(key)}: {text}" for key, text in parts.items())
    path.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
    print(f"written: {path}", file=sys.stderr)


def _laid_out(value: Any, levels: int) -> str:
    if isinstance(value, dict) and levels:
        lines = ",\n".join(f"{json.dumps(key)}: {_laid_out(one, levels - 1)}" for key, one in value.items())
        return f"{{\n{lines}\n}}"
    if isinstance(value, list) and levels and value and isinstance(value[0], dict):
        lines = ",\n".join(map(json.dumps, value))
        return f"[\n{lines}\n]"
    return json.dumps(value)


if __name__ == "__main__":
    main()
