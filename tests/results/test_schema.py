"""The reader of result files: types from hints, paths in errors, and what types cannot say."""

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import conserva
import made_up_audits
import made_up_bias
import made_up_evaluations
import made_up_experiments
import made_up_graphs
import made_up_images
from conserva import Audit, BiasStudy, Evaluation, Explanation, Generation, Trace
from conserva.engine.ledger import Ledger
from conserva.paper.experiments.result import GraphResult, TextResult
from conserva.paper.training.record import RESULT, read_training, write_training
from conserva.results.explanation import Sink
from conserva.results.schema import DEEPEST, Count, Share, read, written
from made_up_generations import generation

SCHEMA = "conserva/test/1"
RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


@dataclass(frozen=True)
class Part:
    name: str
    scores: tuple[float | None, ...] = ()

    def _flaws(self) -> Iterator[str]:
        if len(self.scores) == 3:
            yield "scores has 3 entries, which is a flaw"


@dataclass(frozen=True)
class Whole:
    text: str
    number: float
    count: Count
    share: Share | None
    flag: bool
    parts: tuple[Part, ...]
    pairs: tuple[tuple[str, int], ...]
    named: Mapping[str, Part]
    numbered: Mapping[int, str]
    anything: Any
    rest: Mapping[str, Any] = field(default_factory=dict)


ONE = Whole(
    "a\ud800\x1b", 1.5, 3, None, True, (Part("x", (1.0, None)), Part("y")), (("a", 1), ("b", -2)), {"k": Part("z")},
    {0: "zero", -12: "minus"}, [1, {"deep": [None, True, "x"]}], {"free": 1},
)  # fmt: skip


def read_one(text: str) -> Whole:
    return read(Whole, text, SCHEMA, "test")


def changed(**changes: Any) -> str:
    return json.dumps({**json.loads(written(ONE, SCHEMA)), **changes})


def refusal(text: str) -> str:
    """Return what is wrong with a text, as the error says it."""
    with pytest.raises(conserva.Error) as error:
        read_one(text)
    said = str(error.value)
    start, end = "text is not a valid test: ", ". Save it again."
    assert said.startswith(start)
    assert said.endswith(end)
    assert "\n" not in said
    return said.removeprefix(start).removesuffix(end)


def test_what_is_written_is_read() -> None:
    assert read_one(written(ONE, SCHEMA)) == ONE
    assert read_one(written(ONE, SCHEMA, indent=None)) == ONE
    assert "\x1b" not in written(ONE, SCHEMA)


def test_what_has_a_default_may_be_missing_and_a_whole_number_is_a_number() -> None:
    found = json.loads(written(ONE, SCHEMA))
    del found["rest"], found["parts"][1]["scores"]
    found["number"] = 2
    one = read_one(json.dumps(found))
    assert one == replace(ONE, number=2.0, rest={})
    assert type(one.number) is float


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a string": ({"text": 1}, "text is 1, not a string"),
    "a string, not null": ({"text": None}, "text is null, not a string"),
    "a number": ({"number": "1.5"}, 'number is "1.5", not a number'),
    "no truth": ({"number": True}, "number is true, not a number"),
    "nan": ({"number": float("nan")}, "number is nan, not a number that is finite"),
    "inf": ({"number": float("-inf")}, "number is -inf, not a number that is finite"),
    "too large": ({"number": 1e200}, "number is 1e+200, not a number of at most 1e+100 in absolute value"),
    "too many digits": (
        {"count": 10**200},
        f"count is 1{'0' * 59}…, not a whole number of at most 1e+100 in absolute value",
    ),
    "a part of one": ({"count": 1.0}, "count is 1.0, not a whole number"),
    "below nothing": ({"count": -1}, "count is -1, not at least 0"),
    "a share": ({"share": 1.5}, "share is 1.5, not between 0 and 1"),
    "a truth": ({"flag": 0}, "flag is 0, not true or false"),
    "a list": ({"parts": {}}, "parts is an object, not a list"),
    "an object": ({"parts": [{"name": "x"}, []]}, "parts[1] is a list, not an object"),
    "within": ({"parts": [{"name": "x", "scores": [1, 2, "3"]}]}, 'parts[0].scores[2] is "3", not a number'),
    "missing": ({"parts": [{"scores": []}]}, "parts[0].name is missing"),
    "unknown": ({"parts": [{"name": "x", "shame": 1}]}, "parts[0].shame is not a known field"),
    "unknown above": ({"\x1b[31m": 1}, '["\\u001b[31m"] is not a known field'),
    "so many": ({"pairs": [["a", 1, 2]]}, "pairs[0] has 3 entries, not 2"),
    "each its own": ({"pairs": [["a", 1], [1, "a"]]}, "pairs[1][0] is 1, not a string"),
    "named": ({"named": {"k": {"name": "z"}, "a b": {"name": 0}}}, 'named["a b"].name is 0, not a string'),
    "numbered": ({"numbered": {"01": "x"}}, 'numbered has the key "01", not a whole number'),
    "numbered alike": ({"numbered": {"-0": "x"}}, 'numbered has the key "-0", not a whole number'),
    "numbered far": ({"numbered": {"1" * 30: "x"}}, f'numbered has the key "{"1" * 30}", not a whole number'),
    "anything but nan": ({"anything": {"a": [1, float("nan")]}}, "anything.a[1] is nan, not a number that is finite"),
    "a flaw": ({"parts": [{"name": "x", "scores": [1, 2, 3]}]}, "parts[0].scores has 3 entries, which is a flaw"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_with_its_place(case: str) -> None:
    changes, says = WRONG[case]
    assert refusal(changed(**changes)) == says


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is not JSON, or truncated"),
        ('{"schema": ', "it is not JSON, or truncated"),
        ("[]", "it is a list, not an object"),
        ("null", "it is null, not an object"),
        ("{}", f"it has no schema, which must be '{SCHEMA}'"),
        ('{"schema": "conserva/audit/1"}', f"its schema is \"conserva/audit/1\", not '{SCHEMA}'"),
        ('{"schema": ["conserva/test/1"]}', f"its schema is a list, not '{SCHEMA}'"),
        ('{"schema": "conserva/test/2"}', "it was written by another version of conserva"),
        (f'{{"schema": "{SCHEMA}"}}', "text is missing"),
        (f'{{"schema": "{SCHEMA}", "count": {"9" * 5000}}}', "it has a number with thousands of digits"),
        (f'{{"a": {"[" * 100_000}{"]" * 100_000}}}', "its lists and objects are nested too deep"),
        (changed(number="@").replace('"@"', "1e999"), "number is inf, not a number that is finite"),
    ],
)
def test_what_is_no_result(text: str, says: str) -> None:
    assert says in refusal(text)


def test_anything_is_not_nested_without_end() -> None:
    def nested(deep: int) -> str:
        return changed(anything="@").replace('"@"', "[" * deep + "]" * deep)

    assert read_one(nested(DEEPEST))
    assert refusal(nested(DEEPEST + 2)).endswith(f" is nested more than {DEEPEST} deep")
    assert len(refusal(nested(sys.getrecursionlimit() // 3))) < 300


def test_a_number_that_json_does_not_have_is_named() -> None:
    for number in (float("nan"), float("inf")):
        one = replace(ONE, parts=(Part("x", (0.0, number)),))
        with pytest.raises(conserva.Error, match=r"^parts\[0\]\.scores\[1\] is (nan|inf), not a number that is finite"):
            written(one, SCHEMA)


def test_a_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    path.write_text(made_up_experiments.sentence("gi", "x").to_json().replace("-0.5", '"x"'), encoding="utf-8")
    with pytest.raises(conserva.Error) as error:
        Explanation.load(path)
    said = f'path={str(path)!r} is not a valid explanation: scores[1] is "x", not a number. Save it again.'
    assert str(error.value) == said


# What types cannot say

TEXT = replace(made_up_experiments.sentence("gi", "x"), sections=(("a", 2), ("b", 3)), sink=Sink("[CLS]", 0.1, 0.05, 0))
MOLECULE, SUPERPIXELS = (made_up_graphs.example(name, "gi") for name in ("bace", "mnist"))
IMAGE = made_up_images.explained()
WRITTEN = generation(sections=(("read", 8), ("written", 7)), sink=0)
STUDY = made_up_bias.study(mentions=40)
AUDIT = made_up_audits.audit(layers=1)
EVALUATION = made_up_evaluations.evaluation(("random", "gi", "exact"))
MEASURED = made_up_evaluations.with_additional(("random", "gi", "exact"))
EXPERIMENT = made_up_experiments.result("sst2")
GRAPHS = made_up_graphs.result("bace")
TRACED = Trace(
    features=("a", "b"), special=(False, False), words=(0, 1), layers=("inputs", "layer 0"),
    scores=((0.25, 0.5), (1.0, None)), sums=(0.75, 1.0), text="a b", target="yes", output=1.25, probability=0.5,
    ledger=Ledger.of(1.25, 0.75, 0.25, 0.25), method="exact", model="tiny", sections=(("a", 1), ("b", 1)),
)  # fmt: skip

INCONSISTENT: dict[str, tuple[Any, str, Any, str]] = {
    "scores": (TEXT, "scores", (1.0,), "scores has 1 entries, and features has 5"),
    "words": (TEXT, "words", (), "words has 0 entries, and features has 5"),
    "sections": (TEXT, "sections", [["a", 2]], "sections hold 2 features, and there are 5"),
    "sink": (TEXT, "sink.place", 5, "sink.place is 5, and there are 5 features"),
    "ledger": (TEXT, "ledger.gap", 9.0, "ledger does not add up: its entries sum to 10.25, and output is 1.5"),
    "output": (TEXT, "output", 1.502, "ledger does not add up: its entries sum to 1.5, and output is 1.502"),
    "probability": (TEXT, "probability", 1.01, "probability is 1.01, not between"),
    "kind": (MOLECULE, "picture.kind", "map", 'picture.kind is "map", not one of'),
    "no kind": (MOLECULE, "picture", {}, "picture.kind is null, not one of"),
    "smiles": (MOLECULE, "picture.smiles", "C((", "picture.smiles cannot be read: 'C((' is not a valid SMILES"),
    "letters": (MOLECULE, "picture.smiles", "CÇO", "picture.smiles is not ASCII"),
    "atoms": (MOLECULE, "picture.smiles", "CCOC", "picture.smiles has 4 atoms, which do not match the 3"),
    "twice": (MOLECULE, "words", (None, 0, 1, 1), "words has 1 twice"),
    "no regions": (SUPERPIXELS, "picture", {"kind": "superpixels", "image": [[1]]}, "picture.regions is missing"),
    "pixels": (SUPERPIXELS, "picture.image", [[0, 0, 90, 300]] * 4, "picture.image[0][3] is 300, not between 0 and"),
    "rows": (SUPERPIXELS, "picture.image", [[0, 0, 90, 90]] * 3, "differ in shape"),
    "columns": (SUPERPIXELS, "picture.image", [[0, 0, 90]] * 4, "or have rows of different length"),
    "regions": (
        SUPERPIXELS,
        "picture.regions",
        [[0, 0, 1, 3]] * 4,
        "picture.regions has 3 regions, which do not match the 3",
    ),
    "grid": (IMAGE, "picture.grid", [3, 3], "picture.grid has 3 x 3 patches, which do not match the 6"),
    "huge grid": (IMAGE, "picture.grid", [10**9, 10**9], "picture.grid has 1000000000 x 1000000000 patches"),
    "png": (
        IMAGE,
        "picture.image",
        "iVBORw0KGgo=",
        "picture.image cannot be read: The picture of 'cat.png' is not an image",
    ),
    "special of tokens": (WRITTEN, "special", [], "special has 0 entries, and features has 15"),
    "inputs": (WRITTEN, "sections", [["read", 8]], "sections hold 8 features, and there are 15"),
    "no sink": (WRITTEN, "sink", -1, "sink is -1, and there are 15 features"),
    "start": (WRITTEN, "start", 7, "start is 7, there are 7 steps, and together that is not 15 features"),
    "score": (WRITTEN, "score", "first token", 'score is "first token", not one of "logit"'),
    "sink of steps": (WRITTEN, "sink", 8, "steps[0].scores has 8 entries, and 8 features come before it"),
    "none": (WRITTEN, "steps.1.scores", [], "steps[1].scores has 0 entries, and 9 features come before it"),
    "more": (WRITTEN, "steps.0.scores", [0.0] * 9, "steps[0].scores has 9 entries, and 8 features come before it"),
    "books": (WRITTEN, "steps.0.output", 0.0, "steps[0].ledger does not add up"),
    "others": (WRITTEN, "steps.0.others", [["x", -0.5]], "steps[0].others[0][1] is -0.5, not between"),
    "special of columns": (TRACED, "special", [], "special has 0 entries, and features has 2"),
    "sections of columns": (TRACED, "sections", [["a", 1]], "sections hold 1 features, and there are 2"),
    "rows of layers": (TRACED, "scores.1", [1.0], "scores[1] has 1 entries, and there are 2 features"),
    "layers": (TRACED, "layers", ["inputs"], "scores has 2 entries, and layers has 1"),
    "sums": (TRACED, "sums.1", 2.0, "scores[1] does not add up: its entries sum to 1, and sums[1] is 2"),
    "books of a trace": (TRACED, "output", 2.0, "ledger does not add up: its entries sum to 1.25, and output is 2"),
    "curve": (EVALUATION, "methods.1.curves.pruning.low", [0.0], "methods[1].curves.pruning.low has 1 entries, and fr"),
    "interval": (EVALUATION, "methods.0.auac.low", 0.9, "methods[0].auac.low is 0.9, which is more than high"),
    "points": (EVALUATION, "methods.0.conservation.sums", [], "conservation.sums has 0 entries, and outputs has 30"),
    "metric": (EVALUATION, "pairs.0.metric", "auc", 'pairs[0].metric is "auc", not one of "auac"'),
    "metric not measured": (EVALUATION, "pairs.0.metric", "srg", 'pairs[0].metric is "srg", not one of "auac"'),
    "metric of some": (MEASURED, "methods.1.lds", None, "methods[1].lds is null, but other methods have it"),
    "value of no metric": (MEASURED, "without_value", {"auac": 2}, 'without_value is "auac", not one of "srg"'),
    "method": (EVALUATION, "pairs.2.b", "gi:x", 'pairs[2].b is "gi:x", not one of "random", "gi"'),
    "same method": (EVALUATION, "methods.1.method", "random", 'methods has "random" twice'),
    "audit": (AUDIT, "ledger.gap", 0.0, "ledger does not add up"),
    "component": (AUDIT, "components.0.leak", 9.0, "components[0].leak does not add up: its entries sum to"),
    "samples": (AUDIT, "ledgers", [], "ledgers has 0 entries, and outputs has 24"),
    "norm": (AUDIT, "norms.0.after", [1.0], "norms[0].after has 1 entries, and before has 14"),
    "components": (AUDIT, "components", [], "components has no entry"),
    "sentence": (STUDY, "mentions.3.text", 7, "mentions[3].text is 7, and sentences has no text of that number"),
    "part": (STUDY, "mentions.3.end", 10**6, "mentions[3] is from 47 to 1000000, where its sentence has no such part"),
    "group": (STUDY, "mentions.0.group", "x", 'mentions[0].group is "x", not one of "female", "male"'),
    "groups": (STUDY, "differences.0.a", "x", 'differences[0].a is "x", not one of'),
    "p": (STUDY, "differences.0.p", 2, "differences[0].p is 2.0, not between"),
    "path": (EXPERIMENT, "dataset", "../x", 'dataset is "../x", not a name of letters, digits'),
    "path of graphs": (GRAPHS, "dataset", "a\0b", 'dataset is "a\\u0000b", not a name of letters, digits'),
    "no classifier": (EXPERIMENT, "trained", [], "trained has no entry"),
    "no pair": (EXPERIMENT, "evaluation.pairs", [], "evaluation.pairs lacks the difference of 'random' and 'a-last'"),
    "sentences": (EXPERIMENT, "sentences.0.ledger.gap", 9.0, "sentences[0].ledger does not add up"),
    "masking": (GRAPHS, "trained.1.auac", {}, "trained[1].auac has other maskings than evaluations"),
    "measure": (GRAPHS, "metric", "x", 'metric is "x", not one of "accuracy", "roc_auc"'),
    "rules": (GRAPHS, "books.0.rules", "x", 'books[0].rules is "x", not one of "gi"'),
}


@pytest.mark.parametrize("case", INCONSISTENT)
def test_what_does_not_fit_together_is_refused(case: str) -> None:
    one, path, value, says = INCONSISTENT[case]
    kind, found = type(one), json.loads(one.to_json())
    assert kind.from_json(json.dumps(found)) == one or kind in (TextResult, GraphResult)
    here = found
    *above, last = [int(name) if name.isdecimal() else name for name in path.split(".")]
    for name in above:
        here = here[name]
    here[last] = value
    with pytest.raises(conserva.Error) as error:
        kind.from_json(json.dumps(found))
    assert says in str(error.value)


def test_a_trace_has_rows_and_columns() -> None:
    none = replace(
        TRACED, features=(), special=(), words=(), scores=((), ()), sums=(0.0, 0.0), sections=(), offsets=(), unknown=()
    )
    for one in (none, replace(TRACED, layers=(), scores=(), sums=(), sections=())):
        with pytest.raises(conserva.Error, match="features or layers is empty"):
            Trace.from_json(one.to_json())


@pytest.mark.parametrize("one", [TEXT, MOLECULE, IMAGE, WRITTEN.row(3), TRACED.explanation()])
def test_parts_of_a_result_are_whole_results(one: Explanation) -> None:
    for part in (one, one.visible(), one.merged(), one.without_sink(), one.visible().visible()):
        assert Explanation.from_json(part.to_json()) == part


def test_who_cannot_draw_can_still_read(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("rdkit", "PIL"):
        monkeypatch.setattr(
            "conserva.results.picture.find_spec", lambda asked, name=name: None if asked == name else object()
        )
        for one in (MOLECULE, IMAGE):
            assert Explanation.from_json(one.to_json()) == one


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(RESULTS.rglob("*.json")) if '"schema"' in path.read_text(encoding="utf-8")[:40]],
    ids=lambda path: f"{path.parent.name}/{path.name}",
)
def test_results_of_earlier_runs_load(path: Path) -> None:
    kinds = {"text-experiment": TextResult, "graph-experiment": GraphResult, "evaluation": Evaluation}
    schema = json.loads(path.read_text(encoding="utf-8"))["schema"]
    kind: Any = kinds[schema.split("/")[1]]
    one = kind.load(path)
    assert kind.from_json(one.to_json()) == one


# Trainings

TRAINING: dict[str, Any] = {
    "schema": "conserva/training/1", "dataset": "sst2", "seed": 0, "recipe": {}, "as_released": False, "count": None,
    "embeddings": "x", "device": "cpu", "embeddings_weights": "x", "validation_accuracy": 0.8, "test_accuracy": 0.8,
    "majority": 0.5, "texts": {"test": 2}, "source": {"test": "x"}, "epochs": [{"epoch": 1}], "best_epoch": 1,
    "weights": "x", "trained_parameters": 7, "provenance": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"texts": None}, "texts is missing"),
        ({"best_epoch": None}, "best_epoch is missing"),
        ({"graphs": {"test": 1}}, "metric is missing"),
        ({"test_accuracy": "0.8"}, 'test_accuracy is "0.8", not a number'),
        ({"seed": 1.5}, "seed is 1.5, not a whole number"),
        ({"epochs": 7}, "epochs is 7, not a list"),
        ({"model": 7}, "model is not a known field"),
    ],
)
def test_a_training_that_is_damaged(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    write_training(tmp_path, TRAINING)
    assert read_training(tmp_path) == TRAINING
    (tmp_path / RESULT).write_text(json.dumps({**TRAINING, **changes}), encoding="utf-8")
    with pytest.raises(conserva.Error) as error:
        read_training(tmp_path)
    said = f"{tmp_path / RESULT} is not a valid result of a training: {says}. Delete it and start anew."
    assert str(error.value) == said


def test_results_of_every_kind_have_a_case() -> None:
    kinds = {type(one) for one, *_ in INCONSISTENT.values()}
    assert kinds == {Audit, BiasStudy, Evaluation, Explanation, Generation, GraphResult, TextResult, Trace}
