"""Fill the README's tables from what is tested and measured: `python scripts/readme_tables.py`."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

import zoo  # noqa: E402
from test_zoo import REFUSED, WORKING  # noqa: E402 - found only now that tests/ is on the path


def models() -> str:
    """List the model types by family, and those that are refused."""
    families: dict[str, list[str]] = {}
    for specimen in WORKING:
        families.setdefault(specimen.family, []).append(f"`{specimen.model_type}`")
    lines = [f"<details><summary>{len(WORKING)} Hugging Face model types, each tested</summary>", ""]
    lines += [f"- **{family}** ({len(names)}): {', '.join(names)}" for family, names in sorted(families.items())]
    lines += ["", "Refused:", *(f"- `{name}`: {reason}" for name, reason in REFUSED.items())]
    lines += ["", f"{len(zoo.NOT_BUILT)} more types were not tried, since no tiny version of them could be made: "
              "[tests/zoo.py](tests/zoo.py) lists them, each with the reason."]  # fmt: skip
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


def main() -> None:
    """Rewrite the README."""
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    for name, table in (("models", models()), ("cost", cost())):
        text = re.sub(
            rf"<!-- {name} -->.*<!-- /{name} -->",
            lambda _, name=name, table=table: f"<!-- {name} -->\n{table}\n<!-- /{name} -->",
            text,
            flags=re.DOTALL,
        )
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
