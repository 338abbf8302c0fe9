"""The section of docs/performance.md about how cost grows with size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conserva.views.markdown import listed, stacked, table
from performance_cells import GI, OUT_OF_MEMORY, Found, absent, duration, made_with, number, reasons, span

FORWARD, OURS = "forward", "ah+ln"
KINDS = ("time", "memory")
LABELS = {"tokens": "{} tokens", "batch": "batch of {}", "layers": "{} layers"}
COUNTED = {"tokens": "the number of tokens", "batch": "the size of the batch", "layers": "the number of layers"}


def scaling(found: Found) -> list[str]:
    """Show what each size costs, and how cost grows with size."""
    sweeps: Mapping[str, Found] = found["sweeps"]
    rows = [row for sweep in sweeps.values() for row in sweep["rows"]]
    names = list(dict.fromkeys(name for row in rows for name in row["contenders"]))
    cells = [
        [_label(name, row["size"]), *(_cost(row["contenders"], one) for one in names)]
        for name, sweep in sweeps.items()
        for row in sweep["rows"]
    ]
    models = [f"{name}, {sweep['what']}" for name, sweep in sweeps.items()]
    return [
        "## Cost against size",
        f"Single calls, with nothing recorded, by what grows: {'; '.join(models)}. The Llama is that of the first "
        f"table, but for its layers where these grow. {made_with(found['machine'])} The forward pass has its time, the "
        "others have multiples of it.",
        table(["size", *names], cells),
        *reasons([row["contenders"] for row in rows]),
        *_fewer_runs(sweeps),
        *_plans(sweeps),
        *_exponents(sweeps, names),
    ]


def _label(sweep: str, first: int, last: int | None = None) -> str:
    """Return one size of a sweep, or the first and the last of several, with its unit."""
    return LABELS[sweep].format(f"{first:,}" if last in (None, first) else f"{first:,} to {last:,}")


def _cost(contenders: Mapping[str, Found], name: str) -> str:
    one, unit = contenders.get(name), contenders[FORWARD]
    if one is None or "ms" not in one:
        return absent(one)
    time = duration(one["ms"]) if name == FORWARD or "ms" not in unit else f"{number(one['ms'] / unit['ms'])} x"
    return stacked(time, "" if one["gib"] is None else f"{number(one['gib'])} GiB")


def _fewer_runs(sweeps: Mapping[str, Found]) -> list[str]:
    """Tell which sizes ran once, and which contenders ran alone."""
    rows = [(name, row) for name, sweep in sweeps.items() for row in sweep["rows"]]
    once = [_label(name, row["size"]) for name, row in rows if not row["rounds"]]
    lines = [f"Measured in a single run: {listed(once)}."] if once else []
    if any(row["contenders"].get(GI, {}).get("skipped") == OUT_OF_MEMORY for _, row in rows):
        lines.append(f"Beyond the first size at which GI runs out of memory only the forward pass and `{OURS}` ran.")
    return lines


def _plans(sweeps: Mapping[str, Found]) -> list[str]:
    """Tell the memory plans of `ah+ln` where it had several."""
    lines = []
    for name, sweep in sweeps.items():
        sizes: dict[str, list[str]] = {}
        for row in sweep["rows"]:
            if OURS in row["plans"]:
                sizes.setdefault(row["plans"][OURS], []).append(f"{row['size']:,}")
        if len(sizes) > 1:
            plans = [f"{plan} at {LABELS[name].format(listed(at))}" for plan, at in sizes.items()]
            lines.append(f"How `ah+ln` ran, as it reports itself: {'; '.join(plans)}.")
    return lines


def _exponents(sweeps: Mapping[str, Found], names: Sequence[str]) -> list[str]:
    """Show the exponents of time and memory, and what they mean."""
    fitted = {name: sweep for name, sweep in sweeps.items() if sweep["exponents"]}
    if not fitted:
        return []
    cells = [
        [one, *(_exponent(name, sweep, one, kind) for name, sweep in fitted.items() for kind in KINDS)] for one in names
    ]
    upper = ", ".join(_label(name, *_sizes(sweep)) for name, sweep in fitted.items())
    return [
        "Cost grows as a power of the size. With an exponent of 1 twice the size costs twice as much, with 2 four "
        "times as much. Exponents are slopes of log cost against log size, by least squares over the upper half of "
        f"the sizes: {upper}. Where a contender did not run at all of these, the sizes it ran at stand beside its "
        "exponent.",
        table(["exponent of", *(f"{name}, {kind}" for name in fitted for kind in KINDS)], cells),
        "\n".join(_meaning(name, sweep) for name, sweep in fitted.items() if OURS in sweep["exponents"]),
    ]


def _sizes(sweep: Found) -> tuple[int, int]:
    """Return the first and the last size from which any exponent of a sweep is made."""
    ends = [one["sizes"] for one in sweep["exponents"].values()]
    return min(first for first, _ in ends), max(last for _, last in ends)


def _own_sizes(name: str, sweep: Found, contender: str) -> str:
    """Return the sizes of a contender's exponents, if they are not those of the sweep."""
    first, last = sweep["exponents"][contender]["sizes"]
    return "" if (first, last) == _sizes(sweep) else _label(name, first, last)


def _exponent(name: str, sweep: Found, contender: str, kind: str) -> str:
    one = sweep["exponents"].get(contender, {})
    return stacked(f"{one[kind]:.2f}", _own_sizes(name, sweep, contender)) if kind in one else "-"


def _meaning(name: str, sweep: Found) -> str:
    """Return in words how the cost of `ah+ln` grows, beside the others."""
    found = sweep["exponents"]
    said = []
    for kind in KINDS:
        if kind in found[OURS]:
            others = [_doubled(name, sweep, one, kind) for one in (FORWARD, GI) if kind in found.get(one, {})]
            said.append(
                f"The {kind} of `ah+ln` grows {_growth(found[OURS][kind], COUNTED[name])}: twice the size costs "
                f"{number(2 ** found[OURS][kind])} times as much{f' ({listed(others)})' if others else ''}."
            )
    first, last = _sizes(sweep)
    ratios = [
        row["to forward"][OURS] for row in sweep["rows"] if first <= row["size"] <= last and OURS in row["to forward"]
    ]
    return f"- **{name}.** {' '.join(said)} There it takes {span(ratios)} times as long as the forward pass."


def _doubled(name: str, sweep: Found, contender: str, kind: str) -> str:
    """Return how much more another contender costs at twice the size."""
    times = f"{number(2 ** sweep['exponents'][contender][kind])} times"
    spoken = "the forward pass" if contender == FORWARD else contender
    own = _own_sizes(name, sweep, contender)
    return f"{spoken} {times}{f' at {own}' if own else ''}"


def _growth(exponent: float, counted: str) -> str:
    """Return an exponent in words, with a tenth of tolerance."""
    if exponent < 0.9:
        return f"more slowly than {counted}"
    if exponent <= 1.1:
        return f"in proportion to {counted}"
    if exponent < 1.9:
        return f"faster than {counted} but more slowly than its square"
    return f"as the square of {counted}" if exponent <= 2.1 else f"faster than the square of {counted}"


def evaluation(found: Found) -> list[str]:
    """Show what a sentence costs in evaluations of few and of many."""
    rows, methods = found["rows"], [f"`{name}`" for name in found["methods"]]
    cells = [[f"{row['sentences']:,}", duration(row["ms"]), f"{number(row['gib'])} GiB"] for row in rows]
    return [
        "## Evaluations of many sentences",
        f"`conserva.evaluate` of the bundled model of sentiment by {len(methods)} methods ({', '.join(methods)}), per "
        f"sentence: the attributions, the curves, and the intervals at the end. {made_with(found['machine'])}",
        table(["sentences", "time for each", "memory above the weights"], cells),
    ]
