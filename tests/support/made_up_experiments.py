"""What tests share: made up experiments."""

from conserva.engine.ledger import Ledger
from conserva.evaluation.result import METRICS, Conservation, Curve, Evaluation, Interval, MethodResult, Pair
from conserva.paper.experiments.result import TextResult, TrainedText
from conserva.paper.experiments.rows import TEXT_ROWS, Row
from conserva.results.explanation import Explanation

GI, AH, LN, OURS, EXACT = (f"{name}:at=embeddings" for name in ("gi", "ah", "ln", "ah+ln", "exact"))


TITLES = {row.method: row.title for row in TEXT_ROWS}


# AUAC, and AU-MSE, of the paper's methods and of LN; of the others by their place. LRP (AH+LN) is best on SST-2 by
# both; on Semaine it is level with LRP (AH) by AUAC, and behind GI by AU-MSE.
PAPER = ("random", "a-last", "a-flow", "rollout", "gae", GI, AH, LN, OURS)


AUAC = {
    "sst2": dict(zip(PAPER, (0.60, 0.65, 0.66, 0.67, 0.78, 0.80, 0.82, 0.86, 0.9), strict=True)),
    "semaine": dict(zip(PAPER, (0.40, 0.41, 0.42, 0.43, 0.44, 0.45, 0.501, 0.46, 0.5), strict=True)),
}


AU_MSE = {
    "sst2": dict(zip(PAPER, (4.0, 3.0, 2.9, 2.8, 2.5, 2.2, 2.1, 1.8, 1.5), strict=True)),
    "semaine": dict(zip(PAPER, (20.0, 15.0, 14.0, 13.0, 12.5, 9.0, 11.5, 11.0, 10.0), strict=True)),
}


REACH = {"auac": 0.004, "au_mse": 0.1}


def mean_of(dataset: str, metric: str, method: str) -> float:
    place = [row.method for row in TEXT_ROWS].index(method)
    if metric == "auac":
        return AUAC[dataset].get(method, 0.3 + place / 100)
    return AU_MSE[dataset].get(method, 1.7 + place / 10) if metric == "au_mse" else 0.1


def method_result(dataset: str, row: Row) -> MethodResult:
    areas = {}
    for metric in METRICS:
        mean = mean_of(dataset, metric, row.method)
        areas[metric] = Interval(mean, 0.97 * mean, 1.02 * mean)
    steps = tuple(i / 10 for i in range(11))
    lines = {}
    for name in ("activation", "pruning", "pruning_probability"):
        mean = tuple(x ** (1 / (0.1 + areas["auac"].mean)) for x in steps)
        lines[name] = Curve(steps, mean, tuple(0.9 * y for y in mean), tuple(1.1 * y for y in mean))
    flat = row.method == "rollout" or (row.method == GI and dataset == "semaine")
    outputs = (-1.0, 0.5, 2.0, 3.0)
    sums = (1.0,) * 4 if flat else (-0.8, 0.5, 1.8, 2.9)
    books = Conservation(None if flat else 0.98765, None if flat else 0.87654, 0.12345, outputs, sums)
    return MethodResult(row.method, **areas, conservation=books, curves=lines, reference=row.group == "yardstick")


def evaluation(dataset: str, missing: tuple[str, ...] = ()) -> Evaluation:
    rows = [row for row in TEXT_ROWS if row.method not in missing]
    pairs = []
    for i, a in enumerate(rows):
        for b in rows[i + 1 :]:
            for metric, reach in REACH.items():
                first, second = (b.method, a.method) if i % 2 else (a.method, b.method)  # either way round
                mean = mean_of(dataset, metric, first) - mean_of(dataset, metric, second)
                pairs.append(Pair(metric, first, second, mean, mean - reach, mean + reach))
    return Evaluation(
        methods=tuple(method_result(dataset, row) for row in rows),
        pairs=tuple(pairs),
        protocol={"name": "paper", "target": "true", "mask": "unk", "special": True, "steps": 10},
        samples=1234,
        accuracy=0.8,
        model="2 classifiers",
        data=f"{dataset} test",
        refused=dict.fromkeys(missing, "needs <maps> & a tokenizer."),
    )


def sentence(method: str, model: str) -> Explanation:
    ledger = Ledger.of(1.5, 1.0, 0.0, 0.25)
    words = ("[CLS]", "not", "$5", "|much|", "[SEP]")
    special = (True, False, False, False, True)
    return Explanation(
        words, (0.1, -0.5, 1.0, 0.2, 0.2), special, (None, 0, 1, 2, None), "not $5 |much|", "positive", 1.5, 0.8,
        ledger, method, model,
    )  # fmt: skip


def result(dataset: str = "sst2", missing: tuple[str, ...] = (), seeds: int = 2, **changes: object) -> TextResult:
    found = evaluation(dataset, missing)
    gains = {one.method: 0.1 if one.method == GI else 0.01 for one in found.methods}
    auacs = [{one.method: one.auac.mean + seed * gains[one.method] for one in found.methods} for seed in range(seeds)]
    au_mse = {one.method: one.au_mse.mean for one in found.methods}
    trained = tuple(
        TrainedText(seed, 0.81 + 0.01 * seed, 0.8 + 0.03 * seed, 3, 8, "0123", auac, au_mse)
        for seed, auac in enumerate(auacs)
    )
    settings = {
        "dataset": dataset,
        "title": {"sst2": "SST-2", "semaine": "Semaine"}[dataset],
        "labels": ("negative", "positive"),
        "texts": {"train": 67324, "validation": 872, "test": 1821},
        "majority": 0.501,
        "recipe": {"learning_rate": 2e-5, "weight_decay": 0.0, "embeddings": "all-MiniLM-L6-v2", "as_released": False},
        "evaluated_tokens": None,
        "trained": trained,
        "evaluation": found,
        "sentences": tuple(sentence(method, dataset) for method in (GI, OURS, "gae")),
        "provenance": {"conserva": "0.1.0", "torch": "2.13.0", "device": "cuda", "quick": False},
        **changes,
    }
    return TextResult(**settings)  # type: ignore[arg-type]
