"""Made-up results of the graph experiment."""

from __future__ import annotations

from typing import Any

from conserva.engine.ledger import Ledger
from conserva.evaluation.result import METRICS, Conservation, Curve, Evaluation, Interval, MethodResult, Pair
from conserva.paper.experiments.result import GraphResult, RuleLedger, TrainedGraph
from conserva.paper.experiments.rows import GRAPH_ROWS, Row
from conserva.results.explanation import Explanation

MASKS = ("token", "induced", "blank")
PAPER = tuple(row.method for row in GRAPH_ROWS if row.group == "paper")
TITLES = {row.method: row.title for row in GRAPH_ROWS}

# Of the paper's methods in their order: Random, A-Last, A-Flow, Rollout, GAE, GI, AH, AH+LN; on MNIST also brightness.
# LRP (AH+LN) is surely best on BACE by both, level with GAE there where the graph is read anew; on MNIST A-Flow prunes
# better, and where superpixels are blanked A-Last and brightness are ahead.
AUAC = {
    ("bace", "token"): (0.50, 0.49, 0.52, 0.51, 0.60, 0.53, 0.51, 0.70),
    ("bace", "induced"): (0.48, 0.47, 0.49, 0.485, 0.60, 0.495, 0.484, 0.601),
    ("bace", "blank"): (0.49, 0.48, 0.53, 0.51, 0.56, 0.52, 0.50, 0.64),
    ("mnist", "token"): (0.40, 0.32, 0.52, 0.51, 0.50, 0.20, 0.25, 0.75, 0.29),
    ("mnist", "induced"): (0.26, 0.24, 0.33, 0.31, 0.30, 0.10, 0.14, 0.60, 0.28),
    ("mnist", "blank"): (0.37, 0.60, 0.20, 0.30, 0.38, 0.43, 0.48, 0.47, 0.77),
}
AU_MSE = {
    ("bace", "token"): (3.8, 3.7, 3.2, 3.5, 3.4, 4.1, 4.2, 2.5),
    ("bace", "induced"): (4.0, 4.4, 4.3, 4.2, 4.1, 4.5, 4.6, 4.05),
    ("bace", "blank"): (3.8, 3.7, 3.2, 3.5, 3.4, 4.1, 4.2, 3.0),
    ("mnist", "token"): (117.0, 144.0, 74.0, 80.0, 109.0, 137.0, 124.0, 96.0, 187.0),
    ("mnist", "induced"): (150.0, 119.0, 140.0, 141.0, 142.0, 121.0, 118.0, 135.0, 180.0),
    ("mnist", "blank"): (98.0, 67.0, 143.0, 114.0, 94.0, 57.0, 74.0, 86.0, 17.0),
}
REACH = {"auac": 0.004, "au_mse": 0.1}


def mean_of(dataset: str, mask: str, metric: str, method: str) -> float:
    values = {"auac": AUAC, "au_mse": AU_MSE}.get(metric, {}).get((dataset, mask), ())
    known = dict(zip((*PAPER, "intensity"), values, strict=False))
    place = [row.method for row in GRAPH_ROWS].index(method)
    return known.get(method, 0.35 + place / 200 if metric != "au_mse" else 50.0 + place)


def method_result(dataset: str, mask: str, row: Row) -> MethodResult:
    areas = {}
    for metric in METRICS:
        mean = mean_of(dataset, mask, metric, row.method)
        areas[metric] = Interval(mean, 0.97 * mean, 1.02 * mean)
    steps = tuple(i / 5 for i in range(6))
    line = tuple(x * areas["auac"].mean for x in steps)
    lines = {name: Curve(steps, line, line, line) for name in ("activation", "pruning", "pruning_probability")}
    books = Conservation(0.5, 0.5, 0.1, (0.0, 1.0), (0.0, 0.5))
    return MethodResult(row.method, **areas, conservation=books, curves=lines, reference=row.group == "yardstick")


def evaluation(dataset: str, mask: str, missing: tuple[str, ...] = ()) -> Evaluation:
    missing = missing if dataset == "mnist" else (*missing, "intensity")
    rows = [row for row in GRAPH_ROWS if row.method not in missing]
    pairs = []
    for i, a in enumerate(rows):
        for b in rows[i + 1 :]:
            for metric, reach in REACH.items():
                first, second = (b.method, a.method) if i % 2 else (a.method, b.method)  # either way round
                mean = mean_of(dataset, mask, metric, first) - mean_of(dataset, mask, metric, second)
                pairs.append(Pair(metric, first, second, mean, mean - reach, mean + reach))
    return Evaluation(
        methods=tuple(method_result(dataset, mask, row) for row in rows),
        pairs=tuple(pairs),
        protocol={"name": "paper", "target": "true", "mask": mask, "special": True,
                  "steps": None if dataset == "bace" else 25},
        samples=152 if dataset == "bace" else 1000,
        accuracy=0.8,
        model="2 classifiers",
        data=f"{dataset} test",
        refused={method: "needs <maps>." for method in missing if method != "intensity"},
    )  # fmt: skip


def ledger_of(rules: str) -> RuleLedger:
    exact = rules == "exact"
    return RuleLedger(
        rules=rules, correlation=0.1 if rules == "gi" else 0.88, slope=0.7, correlation_without_biases=0.97,
        output=2.0, nodes=1.1, virtual=0.5, biases=0.8, gap=2e-16 if exact else 0.3,
        largest_gap=4e-15 if exact else 1.25, outputs=(-1.0, 0.5, 2.0), sums=(-0.5, 0.5, 1.0),
    )  # fmt: skip


def example(dataset: str, method: str) -> Explanation:
    if dataset == "bace":
        features: tuple[str, ...] = ("virtual node", "C", "C", "O")
        picture: dict[str, Any] = {"kind": "molecule", "smiles": "CCO"}
    else:
        features = ("virtual node", "superpixel 0", "superpixel 1", "superpixel 2")
        image = [[0, 0, 90, 90]] * 4
        picture = {"kind": "superpixels", "image": image, "regions": [[0, 0, 1, 2]] * 4}
    return Explanation(
        features, (0.2, -0.5, 1.0, 0.3), (True, False, False, False), (None, 0, 1, 2), f"{dataset} one", "yes", 1.5,
        0.8, Ledger.of(1.5, 1.0, 0.0, 0.25), method, dataset, picture=picture,
    )  # fmt: skip


def result(dataset: str = "bace", missing: tuple[str, ...] = (), seeds: int = 2, **changes: Any) -> GraphResult:
    molecules = dataset == "bace"
    evaluations = {mask: evaluation(dataset, mask, missing) for mask in MASKS}

    def areas(metric: str, seed: int) -> dict[str, dict[str, float]]:
        gains = {"gi": 0.3}
        return {
            mask: {row.method: getattr(row, metric).mean + seed * gains.get(row.method, 0.01) for row in one.methods}
            for mask, one in evaluations.items()
        }

    settings: dict[str, Any] = {
        "dataset": dataset,
        "title": "BACE" if molecules else "MNIST superpixels",
        "labels": ("inactive", "active") if molecules else tuple("0123456789"),
        "metric": "roc_auc" if molecules else "accuracy",
        "graphs": {"train": 1210, "validation": 151, "test": 152}
        if molecules
        else {"train+validation": 60000, "test": 10000},
        "majority": 0.605 if molecules else 0.1135,
        "recipe": {"learning_rate": 2e-4, "epochs": 1000 if molecules else 10, "batch_size": 64, "weight_decay": 0.01,
                   "schedule": "linear", "warm_up": 0.02, "hold_out": molecules,
                   "keep": "best" if molecules else "last", "average": 0.0},
        "shape": {"hidden_size": 80, "num_attention_heads": 8, "ffn_size": 80, "num_hidden_layers": 2,
                  **({"node_values": 175, "edge_values": 61, "max_hops": 5} if molecules else {"node_features": 3})},
        "trained": tuple(
            TrainedGraph(
                seed=seed, test_accuracy=0.95 + 0.02 * seed, test_roc_auc=0.8 + 0.03 * seed if molecules else None,
                validation=0.75 + 0.01 * seed if molecules else None, kept_epoch=180 + seed if molecules else 10,
                epochs=1000 if molecules else 10, weights="0123", auac=areas("auac", seed),
                au_mse=areas("au_mse", seed),
            )
            for seed in range(seeds)
        ),
        "evaluations": evaluations,
        "books": tuple(ledger_of(rules) for rules in ("gi", "ah", "ln", "ah+ln", "exact")),
        "examples": tuple(example(dataset, method) for method in ("gi", "ah+ln")),
        "provenance": {"conserva": "0.1.0", "torch": "2.13.0", "device": "cuda", "quick": False},
        "parameters": 97_000 if molecules else 83_000,
        **changes,
    }  # fmt: skip
    return GraphResult(**settings)


BOTH = [result("bace"), result("mnist")]
COLUMNS = [(one, mask) for one in BOTH for mask in MASKS]


def title(one: GraphResult, mask: str) -> str:
    return f"{one.title.split()[0]}<br>{mask.replace(' ', '&nbsp;')}"
