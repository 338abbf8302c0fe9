"""What tests share: made up evaluations."""

import html.parser
from dataclasses import replace

from conserva.evaluation.comparison import Interval, Pair
from conserva.evaluation.result import ADDITIONAL, METRICS, Conservation, Curve, Evaluation, MethodResult

NAMES = ("random", "random:seed=1", "gi", "ah+ln", "exact", "a-last", "<b>&$x_1$</b>", "leave-one-out")


AUAC = dict(zip(NAMES, (0.61, 0.62, 0.76, 0.912, 0.917, 0.73, 0.7, 0.95), strict=True))


REFUSED = {"a-flow": "needs <attention> maps & a tokenizer."}


WIDTH = 0.008


def areas(name: str) -> dict[str, float]:
    share = AUAC[name]
    return {
        "auac": share,
        "au_mse": 22.5 - 20 * share,
        "aupc": share - 0.2,
        "comprehensiveness": share - 0.5,
        "sufficiency": 0.9 - share,
    }


def result(name: str) -> MethodResult:
    found = areas(name)
    fractions = tuple(i / 10 for i in range(11))
    lines = {}
    for kind, top in (("activation", 1.0), ("pruning", 20.0), ("pruning_probability", 1.0)):
        mean = tuple(top * x ** (1 / (0.1 + found["auac"])) for x in fractions)
        lines[kind] = Curve(fractions, mean, tuple(0.95 * y for y in mean), tuple(1.05 * y for y in mean))
    outputs = tuple(((i * 7) % 13 - 5) / 2 for i in range(30))
    sums = (1.0,) * 30 if name == "a-last" else tuple(0.9 * y + ((i * 5) % 7 - 3) / 10 for i, y in enumerate(outputs))
    varied = name != "a-last"
    books = Conservation(0.987 if varied else None, 0.904 if varied else None, 0.1234, outputs, sums)
    intervals = {metric: Interval(mean, *sorted((0.97 * mean, 1.03 * mean))) for metric, mean in found.items()}
    return MethodResult(name, **intervals, conservation=books, curves=lines, reference=name == "leave-one-out")


def evaluation(names: tuple[str, ...] = NAMES, width: float = WIDTH, **changes: object) -> Evaluation:
    pairs = []
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            for metric in METRICS:
                first, second = (b, a) if i % 2 else (a, b)  # either way round
                mean = areas(first)[metric] - areas(second)[metric]
                reach = width * (20 if metric == "au_mse" else 1)
                pairs.append(Pair(metric, first, second, mean, mean - reach, mean + reach))
    settings = {
        "methods": tuple(result(name) for name in names),
        "pairs": tuple(pairs),
        "protocol": {"name": "paper", "target": "true", "mask": "[MASK]", "special": True, "steps": 10, "seed": 3},
        "samples": 30,
        "accuracy": 0.835,
        "model": "sentiment",
        "data": "sst2 <validation>",
        "refused": REFUSED,
        "provenance": {"torch": "2.11", "weights": "sha256:0123"},
        **changes,
    }
    return Evaluation(**settings)  # type: ignore[arg-type]


def with_additional(names: tuple[str, ...] = NAMES) -> Evaluation:
    """An evaluation with all additional metrics: those of `lds` are ordered as AUAC, but the other way round."""
    one = evaluation(names, without_value={"lds": 4})
    means = {name: {"srg": 9 * AUAC[name] - 6, "lds": 1 - AUAC[name] / 2, "tau": AUAC[name] - 0.6} for name in names}
    methods = tuple(
        replace(row, **{metric: Interval(mean, mean - 0.01, mean + 0.01) for metric, mean in means[row.method].items()})
        for row in one.methods
    )
    pairs = []
    for i, a in enumerate(names):
        for b in names[i + 1 :]:
            for metric in ADDITIONAL:
                mean = means[a][metric] - means[b][metric]
                pairs.append(Pair(metric, a, b, mean, mean - WIDTH, mean + WIDTH))
    protocol = {**one.protocol, "srg": True, "lds": 32, "tau": True}
    return replace(one, methods=methods, pairs=(*one.pairs, *pairs), protocol=protocol)


class Reader(html.parser.HTMLParser):
    """Collects the text of a page, and fails at everything that could load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs) -> None:
        self.tags.add(tag)
        for key, value in attrs:
            assert not key.startswith("on")
            assert key != "src"
            assert not key.endswith("href") or value.startswith("#")
            assert "://" not in (value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    return reader
