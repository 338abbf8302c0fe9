"""Write docs/results/levels/README.md from levels.json and notes.md beside it: `python scripts/levels_page.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from conserva.datasets import DATASETS
from conserva.evaluation.comparison import Interval
from conserva.paper.experiments.published import published
from conserva.paper.views.cells import NONE, difference, mean_and_interval, number, percent
from conserva.views.markdown import listed, stacked, table

FOLDER = Path(__file__).parents[1] / "docs" / "results" / "levels"
RESULT, NOTES, PAGE = "levels.json", "notes.md", "README.md"
METHODS = {"random": "Random", "ah+ln": "LRP (AH+LN)"}
GROUPS = {
    "texts": "other texts",
    "measure": "another measure",
    "removal": "removed otherwise",
    "classifier": "another training",
}
Found = Mapping[str, Any]


def main() -> None:
    """Write the page."""
    found = json.loads((FOLDER / RESULT).read_text(encoding="utf-8"))
    notes = (FOLDER / NOTES).read_text(encoding="utf-8")
    (FOLDER / PAGE).write_text(page(found, notes), encoding="utf-8")


def page(found: Found, notes: str = "") -> str:
    """Return the page."""
    datasets = found["datasets"]
    names = listed([DATASETS[name].title for name in datasets])
    used = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    start = (
        "AUAC is not at the level of the paper's tables, not even that of a random order. Here one thing at a time is "
        f"changed, about the classifier or the evaluation, on {names}, and AUAC of Random and of LRP (AH+LN) is "
        "measured again. Base: one classifier for each dataset, trained on a CPU by the recipe of the "
        f"[tables](../text/README.md) with seed 0, on at most {found['count']} texts drawn from the test split, by the "
        f"tables' protocol; Random is the mean of {found['random_seeds']} orders. `[low, high]`: 95 % intervals by "
        "bootstrap over the texts; a difference is taken on the same texts, except for other splits. Bold: the "
        f"interval excludes 0. *The paper*: by how much its number is above the base. `{NONE}`: not measured."
    )
    sections = {
        "What was found": notes.strip(),
        **{f"By how much {title} moves": _moved(datasets, key) for key, title in METHODS.items()},
        "Levels": "\n\n".join([_LEVELS, *(_levels(name, one) for name, one in datasets.items())]),
        "Classifiers": _classifiers(datasets),
        "How to run it again": (
            "```sh\npython scripts/levels.py --embeddings sentence-transformers/all-MiniLM-L6-v2 --models models\n"
            "python scripts/levels_page.py\n```\n"
            f"The classifiers are trained in the folder `models`, minutes each on a CPU. Made with {used}."
        ),
    }
    body = "\n\n".join(f"## {title}\n{text}" for title, text in sections.items() if text)
    return f"# What moves the levels of AUAC\n\n{start}\n\n{body}\n"


_LEVELS = (
    "Nothing and everything shown: the mean probability of the class there, where the curves of all methods begin and "
    "end. AU-MSE, of Random, grows with the square of the logits."
)


def _moved(datasets: Mapping[str, Found], method: str) -> str:
    """Return a table of AUAC's differences from the base: a row for each change, a column for each dataset."""
    rows = [["the paper", *(_theirs(one, name, method) for name, one in datasets.items())]]
    for group, title in GROUPS.items():
        changes = dict.fromkeys(
            row["title"] for one in datasets.values() for row in one["changes"] if row["group"] == group
        )
        rows.append([f"*{title}*", *("" for _ in datasets)])
        for change in changes:
            rows.append([change, *(_cell(one["changes"], change, method) for one in datasets.values())])
    return table(["change", *(DATASETS[name].title for name in datasets)], rows)


def _theirs(one: Found, name: str, method: str) -> str:
    known = published("auac", name, method)
    return NONE if known is None else number(known.value - one["base"]["auac"][method][0])


def _cell(changes: Sequence[Found], title: str, method: str) -> str:
    return next((difference(Interval(*row["moved"][method])) for row in changes if row["title"] == title), NONE)


def _levels(name: str, one: Found) -> str:
    titles = (
        "", *(f"AUAC of {title}" for title in METHODS.values()), "nothing shown", "everything shown", "AU-MSE", "texts",
        "accuracy",
    )  # fmt: skip
    theirs = [_printed("auac", name, method) for method in METHODS]
    rows = [["the paper", *theirs, NONE, NONE, _printed("au_mse", name, "random"), NONE, NONE]]
    rows += [_level("base", one["base"]), *(_level(_with_factor(row), row) for row in one["changes"])]
    return f"### {DATASETS[name].title}\n{table(titles, rows)}"


def _printed(metric: str, name: str, method: str) -> str:
    known = published(metric, name, method)
    return NONE if known is None else number(known.value)


def _with_factor(row: Found) -> str:
    """Return the title of a change, with the factor of the logits where the title does not say it."""
    fitted = row["title"].startswith("logits scaled")
    return stacked(row["title"], f"times {number(1 / row['temperature'])}") if fitted else row["title"]


def _level(title: str, row: Found) -> list[str]:
    return [
        title,
        *(mean_and_interval(Interval(*row["auac"][method]), False) for method in METHODS),
        number(row["start"]),
        number(row["end"]),
        number(row["au_mse"]["random"]),
        str(row["samples"]),
        percent(row["accuracy"]),
    ]


def _classifiers(datasets: Mapping[str, Found]) -> str:
    rows = [
        [
            DATASETS[name].title,
            title,
            f"{model['kept_epoch']} of {model['last_epoch']}",
            percent(model["validation_accuracy"]),
            percent(model["test_accuracy"]),
        ]
        for name, one in datasets.items()
        for title, model in one["models"].items()
    ]
    return table(["dataset", "classifier", "epoch kept", "validation", "test"], rows, words=2)


if __name__ == "__main__":
    main()
