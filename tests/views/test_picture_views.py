"""Pictures within pages, files and terminals."""

import html.parser
import io
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

from browser import Pages, in_a_browser
from conserva.results.explanation import Explanation
from conserva.views import colours, explanation_figure, pictures, terminal, terminal_pictures
from conserva.views.explanation_page import page
from conserva.views.picture_nodes import strongest
from conserva.views.wording import number
from drawn import BOTH, LARGE, VIRTUAL, image, molecule

pytest.importorskip("rdkit.Chem.Draw.rdMolDraw2D", reason="RDKit cannot draw here", exc_type=ImportError)

# The page


class Reader(html.parser.HTMLParser):
    """Collects numbers, and checks that elements close and that nothing could load or run."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.scores: list[float] = []
        self.nodes = 0
        self._is_value = False

    def handle_starttag(self, tag: str, attrs) -> None:
        found = dict(attrs)
        assert tag not in ("script", "img", "image", "link", "iframe", "use", "foreignobject")
        assert not [name for name in found if name.startswith("on") or name.split(":")[-1] in ("src", "href")]
        assert "url(" not in found.get("style", "")
        self.nodes += "data-node" in found
        self._is_value = tag == "span" and self.open[-1:] == ["li"] and "class" not in found
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_data(self, data: str) -> None:
        if self._is_value:
            self.scores.append(float(data))
            self._is_value = False

    def handle_startendtag(self, tag: str, attrs) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@BOTH
def test_page_shows_the_picture_and_lists_its_nodes(one: Explanation) -> None:
    one = replace(one, text='<b>"&</b>', method="<i>", target="<s>")
    for text in (page([one]), one._repr_html_()):
        reader = Reader()
        reader.feed(text)
        assert reader.open == []
        assert reader.nodes == len(one.scores) - 1
        ordered = sorted(one.scores[1:], key=lambda score: -abs(score))
        assert [abs(score) for score in reader.scores] == pytest.approx([*map(abs, ordered)])
        assert f'data-score="{VIRTUAL:+.3f}"' in text
        assert not re.search(r"https?://|<b>|<i>|<s>", text)
        assert 'role="img" aria-label="&lt;b&gt;' in text
    kind = "an atom" if one.picture["kind"] == "molecule" else "a superpixel"  # type: ignore[index]
    assert f"point at or tap {kind} for its score" in page([one])


@in_a_browser
def test_in_a_browser_every_node_is_there(pages: Pages) -> None:
    opened = pages.open(page([molecule(LARGE), image()]))
    count = len(molecule(LARGE).scores) + len(image().scores) - 2
    assert opened.locator("[data-node]").count() == opened.locator("[data-node] > title").count() == count


# Files


STARTS = {".png": b"\x89PNG", ".svg": b"<svg", ".pdf": b"%PDF", ".html": b"<!doctype", ".json": b"{"}


@BOTH
@pytest.mark.parametrize("ending", STARTS)
def test_every_ending_is_written(tmp_path: Path, one: Explanation, ending: str) -> None:
    path = one.save(tmp_path / f"one{ending}")
    assert path.read_bytes().startswith(STARTS[ending])
    if ending == ".json":
        assert pictures.svg(Explanation.load(path)) == pictures.svg(one)


@BOTH
@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_figure_of_several_methods(tmp_path: Path, one: Explanation, ending: str) -> None:
    path = tmp_path / f"several{ending}"
    explanation_figure.draw([replace(one, method=rf"$\frac{i}$") for i in range(3)], path)  # a name is no formula
    assert path.read_bytes().startswith(STARTS[ending])


def test_a_figure_has_the_colours_of_the_page(tmp_path: Path) -> None:
    from matplotlib.image import imread

    path = tmp_path / "one.png"
    one = image()
    explanation_figure.draw([one], path)
    pixels = {tuple(pixel) for row in (imread(path)[..., :3] * 255).round().astype(int).tolist() for pixel in row}
    shades = {colours.shade(score, 0.5) for score in one.scores[1:]}
    assert shades <= pixels
    assert len(shades) == 11


# The terminal


def printed(ones: Sequence[Explanation], width: int = 100, **settings: object) -> str:
    out = io.StringIO()
    terminal.show(ones, Console(file=out, width=width, **settings))  # type: ignore[arg-type]
    return out.getvalue()


COLOURS = {"force_terminal": True, "color_system": "truecolor"}


@BOTH
@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("settings", [COLOURS, {"color_system": None}], ids=["colours", "plain"])
def test_terminal_keeps_to_its_width(one: Explanation, width: int, settings: dict) -> None:
    out = io.StringIO()
    console = Console(file=out, width=width, **settings)
    terminal.show([one], console)
    terminal.compare({"exact": one, "gae": replace(one, method="gae"), "flow": "needs attention maps"}, console)
    lines = Text.from_ansi(out.getvalue()).plain.split("\n")
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert text.count("+0.777") == 3
    assert "needs attention maps" in text or width == 40  # where it is broken into lines


def test_superpixels_as_half_blocks() -> None:
    one = image()
    for width, blocks_a_line, lines in ((59, 56, 14), (58, 28, 28), (30, 28, 28)):
        text = Text.from_ansi(printed([one], width, **COLOURS)).plain
        painted = [line for line in text.split("\n") if "▀" in line]
        assert [line.count("▀") for line in painted] == [blocks_a_line] * lines
    regions = one.picture["regions"]  # type: ignore[index]
    block = terminal_pictures.half_blocks(
        [[colours.shade(one.scores[1 + node], 0.5) for node in row] for row in regions]
    )
    styles = [str(span.style) for span in block.spans]
    place = 5 * 28 + 9
    upper, lower = (colours.hexadecimal(colours.shade(one.scores[1 + regions[y][9]], 0.5)) for y in (10, 11))
    assert styles[place] == f"{upper} on {lower}"
    assert terminal_pictures.half_blocks([[(0, 0, 0)]]).plain == "▀"  # a last row alone


def test_terminal_without_shades_lists_the_largest_scores() -> None:
    for settings in ({"color_system": None}, {"force_terminal": True, "color_system": "standard"}):
        text = Text.from_ansi(printed([image()], **settings)).plain
        assert "▀" not in text
        assert len(re.findall(r"superpixel \d+ +[+-]0\.\d{3}", text)) == 10
        assert re.search(r"virtual node +\+0\.777", text)
        assert "virtual node" not in printed([image().visible()], **settings)


def test_comparison_has_short_rows() -> None:
    out = io.StringIO()
    terminal.compare({"exact": molecule(), "gae": molecule(method="gae").visible()}, Console(file=out, width=80))
    top = "  ".join(f"{name} {number(score)}" for name, score in strongest(molecule(), 3, short=True))
    assert out.getvalue().count(top) == 2
    assert "largest scores (atom)" in out.getvalue()


def test_atoms_of_the_smiles_have_their_colours_in_the_terminal() -> None:
    one = molecule("Clc1cc(Br)cnc1[C@@H](C)[O-]")
    line = terminal_pictures.molecule(one, 0.5)
    atoms = ["Cl", "c", "c", "c", "Br", "c", "n", "c", "[C@@H]", "C", "[O-]"]
    scored = [(atom, score) for atom, score in zip(atoms, one.scores[1:], strict=True) if score]
    assert [line.plain[span.start : span.end] for span in line.spans] == [atom for atom, _ in scored]
    assert [str(span.style) for span in line.spans] == [colours.terminal_style(score, 0.5) for _, score in scored]
    apart = replace(one, picture={"kind": "molecule", "smiles": "CC"})  # as if a SMILES were not understood
    assert terminal_pictures.molecule(apart, 0.5).plain == "Cl C C C Br C N C C C O"


@BOTH
def test_on_a_page_every_node_can_be_tapped_and_its_title_is_shown_below_the_drawing(one: Explanation) -> None:
    drawn, alone = str(pictures.svg(one, in_page=True)), str(pictures.svg(one))
    titles = re.findall(r'<path [^>]*tabindex="-1" data-node="\d+"><title>([^<]+)</title></path>\n<text', drawn)
    lines = re.findall(r'<text x="(\S+)" y="(\S+)" font-size="(\S+)"[^>]* class="title">([^<]+)</text>', drawn)
    assert len(titles) == len(one.scores) - 1
    assert titles == [title for *_, title in lines]
    ((left, top, zoom),) = re.findall(r'"translate\((\S+) (\S+)\)(?: scale\((\S+)\))?"', drawn)
    width = float(re.findall(r'viewBox="0 0 (\S+) ', drawn)[0])
    below = float(re.findall(r'viewBox="0 0 \S+ (\S+)"', alone)[0])
    for x, y, size, _ in lines:
        assert float(size) * float(zoom or 1) == pytest.approx(13, rel=1e-3)
        assert float(left) + float(zoom or 1) * float(x) == pytest.approx(width / 2, abs=0.5)
        assert float(top) + float(zoom or 1) * float(y) > below
    assert not re.search('tabindex|class="title"', alone)
