"""Fill the tables of the docs from what is tested and measured: `python scripts/doc_tables.py`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from PIL import Image  # noqa: E402

import zoo  # noqa: E402
from conserva.datasets import DATASETS  # noqa: E402
from conserva.datasets.graph_catalogue import GRAPH_DATASETS  # noqa: E402
from conserva.paper.experiments.findings import columns  # noqa: E402
from conserva.paper.experiments.result import AnyResult, GraphResult, TextResult, reached  # noqa: E402
from conserva.paper.views import results  # noqa: E402
from conserva.paper.views.agreement import counted  # noqa: E402
from conserva.paper.views.cells import MEASURES  # noqa: E402
from zoo_types import BILINEAR, REFUSED, WORKING  # noqa: E402 - found only now that tests/support is on the path


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
    """Show the stored audit of the bundled model: its ledger and its leaks."""
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


def stored(folder: Path) -> list[AnyResult]:
    """Return the stored results of an experiment."""
    kind, names = (GraphResult, GRAPH_DATASETS) if folder == GRAPHS else (TextResult, DATASETS)
    paths = [folder / f"{name}.json" for name in names]
    return [kind.load(path) for path in paths if path.exists()]


def _in_few_colours(paths: list[Path]) -> None:
    for path in paths:
        if path.suffix == ".png":
            picture = Image.open(path).convert("RGB")
            picture.thumbnail((WIDEST, 2 * WIDEST), Image.Resampling.LANCZOS)
            # Not the usual way, which spends its colours on greys of letters and shows blue as grey.
            picture.quantize(256, Image.Quantize.MAXCOVERAGE).save(path, optimize=True)


def auac_table(found: list[AnyResult], shown: tuple[str, ...]) -> list[str]:
    """Return AUAC in every column: the paper's methods and those with the titles in `shown`; the best in bold."""
    every = columns(found)
    titles = [f"{one.result.title.partition(' ')[0]}, {one.mask}" if one.mask else one.title for one in every]
    lines = [f"| AUAC ↑ | {' | '.join(titles)} |", "|---|" + "---:|" * len(every)]
    best = [one.best("auac") for one in every]
    for row in found[0].rows:
        if row.group == "paper" or row.title in shown:
            means = [one.mean("auac", row.title) for one in every]
            cells = ["-" if mean is None else f"{mean:.3f}" for mean in means]
            cells = [f"**{cell}**" if row.title == first else cell for cell, first in zip(cells, best, strict=True)]
            lines.append(f"| {row.title} | {' | '.join(cells)} |")
    return lines


def text_table() -> str:
    """Show AUAC on every dataset of texts."""
    found = stored(TEXT)
    sure = sum(one.is_best("auac") for one in columns(found))
    lines = [
        *auac_table(found, ("LRP (LN)", "exact")),
        "",
        f"LRP (AH+LN) beats every other method of the paper's table by AUAC on {sure} of {len(found)} datasets, all "
        "paired 95 % intervals leaving out 0.",
    ]
    return "\n".join(lines)


def agreement_lines() -> str:
    """Count the columns of the paper's tables that the results agree with."""
    lines = [
        f"- [{name}](results/{folder.name}/README.md#does-it-agree-with-the-paper). {counted(stored(folder))}"
        for name, folder in (("Texts", TEXT), ("Graphs", GRAPHS))
    ]
    return "\n".join(lines)


def graphs_table() -> str:
    """Show AUAC on graphs under every masking."""
    found = stored(GRAPHS)
    every = columns(found)
    models = [f"{one.title} {sum(reached(one)) / len(one.trained):.1%} {MEASURES[one.metric]}" for one in found]
    sure = [f"{one.result.title.partition(' ')[0]}, {one.mask}" for one in every if one.is_best("auac")]
    # What the last sentence says, held against the numbers.
    digits = [one for one in every if one.result is found[-1]]
    assert len({one.best("auac") for one in digits}) > 1
    blank = next(one for one in digits if one.mask == "blank")
    means = {one.method: one.auac.mean for one in blank.evaluation.methods if one.method != "leave-one-out"}
    assert max(means, key=lambda name: means[name]) == "intensity"
    lines = [
        *auac_table(found, ("exact", "AttnLRP", "intensity")),
        "",
        f"Three models each: {'; '.join(models)}. LRP (AH+LN) beats every other method of the paper's table by AUAC, "
        f"all paired 95 % intervals leaving out 0, in {len(sure)} of {len(every)}: {'; '.join(sure)}. On MNIST the "
        "way nodes are taken away decides who wins; where they are blanked, the order of brightness (`intensity`) "
        "beats all.",
    ]
    return "\n".join(lines)


def main() -> None:
    """Rewrite the docs."""
    for folder in (TEXT, AS_RELEASED, GRAPHS):
        _in_few_colours(results.write(stored(folder), folder))
    docs = ROOT / "docs"
    fill(docs / "models.md", {"models": models()})
    fill(docs / "cost.md", {"cost": cost()})
    fill(docs / "faithfulness.md", {"faithfulness": faithfulness()})
    fill(docs / "paper.md", {"agreement": agreement_lines(), "text": text_table(), "graphs": graphs_table()})
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
