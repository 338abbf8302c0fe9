"""Fill the tables of the docs from what is tested and measured: `python scripts/doc_tables.py`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from PIL import Image  # noqa: E402
from test_zoo import BILINEAR, REFUSED, WORKING  # noqa: E402 - found only now that tests/ is on the path

import zoo  # noqa: E402
from conserva.datasets import DATASETS  # noqa: E402
from conserva.datasets.graph_catalogue import GRAPH_DATASETS  # noqa: E402
from conserva.paper.experiments.findings import best_of, verdict  # noqa: E402
from conserva.paper.experiments.graph_plan import GRAPH_OURS, GRAPH_ROWS  # noqa: E402
from conserva.paper.experiments.graph_result import GraphResult  # noqa: E402
from conserva.paper.experiments.plan import ROWS  # noqa: E402
from conserva.paper.experiments.result import TextResult  # noqa: E402
from conserva.paper.views import graph_results, results  # noqa: E402


def models() -> str:
    """List the model types by family, and those that are refused."""
    families: dict[str, list[str]] = {}
    for specimen in WORKING:
        families.setdefault(specimen.family, []).append(f"`{specimen.model_type}`")
    lines = [f"<details><summary>{len(WORKING)} Hugging Face model types, each tested</summary>", ""]
    lines += [f"- **{family}** ({len(names)}): {', '.join(names)}" for family, names in sorted(families.items())]
    named = ", ".join(f"`{name}`" for name in sorted(BILINEAR))
    lines += ["", f"With `bilinear` named: {named}."]
    lines += ["", "Refused:", *(f"- `{name}`: {reason}" for name, reason in REFUSED.items())]
    lines += ["", f"{len(zoo.NOT_BUILT)} more types were not tried, since no tiny version of them could be made: "
              "[tests/support/zoo.py](../tests/support/zoo.py) lists them, each with the reason."]  # fmt: skip
    lines += ["", "</details>"]
    return "\n".join(lines)


def cost() -> str:
    """Tell what an explanation costs, from the last benchmarks: a usual model, and a small one where Python shows."""
    results = ROOT / "benchmarks" / "results"
    runs = [
        json.loads((results / name).read_text(encoding="utf-8")) for name in ("overhead.json", "overhead-small.json")
    ]
    heads = [f"{run['model']}, batch {run['batch']} x {run['tokens']}" for run in runs]
    rows = [
        f"| {name} | " + " | ".join(f"{run['ratios'][name]:.2f}" for run in runs) + " |" for name in runs[0]["ratios"]
    ]
    first = (
        f"Time in forward passes, on a CPU with torch {runs[0]['torch']}. The small model has 4 layers of width 192."
    )
    return "\n".join([first, "", f"| what | {' | '.join(heads)} |", "|---|---|---|", *rows])


def faithfulness() -> str:
    """Show the stored evaluation of the bundled model."""
    folder = ROOT / "docs" / "results" / "sentiment-sst2"
    found = json.loads((folder / "evaluation.json").read_text(encoding="utf-8"))
    speed = json.loads((ROOT / "benchmarks" / "results" / "evaluate.json").read_text(encoding="utf-8"))
    metrics = {"auac": ("AUAC ↑", 3), "au_mse": ("AU-MSE ↓", 2), "comprehensiveness": ("comprehensiveness ↑", 3)}
    lines = [
        f"The bundled model on {found['samples']} of SST-2's dev sentences, protocol `{found['protocol']['name']}`, "
        f"mask `{found['protocol']['mask']}`; in brackets 95 % intervals:",
        "",
        f"| method | {' | '.join(title for title, _ in metrics.values())} | corr. of sum and output |",
        "|---|---|---|---|---|",
    ]
    for one in found["methods"]:
        cells = [
            f"{one[key]['mean']:.{digits}f} [{one[key]['low']:.{digits}f}, {one[key]['high']:.{digits}f}]"
            for key, (_, digits) in metrics.items()
        ]
        correlation = one["conservation"]["correlation"]
        lines.append(
            f"| `{one['method']}` | {' | '.join(cells)} | {'-' if correlation is None else f'{correlation:.2f}'} |"
        )
    ratio = speed["ratios"]["one at a time"]
    lines += [
        "",
        "![Activation and pruning curves of every method](results/sentiment-sst2/curves.png)",
        "",
        f"All points of all samples are one stream of batches in which equal inputs are evaluated once: {ratio:.1f} "
        f"times as fast as one input at a time (`benchmarks/evaluate.py`, {len(speed['methods'])} methods, CPU).",
    ]
    return "\n".join(lines)


def audit() -> str:
    """Show the stored audit of the bundled model: its books and its leaks."""
    found = json.loads((ROOT / "docs" / "results" / "audit-sentiment.json").read_text(encoding="utf-8"))
    lines = [f"| | {' | '.join(f'`{rules}`' for rules in found)} |", "|---|" + "---|" * len(found)]
    for entry in ("output", "inputs", "positions", "biases", "gap"):
        lines.append(f"| {entry} | {' | '.join(_number(one[entry]) for one in found.values())} |")
    for kind in ("attention", "norm", "activation"):
        lines.append(
            f"| leak in {kind} | {' | '.join(_number(one['leaks'].get(kind, 0.0)) for one in found.values())} |"
        )
    largest = [f"`{one['largest'][0]['module']}`" if abs(one["gap"]) > 1e-3 else "none" for one in found.values()]
    return "\n".join([*lines, f"| largest leak | {' | '.join(largest)} |"])


def _number(value: float) -> str:
    return f"{value:+.3f}" if abs(value) >= 5e-4 else "0" if value == 0 else f"{value:+.0e}"


TEXT, AS_RELEASED, GRAPHS = (ROOT / "docs" / "results" / name for name in ("text", "text-as-released", "graphs"))


WIDEST = 3200
"""The pixels of a stored figure: more of them are nowhere seen."""


def text_results(folder: Path = TEXT) -> list[TextResult]:
    """Return the stored results of the text experiment."""
    paths = [folder / f"{name}.json" for name in DATASETS]
    return [TextResult.load(path) for path in paths if path.exists()]


def text_page(folder: Path) -> None:
    """Write a page of the text experiment anew from its stored results, the figures in few colours."""
    _in_few_colours(results.write(text_results(folder), folder))


def graphs_page(folder: Path = GRAPHS) -> None:
    """Write the page of the graph experiment anew from its stored results, if there are any."""
    paths = [folder / f"{name}.json" for name in GRAPH_DATASETS]
    if stored := [GraphResult.load(path) for path in paths if path.exists()]:
        _in_few_colours(graph_results.write(stored, folder))


def _in_few_colours(paths: list[Path]) -> None:
    for path in paths:
        if path.suffix == ".png":
            picture = Image.open(path).convert("RGB")
            picture.thumbnail((WIDEST, 2 * WIDEST), Image.Resampling.LANCZOS)
            # Not the usual way, which spends its colours on greys of letters and shows blue as grey.
            picture.quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)


def text_table() -> str:
    """Show AUAC on every dataset: the paper's methods, LN alone and `exact`; the best of the paper's in bold."""
    found = text_results()
    lines = [f"| AUAC ↑ | {' | '.join(one.title for one in found)} |", "|---|" + "---:|" * len(found)]
    best = [best_of(one.evaluation, "auac") for one in found]
    for row in ROWS:
        if row.group in ("paper", "slides") or row.title == "exact":
            means = [next(m.auac.mean for m in one.evaluation.methods if m.method == row.method) for one in found]
            cells = [
                f"**{mean:.3f}**" if row.method == first else f"{mean:.3f}"
                for mean, first in zip(means, best, strict=True)
            ]
            lines.append(f"| {row.title} | {' | '.join(cells)} |")
    sure = sum(verdict(one.evaluation, "auac").best for one in found)
    lines += [
        "",
        f"LRP (AH+LN) beats every other method of the paper's table by AUAC on {sure} of {len(found)} datasets, all "
        "paired 95 % intervals leaving out 0.",
    ]
    return "\n".join(lines)


def graphs_table() -> str:
    """Show AUAC on graphs under every masking: the paper's methods and `exact`; the best of the paper's in bold."""
    found = [GraphResult.load(GRAPHS / f"{name}.json") for name in GRAPH_DATASETS]
    columns = [(one, mask, evaluation) for one in found for mask, evaluation in one.evaluations.items()]
    titles = [f"{one.title.partition(' ')[0]}, {mask}" for one, mask, _ in columns]
    lines = [f"| AUAC ↑ | {' | '.join(titles)} |", "|---|" + "---:|" * len(columns)]
    best = [best_of(evaluation, "auac", rows=GRAPH_ROWS) for _, _, evaluation in columns]
    for row in GRAPH_ROWS:
        if row.group == "paper" or row.method in ("exact", "attnlrp", "intensity"):
            cells = []
            for (_, _, evaluation), first in zip(columns, best, strict=True):
                mean = next((m.auac.mean for m in evaluation.methods if m.method == row.method), None)
                shown = "-" if mean is None else f"{mean:.3f}"
                cells.append(f"**{shown}**" if row.method == first else shown)
            lines.append(f"| {row.title} | {' | '.join(cells)} |")
    reached = [
        f"{one.title} {one.reached():.1%} {'ROC-AUC' if one.metric == 'roc_auc' else 'accuracy'}" for one in found
    ]
    sure = [
        title
        for title, (_, _, evaluation) in zip(titles, columns, strict=True)
        if verdict(evaluation, "auac", GRAPH_OURS, rows=GRAPH_ROWS).best
    ]
    # What the last sentence says, held against the numbers.
    digits = found[-1].evaluations
    assert len({best_of(one, "auac", rows=GRAPH_ROWS) for one in digits.values()}) > 1
    means = {one.method: one.auac.mean for one in digits["blank"].methods}
    assert max(means, key=lambda name: means[name] if name != "leave-one-out" else 0) == "intensity"
    lines += [
        "",
        f"Three models each: {'; '.join(reached)}. LRP (AH+LN) beats every other method of the paper's table by AUAC, "
        f"all paired 95 % intervals leaving out 0, in {len(sure)} of {len(columns)}: {'; '.join(sure)}. On MNIST the "
        "way nodes are taken away decides who wins; where they are blanked, the order of brightness (`intensity`) "
        "beats all.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Rewrite the docs."""
    for folder in (TEXT, AS_RELEASED):
        text_page(folder)
    graphs_page()
    docs = ROOT / "docs"
    fill(docs / "models.md", {"models": models()})
    fill(docs / "cost.md", {"cost": cost()})
    fill(docs / "faithfulness.md", {"faithfulness": faithfulness()})
    fill(docs / "paper.md", {"text": text_table(), "graphs": graphs_table()})
    fill(docs / "audit.md", {"audit": audit()})


def fill(path: Path, tables: dict[str, str]) -> None:
    """Put tables between their marks in a file."""
    text = path.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = re.sub(
            rf"<!-- {name} -->.*<!-- /{name} -->",
            lambda _, name=name, table=table: f"<!-- {name} -->\n{table}\n<!-- /{name} -->",
            text,
            flags=re.DOTALL,
        )
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
