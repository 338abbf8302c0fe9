"""Write docs/performance.md from what was measured: `python scripts/performance_page.py`.

Every number of the page is read or computed from benchmarks/results/*.json. What was not measured has no section.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from conserva.views.markdown import listed, stacked, table
from performance_cells import GI, OUT_OF_MEMORY, Found, absent, cost, duration, made_with, number, reasons, span
from performance_scaling import evaluation, scaling

ROOT = Path(__file__).parents[1]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "performance.md"
OURS, EXACT, LXT = "conserva ah+ln", "conserva exact", "LXT AttnLRP"
LEFT_TO_TORCH = "left to torch"


def main() -> None:
    """Write the page anew."""
    PAGE.write_text(page(RESULTS), encoding="utf-8")


def page(results: Path) -> str:
    """Return the page of a folder of results."""
    parts = [
        "# What an explanation costs",
        "Every contender explains the same output of the same weights in one run, round by round, so that what slows "
        "the machine slows all. Numbers are medians over rounds; `x GI` is a ratio to Gradient x Input written by "
        "hand, with parameters frozen and logits only where they are explained. GiB are the peak above the weights.",
    ]
    for section, names in SECTIONS:
        found = [_read(results / f"{name}.json") for name in names]
        if all(one is not None for one in found):
            parts += section(*found)
    return "\n\n".join([*parts, *_repeat(results)]) + "\n"


def _read(path: Path) -> Found | None:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def long_context(found: Found) -> list[str]:
    """Show time and memory by length."""
    rows, model = found["rows"], found["model"]
    columns = ["forward", GI, "detach only", "captum", "autolrp", LXT, OURS, f"{OURS}, recompute", EXACT]
    columns += [f"{EXACT}, with the ledger"]
    cells = [
        [f"{row['tokens']:,}", *(cost(row["contenders"].get(name), row["contenders"].get(GI)) for name in columns)]
        for row in rows
    ]
    heads, key_heads, size = model["heads"]
    lines = [
        "## By length",
        f"One token after a text, explained by a Llama of {model['weights'] / 1e9:.2f} billion random weights in "
        f"{model['dtype']}: {model['layers']} layers, {heads} heads of {size}, {key_heads} for keys and values; batch "
        f"1. {made_with(found['machine'])} `detach only` is the AH- and LN-rule as one writes them by hand, by "
        "detaching; captum and autolrp are used as their documents show, LXT with its own patches of Llama. "
        "`recompute` keeps as little as it can. Every call of conserva reads other tokens, up to 8,192 of them in a "
        "loop inside `conserva.replaying(model)`: there calls are replayed as a CUDA graph, bit for bit the same.",
        table(["tokens", *columns], cells),
        *_verdicts(rows),
        *reasons([row["contenders"] for row in rows]),
        *[f"{row['tokens']:,} tokens: {row['note']}." for row in rows if "note" in row],
    ]
    plans = {f"{row['tokens']:,}": row["plans"].get(OURS) for row in rows if row.get("plans", {}).get(OURS)}
    if plans:
        lines.append("How `ah+ln` ran, as it reports itself:")
        lines.append("\n".join(f"- {', '.join(tokens)} tokens: {plan}" for plan, tokens in _by_value(plans)))
    return lines


def _by_value(plans: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Return each plan with the lengths that it served."""
    lengths: dict[str, list[str]] = {}
    for tokens, plan in plans.items():
        lengths.setdefault(plan, []).append(tokens)
    return list(lengths.items())


def _verdicts(rows: Sequence[Found]) -> list[str]:
    """Return what the lengths say of `ah+ln` against each other way, as sentences."""
    lines = []
    for other in (GI, "detach only", "captum", "autolrp", LXT):
        times, memory, alone = [], [], []
        for row in rows:
            ours, theirs = row["contenders"].get(OURS, {}), row["contenders"].get(other, {})
            if "ms" in ours and "ms" in theirs:
                times.append(ours["ms"] / theirs["ms"])
                if ours.get("gib") and theirs.get("gib"):
                    memory.append(ours["gib"] / theirs["gib"])
            elif "ms" in ours and theirs.get("skipped") == OUT_OF_MEMORY:
                alone.append(f"{row['tokens']:,}")
        if not times and not alone:
            continue
        said = []
        if times:
            less = sum(one < 1 for one in times)
            said.append(f"`ah+ln` takes {span(times)} times its time, less at {less} of {len(times)} lengths")
        if memory:
            said.append(f"{span(memory)} times its memory")
        if alone:
            said.append(f"at {listed(alone)} tokens it runs out of memory and `ah+ln` does not")
        lines.append(f"- **{other}.** {'; '.join(said)}.")
    both = [row for row in rows if all("ms" in row["contenders"].get(one, {}) for one in (EXACT, GI))]
    if both:
        times = [row["contenders"][EXACT]["ms"] / row["contenders"][GI]["ms"] for row in both]
        lines.append(
            f"- **exact.** {span(times)} times the time of GI at {both[0]['tokens']:,} to {both[-1]['tokens']:,} "
            "tokens."
        )
    far = [row["distance from detach only"] for row in rows if "distance from detach only" in row]
    if far:
        lines.append(
            f"- **The same answer.** The scores of `ah+ln` are at most {100 * max(far):.2g} % of their length away "
            "from those of `detach only`."
        )
    return ["\n".join(lines)] if lines else []


def single_calls(found: Found) -> list[str]:
    """Show what one call costs if nothing is recorded."""
    names = [name for name in found["rows"][0]["contenders"] if name != GI]
    cells = [
        [
            f"{row['model']}, {row['size']}",
            duration(row["contenders"][GI]["ms"]),
            *(
                number(row["to GI"][name]) if name in row["to GI"] else absent(row["contenders"][name])
                for name in names
            ),
        ]
        for row in found["rows"]
    ]
    return [
        "## A single call",
        "One call of `conserva.relevance`, which records nothing, as multiples of the time of GI. Llama is the model "
        f"of the first table, BERT-base runs in float32; sizes are texts x tokens. {made_with(found['machine'])} Short "
        "texts cost what Python costs: the GPU waits for the next launch.",
        table(["model, size", GI, *names], cells),
    ]


def million(found: Found) -> list[str]:
    """Tell of the longest text."""
    lines = []
    for row in found["rows"]:
        if "ms" not in row:
            lines.append(f"{row['tokens']:,} tokens run {row['skipped']}.")
            continue
        memory = "" if row["gib"] is None else f" and {number(row['gib'])} GiB above the weights"
        plan = f" How it ran: {row['plan']}." if row["plan"] else ""
        finite = "every score is finite" if row["finite"] else "some scores are not finite"
        lines.append(
            f"One explanation of {row['tokens']:,} tokens by `ah+ln` takes {duration(row['ms'])}{memory}; "
            f"{finite}.{plan}"
        )
    return ["## The longest text", *lines, f"The same model. {made_with(found['machine'])}"]


def kernel(found: Found) -> list[str]:
    """Show attention's backward pass alone."""
    names = list(found["speed"][0]["contenders"])
    base = names[0]
    lines = [
        "## Attention's backward pass alone",
        "Causal, batch 1, every position's gradient at work, forward pass excluded. "
        f"{made_with(found['machine'])} Under the AH-rule only the values carry relevance: two matrix products, where "
        f"a full backward pass has five. TFLOP/s count those two for everyone; ratios are to {base}.",
    ]
    for shape in dict.fromkeys(row["shape"] for row in found["speed"]):
        rows = [row for row in found["speed"] if row["shape"] == shape]
        cells = [[f"{row['tokens']:,}", *(_speed(row["contenders"], name, base) for name in names)] for row in rows]
        lines += [f"### {shape}", table(["tokens", *names], cells)]
        ratios = [
            row["contenders"]["value-only"]["ms"] / min(one["ms"] for name, one in others.items())
            for row in rows
            if "ms" in row["contenders"].get("value-only", {})
            and (others := {n: one for n, one in row["contenders"].items() if n != "value-only" and "ms" in one})
        ]
        if ratios:
            lines.append(f"`value-only` takes {span(ratios)} times what the fastest of the others takes.")
    return [*lines, *reasons([row["contenders"] for row in found["speed"]]), *_accuracy(found)]


def _speed(contenders: Mapping[str, Found], name: str, base: str) -> str:
    one, unit = contenders.get(name), contenders.get(base, {})
    if one is None or "ms" not in one:
        return absent(one)
    ratio = f"{number(one['ms'] / unit['ms'])} x" if "ms" in unit else ""
    return stacked(duration(one["ms"]), ratio, f"{number(one['tflops'])} TFLOP/s")


def _accuracy(found: Found) -> list[str]:
    """Show the error of dV by case, ours beside torch's."""
    rows = found["accuracy"]
    dtypes = list(dict.fromkeys(row["dtype"] for row in rows))
    cases = list(dict.fromkeys(row["case"] for row in rows))
    at = {(row["case"], row["dtype"]): row for row in rows}
    cells = [
        [case, *(f"{_error(at[case, dtype]['value-only'])} / {_error(at[case, dtype]['torch'])}" for dtype in dtypes)]
        for case in cases
    ]
    both = [row for row in rows if isinstance(row["value-only"], float) and isinstance(row["torch"], float)]
    lines = [
        "### How exact it is",
        f"The gradient of the values against float64, as a share of its length: value-only / torch's own. Fresh random "
        f"inputs, seed {found['seed']}.",
        table(["attention", *dtypes], cells),
    ]
    if both:
        worst = [
            f"{max(row['value-only'] for row in both if row['dtype'] == dtype):.1e} in {dtype}"
            for dtype in dtypes
            if any(row["dtype"] == dtype for row in both)
        ]
        beside = [row["value-only"] / row["torch"] for row in both if row["torch"]]
        lines.append(f"The largest error is {listed(worst)}; errors are {span(beside)} times torch's.")
    return lines


def _error(value: float | str) -> str:
    return f"{value:.1e}" if isinstance(value, float) else value if value == LEFT_TO_TORCH else "did not run"


def profile(found: Found) -> list[str]:
    """Show where the time goes, beside what it takes at least."""
    rows = found["rows"]
    ceilings = rows[0]["ceilings"]
    titles = ["what"]
    for row in rows:
        titles += [f"{row['tokens']:,} tokens", "share", "at least"]
    cells = []
    for group in rows[0]["groups_ms"]:
        line = [group]
        for row in rows:
            took, least = row["groups_ms"][group], row["limit_ms"].get(group)
            line += [duration(took), f"{took / row['span_ms']:.0%}", "-" if least is None else duration(least)]
        cells.append(line)
    total = ["**all**"]
    for row in rows:
        total += [duration(row["span_ms"]), "", duration(sum(row["limit_ms"].values()))]
    far = [f"{number(row['span_ms'] / sum(row['limit_ms'].values()))} at {row['tokens']:,} tokens" for row in rows]
    return [
        "## Where the time goes",
        "A single call of `ah+ln`, with nothing recorded, of the model of the first table, kernel by kernel. "
        f"{made_with(found['machine'])} "
        f"`at least` is the time if matrix products ran at {number(ceilings['tflops'])} TFLOP/s and everything else "
        f"were fused, reading and writing once at {number(ceilings['terabytes a second'])} TB/s, in every layer at "
        "every token. `idle` is time in which nothing ran, waiting for the next launch.",
        table(titles, [*cells, total]),
        f"In multiples of that limit it takes {listed(far)}.",
    ]


def throughput(found: Found) -> list[str]:
    """Show explanations a second."""
    kinds = [kind for kind in ("sdpa", "eager") if kind in found]
    names = list(found[kinds[0]]["contenders"])
    cells = [
        [name, *(_rate(found[kind]["contenders"].get(name), found[kind]["contenders"][GI]) for kind in kinds)]
        for name in names
    ]
    streams = list(found["explain"].values())
    ways = list(streams[0]["contenders"])
    rows = [
        [way, *(_rate(one["contenders"].get(way), one["contenders"]["GI, from texts"]) for one in streams)]
        for way in ways
    ]
    return [
        "## Many short texts",
        f"{found['model']} with random weights, {found['batch']} texts of {found['tokens']} tokens at once: "
        f"explanations a second, and as multiples of GI's. {made_with(found['machine'])}",
        table(["", *kinds], cells),
        *reasons([found[kind]["contenders"] for kind in kinds]),
        "`conserva.explain` on many texts, against plain loops over the same padded batches: texts a second. It starts "
        "from texts and ends in Explanations; `GI, from texts` starts there too and ends in lists of numbers. "
        "Multiples are of it. From the fourth batch of a shape on, a call replays it as a CUDA graph, which goes with "
        "the call; `nothing recorded` runs every batch through Python.",
        table(["", *map(_stream, streams)], rows),
    ]  # fmt: skip


def recordings(found: Found) -> list[str]:
    """Show what CUDA graphs save inside one call of `explain`."""
    runs = found["explain"]
    first = next(iter(runs.values()))
    names = [name for name in first["contenders"] if name.startswith("explain")]
    cells = [
        [name, *(_rate(run["contenders"].get(name), run["contenders"]["GI, batches ready"]) for run in runs.values())]
        for name in names
    ]
    titles = [
        f"{run['texts']:,} texts {name}, {run['batches']} batches of {run['shapes']} shapes"
        for name, run in runs.items()
    ]
    return [
        "## Recordings in one call",
        "`conserva.explain` of many texts by BERT-base with random weights, which records anew in each call: texts a "
        f"second, and as multiples of a loop of GI over batches that are ready. {made_with(found['machine'])}",
        table(["", *titles], cells),
    ]


def _stream(found: Found) -> str:
    low, high = found["tokens"]
    long = f"{low}" if low == high else f"{low} to {high}"
    return f"{found['texts']:,} texts of {long} tokens, {found['batches']} batches"


def _rate(one: Found | None, unit: Found) -> str:
    if one is None or "ms" not in one:
        return absent(one)
    ratio = f"{number(unit['ms'] / one['ms'])} x" if "ms" in unit else ""
    return stacked(number(one["a second"]), ratio)


def overhead(large: Found, small: Found) -> list[str]:
    """Show what an explanation costs on a CPU, in forward passes."""
    runs = (large, small)
    titles = [f"{run['model']}, batch {run['batch']} x {run['tokens']}" for run in runs]
    cells = [[name, *(number(run["ratios"][name]) for run in runs)] for name in large["ratios"]]
    return [
        "## On a CPU",
        f"Time in forward passes, with torch {large['torch']} on {large['threads']} threads. The small model has 4 "
        "layers of width 192: there the cost of Python shows. `AH alone, by intercepting calls` detaches the queries "
        "and keys of attention in a `TorchFunctionMode` and does nothing else: no other rule, no check, no ledger. "
        "Whatever intercepts torch calls takes at least that.",
        table(["what", *titles], cells),
    ]


COMMANDS = {
    "longcontext": "python benchmarks/longcontext.py",
    "single_calls": "python benchmarks/single_calls.py",
    "scaling": "python benchmarks/scaling.py",
    "million": "python benchmarks/longcontext.py --million",
    "profile": "python benchmarks/longcontext.py --profile 512 65536",
    "attention": "python benchmarks/attention.py",
    "throughput": "python benchmarks/throughput.py",
    "replaying": "python benchmarks/replaying.py > benchmarks/results/replaying.json",
    "evaluate_scale": "python benchmarks/evaluate_scale.py",
    "overhead": "python benchmarks/overhead.py",
    "overhead-small": "python benchmarks/overhead.py --small --batch 1 --tokens 32",
}


def _repeat(results: Path) -> list[str]:
    """Tell how to measure again what stands on the page."""
    commands = [command for name, command in COMMANDS.items() if (results / f"{name}.json").exists()]
    if not commands:
        return []
    lines = ["```sh", 'pip install -e ".[bench]"', *commands, "python scripts/performance_page.py", "```"]
    return [
        "## Measuring again",
        "\n".join(lines),
        "A contender that is not installed is left out; LXT, which has no current release, runs with `--lxt FOLDER`, "
        "the folder of its package. All but `overhead.py` want a GPU; without one they run small, to see that they "
        "work, and want `--out FOLDER` for what they find.",
    ]


SECTIONS: tuple[tuple[Callable[..., list[str]], tuple[str, ...]], ...] = (
    (long_context, ("longcontext",)),
    (single_calls, ("single_calls",)),
    (scaling, ("scaling",)),
    (million, ("million",)),
    (profile, ("profile",)),
    (kernel, ("attention",)),
    (throughput, ("throughput",)),
    (recordings, ("replaying",)),
    (evaluation, ("evaluate_scale",)),
    (overhead, ("overhead", "overhead-small")),
)
"""What the page shows, in order, and the results each part needs."""


if __name__ == "__main__":
    main()
