"""Draw which parts of the package import which, lazy imports included.

    python scripts/import_graph.py docs/layers.svg                        # of this tree
    python scripts/import_graph.py before.svg --src /other/checkout/src   # of another one

A part is a folder or a file in `src/conserva`. Parts stand above what they import. Those that import each other,
directly or through others, are red.
"""

from __future__ import annotations

import argparse
import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import networkx as nx

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "conserva"


def modules(source: Path) -> dict[str, Path]:
    """Return the files of the package by module name."""
    found = {}
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that a module imports, anywhere in its code."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*package[: len(package) - node.level + 1], *(node.module or "").split(".")]
            start = ".".join(filter(None, base))
            yield from (inner if (inner := f"{start}.{one.name}") in known else start for one in node.names)


def graph_of(source: Path) -> Any:
    """Return the parts of the package, with the number of imports from one to another."""
    known, graph = modules(source), nx.DiGraph()
    for name, path in known.items():
        part = name.split(".")[1] if "." in name else ""
        for other in imports(name, path, known):
            target = other.split(".")[1] if "." in other else ""
            if part and target and part != target:
                count = graph.get_edge_data(part, target, {"count": 0})["count"]
                graph.add_edge(part, target, count=count + 1)
    return graph


def layers_of(graph: Any) -> list[list[list[str]]]:
    """Return layers, the lowest first, of groups of parts that import each other; most groups are one part."""
    groups = nx.condensation(graph)
    height: dict[int, int] = {}
    for group in reversed(list(nx.topological_sort(groups))):
        height[group] = 1 + max((height[other] for other in groups.successors(group)), default=-1)
    layers: dict[int, list[list[str]]] = defaultdict(list)
    for group, level in height.items():
        layers[level].append(sorted(groups.nodes[group]["members"]))
    return [sorted(layers[level]) for level in sorted(layers)]


def draw(graph: Any, path: Path) -> None:
    """Draw the graph, its layers one above the other."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    layers = layers_of(graph)
    place: dict[str, tuple[float, float]] = {}
    figure = Figure(figsize=(11, 1 + 0.75 * sum(max(1, max(map(len, layer)) // 6) for layer in layers)))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.axis("off")
    y = 0.0
    for layer in layers:
        names = [(name, len(group) > 1) for group in layer for name in group]
        rows = [names[i : i + 8] for i in range(0, len(names), 8)]
        for row in rows:
            for i, (name, is_tangled) in enumerate(row):
                place[name] = ((i + 1) / (len(row) + 1), y)
                colour = "#b2182b" if is_tangled else "#333333"
                box = {"boxstyle": "round", "facecolor": "white", "edgecolor": colour}
                axes.text(*place[name], name, ha="center", va="center", color=colour, bbox=box, zorder=3)
            y += 1
    for part, target, data in graph.edges(data=True):
        (x, top), (end, bottom) = place[part], place[target]
        style = {"arrowstyle": "-", "color": "#2166ac", "alpha": 0.25, "linewidth": min(3, 0.4 + data["count"] / 12)}
        axes.annotate("", (end, bottom), (x, top), arrowprops=style, zorder=1)
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.7, y - 0.3)
    with rc_context({"svg.hashsalt": "layers"}):
        figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    """Draw the graph, and print what it holds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="the picture: .svg, .png or .pdf")
    parser.add_argument("--src", type=Path, default=ROOT / "src", help="the folder that holds the package")
    given = parser.parse_args()
    graph = graph_of(given.src)
    tangled = [group for layer in layers_of(graph) for group in layer if len(group) > 1]
    draw(graph, given.path)
    print(f"{len(graph)} parts, {graph.number_of_edges()} pairs of parts that import, {len(layers_of(graph))} layers")
    for group in tangled:
        print(f"{len(group)} parts import each other in a circle: {', '.join(group)}")


if __name__ == "__main__":
    main()
