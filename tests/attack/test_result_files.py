"""Damaged result files: each is refused in one line, or it gives a result that every view can show."""

from __future__ import annotations

import io
import json
import random
import traceback
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import conserva
import made_up_audits
import made_up_bias
import made_up_evaluations
import made_up_experiments
import made_up_generations
import made_up_graphs
import made_up_images
from attacking import SEED, add_cases, hostile_text, rng_of, times
from conserva.engine.ledger import Ledger
from conserva.paper.experiments.result import GraphResult, TextResult
from conserva.paper.training.record import RESULT, read_training
from conserva.paper.views import page, results
from conserva.results.explanation import ClassScore, Explanation, Sink, Window
from conserva.views import (
    audit_terminal,
    bias_page,
    bias_summary,
    evaluation_page,
    evaluation_terminal,
    generation_terminal,
    terminal,
)
from conserva.views import trace as trace_view

CASES = 25
"""Of each kind of result."""

DRAWN = 3
"""Of so many cases one is drawn as well, if it loads: figures take long."""

PAIR = Explanation(
    features=("[CLS]", "who", "?", "[SEP]", "no", "one", "[SEP]"),
    scores=(-2.0, 0.5, 0.25, 0.0, 1.0, -0.5, 0.1),
    special=(True, False, False, True, False, False, True),
    words=(None, 0, 1, None, 0, 1, None),
    text="who? no one",
    target="entailment",
    output=0.75,
    probability=0.6,
    ledger=Ledger.of(0.75, -0.65, 1.0, 0.3),
    method="exact",
    model="tiny",
    provenance={"torch": "2.11", "seed": 0, "nested": {"list": [1, 2.5, None, True]}},
    sections=(("question", 4), ("answer", 3)),
    sink=Sink("[CLS]", -2.0, 0.45, 0),
    offsets=(None, (0, 3), (3, 4), None, (5, 7), (8, 11), None),
    unknown=(False, False, False, False, True, False, False),
    classes=(ClassScore("entailment", 0.75, 0.6), ClassScore("neutral", 0.2, None)),
    windows=(Window(0, 4, 0.5), Window(3, 7, 1.0)),
)
TRAINING = {
    "schema": "conserva/training/1",
    "dataset": "sst2",
    "seed": 0,
    "recipe": {"learning_rate": 1e-4, "epochs": 2, "batch_size": 32},
    "as_released": False,
    "count": None,
    "embeddings": "all-MiniLM-L6-v2",
    "device": "cpu",
    "embeddings_weights": "sha256:01",
    "validation_accuracy": 0.8,
    "test_accuracy": 0.81,
    "majority": 0.5,
    "texts": {"train": 100, "validation": 10, "test": 20},
    "source": {"train": "sst2 train, from a folder"},
    "epochs": [{"epoch": 1, "loss": 0.7, "validation_loss": 0.6, "validation_accuracy": 0.7}, {"epoch": 2}],
    "best_epoch": 1,
    "weights": "sha256:23",
    "trained_parameters": 1000,
    "provenance": {"torch": "2.11"},
}
GRAPH_TRAINING = {
    **{name: TRAINING[name] for name in ("schema", "dataset", "seed", "recipe", "count", "device", "majority")},
    **{name: TRAINING[name] for name in ("epochs", "weights", "trained_parameters", "provenance", "test_accuracy")},
    **{"shape": {"hidden_size": 8}, "metric": "roc_auc", "graphs": {"train": 10, "test": 5}, "best_epoch": None},
    **{"kept_epoch": 2, "last_epoch": 2, "validation_loss": None, "validation_accuracy": None, "test_loss": 0.4},
    **{"validation_roc_auc": None, "test_roc_auc": 0.75},
}

# What is done with a result that loads


def consoles() -> Iterator[Console]:
    yield Console(file=io.StringIO(), width=60, color_system=None)
    yield Console(file=io.StringIO(), width=120, force_terminal=True, color_system="truecolor")


def shown(one: Any) -> None:
    with redirect_stdout(io.StringIO()):
        one.show()


def explained(one: Any, folder: Path, draw: bool) -> None:
    shown(one)
    for console in consoles():
        terminal.show([one], console)
    assert one._repr_html_()
    one.save(folder / "one.html")
    if draw:
        one.save(folder / "one.png")
    for other in (one.merged(), one.visible(), one.without_sink()):
        assert Explanation.from_json(other.to_json()) == other


def generated(one: Any, folder: Path, draw: bool) -> None:
    shown(one)
    for console in consoles():
        generation_terminal.show_generation(one, console)
    one.save(folder / "one.html")
    assert len(one.matrix()) == len(one.steps)
    for row in range(len(one.steps)):
        assert Explanation.from_json(one.row(row).to_json()) == one.row(row)
    if one.steps:
        shown(one.span(0, -1))


def traced(one: Any, folder: Path, draw: bool) -> None:
    shown(one)
    for console in consoles():
        trace_view.show_trace(one, console)
    assert one._repr_html_()
    one.save(folder / "one.html")
    if draw:
        one.save(folder / "one.png")
    assert Explanation.from_json(one.explanation().to_json()) == one.explanation()


def evaluated(one: Any, folder: Path, draw: bool) -> None:
    shown(one)
    for console in consoles():
        evaluation_terminal.show(one, console)
    if draw:
        assert evaluation_page.page(one)


def audited(one: Any, folder: Path, draw: bool) -> None:
    shown(one)
    for console in consoles():
        audit_terminal.show(one, console, full=True)
        audit_terminal.compare([one, one], console)
    if draw:
        one.save(folder / "one.html")


def studied(one: Any, folder: Path, draw: bool) -> None:
    for console in consoles():
        bias_summary.show(one, console)
    if draw:
        assert bias_page.page(one)


def experimented(one: Any, folder: Path, draw: bool) -> None:
    for console in consoles():
        results.summary([one], console)
    assert page.page([one])
    if draw:
        results.write([one], folder / "experiment")


def trained(one: Any, folder: Path, draw: bool) -> None:
    json.dumps(one, allow_nan=False)
    names = ("weights", "recipe", "provenance", "majority", "test_accuracy", "seed", "trained_parameters")
    more = ("graphs", "shape", "kept_epoch", "last_epoch") if "graphs" in one else ("texts", "embeddings", "epochs")
    assert all(one[name] is not None for name in (*names, *more))


@dataclass(frozen=True)
class Kind:
    """A kind of result: its class, how one is made, and what is done with it."""

    kind: Any
    make: Callable[[], str]
    use: Callable[[Any, Path, bool], None]
    rounds: bool = False
    """Whether `to_json` cuts numbers."""


KINDS = {
    "text": Kind(Explanation, lambda: conserva.explain(conserva.load(), "a joy.").to_json(), explained),
    "pair": Kind(Explanation, PAIR.to_json, explained),
    "molecule": Kind(Explanation, lambda: made_up_graphs.example("bace", "exact").to_json(), explained),
    "superpixels": Kind(Explanation, lambda: made_up_graphs.example("mnist", "exact").to_json(), explained),
    "image": Kind(Explanation, lambda: made_up_images.explained().to_json(), explained),
    "generation": Kind(
        conserva.Generation,
        lambda: made_up_generations.generation(sections=(("read", 8), ("written", 7)), sink=0).to_json(),
        generated,
    ),
    "trace": Kind(conserva.Trace, lambda: conserva.trace(conserva.load(), "a joy.").to_json(), traced),
    "evaluation": Kind(
        conserva.Evaluation,
        lambda: made_up_evaluations.evaluation(("random", "gi", "a-last", "leave-one-out")).to_json(),
        evaluated,
    ),
    "audit": Kind(conserva.Audit, lambda: made_up_audits.audit(layers=1).to_json(), audited),
    "study": Kind(conserva.BiasStudy, lambda: made_up_bias.study(mentions=40).to_json(), studied),
    "text experiment": Kind(
        TextResult,
        lambda: made_up_experiments.result("sst2").to_json(),
        experimented,
        rounds=True,
    ),
    "graph experiment": Kind(
        GraphResult,
        lambda: made_up_graphs.result("mnist").to_json(),
        experimented,
        rounds=True,
    ),
    "training": Kind(None, lambda: json.dumps(TRAINING), trained),
    "training of graphs": Kind(None, lambda: json.dumps(GRAPH_TRAINING), trained),
}

# Damage

LITERALS = {
    "@1e999": "1e999",
    "@-1e999": "-1e999",
    "@nan": "NaN",
    "@inf": "Infinity",
    "@digits": "9" * 5000,
    "@deep": "[" * 200_000 + "]" * 200_000,
    "@nested": "[" * 200 + "]" * 200,
}
"""What JSON's writer does not write."""

BOUNDED = {
    "probability", "share", "effect", "p", "corrected", "predicted", "labelled", "other", "level", "accuracy",
    "correlation", "correlation_without_biases", "majority", "test_accuracy", "validation_accuracy", "test_roc_auc",
    "fractions", "others",
}  # fmt: skip
"""Numbers that have bounds."""

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2, 7, 1.5, -0.0, 5e-324, 1e-300, 1e99, -1e99, 1e308, 10**18, 10**30, 10**400, "", "x",
    "1.5", "NaN", [], {}, [1], [[]], [None], {"a": 1}, [0.5, 0.5], *LITERALS,
)  # fmt: skip


def place_in(tree: Any, rng: random.Random) -> tuple[Any, Any]:
    """Return a container and a key or index of it, by a walk that stops anywhere."""
    here: Any = tree
    while True:
        key = rng.choice(list(here) if isinstance(here, dict) else range(len(here)))
        child = here[key]
        if not isinstance(child, (dict, list)) or not child or rng.random() < 0.25:
            return here, key
        here = child


def damaged(tree: Any, rng: random.Random) -> str:
    """Change one place of a tree, and say how."""
    here, key = place_in(tree, rng)
    old = here[key]
    said = f"at {key!r}, which was {json.dumps(old)[:60]}"
    ways = ("delete", "rename", "duplicate", "value", "value", "text", "number", "list", "list", "swap", "scale")
    how = rng.choice(ways)
    if how == "delete":
        del here[key]
    elif how == "rename" and isinstance(here, dict):
        here[rng.choice([f"{key}s", key[:-1], key.upper(), hostile_text(rng), ""])] = here.pop(key)
    elif how == "duplicate" and isinstance(here, dict):
        here[f"@twice {key}"] = rng.choice(VALUES)
    elif how == "swap":
        there, other = place_in(tree, rng)
        if not isinstance(old, (dict, list)) and not isinstance(there[other], (dict, list)):
            here[key], there[other] = there[other], old
    elif how == "number" and isinstance(old, (int, float)) and not isinstance(old, bool):
        here[key] = rng.choice([-old, old + 1, old - 1, old * 10, old * 1e6, str(old), float(old), int(old), [old]])
    elif how == "scale":
        factor = rng.choice((0.0, -1.0, 1e-320, 1e-300, 1e-30, 1e30, 1e98))
        here[key] = scaled(old, factor)
        said += f", by {factor}"
    elif how == "list" and isinstance(old, list):
        here[key] = rng.choice([old[:-1], old[1:], [*old, *old[-1:]], [*old, None], [], old[::-1], old * 2, [old]])
    elif how == "text" or isinstance(old, str):
        here[key] = hostile_text(rng)
    else:
        here[key] = rng.choice(VALUES)
        return f"{how} {said}, is {here[key]!r:.60}"
    return f"{how} {said}"


def scaled(tree: Any, factor: float) -> Any:
    """Return a tree with all numbers that have no bounds multiplied."""
    if isinstance(tree, dict):
        return {key: one if key in BOUNDED else scaled(one, factor) for key, one in tree.items()}
    if isinstance(tree, list):
        return [scaled(one, factor) for one in tree]
    return tree * factor if isinstance(tree, float) else tree


def serialised(tree: Any) -> str:
    text = json.dumps(tree)
    for name, literal in LITERALS.items():
        text = text.replace(f'"{name}"', literal)
    return text.replace('"@twice ', '"')


def attacked(text: str, rng: random.Random) -> tuple[bytes, str]:
    """Return a damaged file, and what was done to it."""
    if rng.random() < 0.2:
        content = bytearray(text.encode())
        how = rng.choice(("cut", "flip", "insert", "remove", "wrap", "schema"))
        at = rng.randrange(len(content))
        if how == "cut":
            del content[at:]
        elif how == "flip":
            content[at] ^= 1 << rng.randrange(8)
        elif how == "insert":
            content[at:at] = rng.randbytes(rng.randint(1, 4))
        elif how == "remove":
            del content[at : at + rng.randint(1, 40)]
        elif how == "wrap":
            return rng.choice((b"[%s]", b'{"a":%s}', b"%s,", b"\xef\xbb\xbf%s")) % bytes(content), how
        else:
            others = ["conserva/explanation/1", "conserva/audit/1", "conserva/trace/2", hostile_text(rng), None, 1, []]
            return serialised({**json.loads(text), "schema": rng.choice([*others, *LITERALS])}).encode(), how
        return bytes(content), f"{how} at byte {at}"
    tree = json.loads(text)
    if rng.random() < 0.1:  # what adds up still does
        factor = rng.choice((0.0, 1e-320, 1e-300, 1e-30, 1e30, 1e98))
        return serialised(scaled(tree, factor)).encode(), f"everything by {factor}"
    said = [damaged(tree, rng) for _ in range(rng.choice((1, 1, 1, 1, 2, 3)))]
    return serialised(tree).encode("utf-8", "surrogatepass"), "; ".join(said)


def check_line(text: str) -> None:
    assert 0 < len(text) <= 2100
    assert not any(unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp") for one in text), repr(text)


def survives(one: Kind, content: bytes, folder: Path, draw: bool) -> bool:
    """Load a file and do with it what there is to do; return whether it loaded."""
    path = folder / (RESULT if one.kind is None else "one.json")
    path.write_bytes(content)
    try:
        found = read_training(folder) if one.kind is None else one.kind.load(path)
    except conserva.Error as error:
        check_line(str(error))
        return False
    one.use(found, folder, draw)
    if one.kind is not None:
        again = one.kind.from_json(found.to_json())
        if one.rounds:
            found, again = again, one.kind.from_json(again.to_json())
        assert again == found
    return True


@pytest.mark.filterwarnings("ignore:Glyph", "ignore:constrained_layout")
@pytest.mark.parametrize("name", KINDS)
def test_a_damaged_file_is_refused_or_shown(name: str, tmp_path: Path) -> None:
    one = KINDS[name]
    text, rng = one.make(), rng_of(f"result files {name}")
    assert survives(one, text.encode(), tmp_path, True), "the whole file is refused"
    failures = []
    for case in range(times(CASES)):
        content, said = attacked(text, rng)
        add_cases("damaged files")
        try:
            survives(one, content, tmp_path, case % DRAWN == 0)
        except Exception:
            kept = tmp_path / f"case-{case}.json"
            kept.write_bytes(content)
            told = traceback.format_exc(limit=-3)
            failures.append(f"case {case} of ATTACK_SEED={SEED}, in {kept}: {said}\n{told}")
    assert not failures, f"{len(failures)} of {times(CASES)} files of {name}:\n" + "\n".join(failures[:8])


def test_the_damage_is_damage() -> None:
    text, rng = PAIR.to_json(), rng_of("damage")
    found = [attacked(text, rng) for _ in range(300)]
    assert sum(content != text.encode() for content, _ in found) > 280
    assert len({said.split()[0] for _, said in found}) >= 12
