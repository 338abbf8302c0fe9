"""Pictures: every node in the colour of its score, with its number, and the virtual node on none of them."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

import conserva
from conserva.datasets.molecules import parsed
from conserva.engine.ledger import Ledger
from conserva.results.explanation import Explanation
from conserva.views import colours, explanation_figure, pictures, terminal_pictures
from conserva.views.explanation_page import fragment, page
from conserva.views.molecule import molecule_svg
from conserva.views.picture_nodes import node_scores
from conserva.views.superpixels import contours, region_paths, superpixels_svg
from conserva.views.vector_drawing import Shape, TextLine, circle, commands, extent
from conserva.views.wording import number
from drawn import BOTH, LARGE, VIRTUAL, digit, image, molecule, regions_with_corners

pytest.importorskip("rdkit.Chem.Draw.rdMolDraw2D", reason="RDKit cannot draw here", exc_type=ImportError)

SVG = "{http://www.w3.org/2000/svg}"
MOLECULES = [
    "C", "CCO", "CCO.[Na+]", "ClCCBr", "c1cc[nH]c1", "[H]OC", "[H][H]", "F/C=C/F", "C[C@H](N)C(=O)[O-]", "*CC[Cu+2]",
    "[13CH3:7]c1ccc(cc1)S(=O)(=O)N", "C%10CCCC%10", "[Se]1C=CC=C1", "C[N+](C)(C)[O-]", LARGE,
]  # fmt: skip


def drawn_nodes(svg: str) -> dict[int, tuple[str, str, str]]:
    """Return path, colour and tooltip of every node."""
    found = [element for element in ElementTree.fromstring(svg).iter(f"{SVG}path") if "data-node" in element.attrib]
    nodes = {
        int(one.attrib["data-node"]): (one.attrib["d"], one.attrib["fill"], one.findtext(f"{SVG}title") or "")
        for one in found
    }
    assert len(found) == len(nodes)
    return nodes


# Colours and numbers


@BOTH
@pytest.mark.parametrize("scale", [None, 2.0, 0.01])
def test_every_node_has_the_colour_and_the_number_of_its_score(one: Explanation, scale: float | None) -> None:
    for shown in (one, one.visible()):
        nodes = drawn_nodes(pictures.svg(shown, scale))
        assert sorted(nodes) == [word for word in one.words if word is not None]
        for name, node, score in list(zip(one.features, one.words, one.scores, strict=True))[1:]:
            _, fill, title = nodes[node]
            assert fill == colours.hexadecimal(colours.shade(score, scale or 0.5))
            assert title == f"{name}{f' (atom {node})' if len(name) < 3 else ''}: {number(score)}"


@BOTH
def test_virtual_node_is_reported_apart(one: Explanation) -> None:
    """Its score is the largest: it neither sets the scale nor is it in the picture."""
    assert colours.scale_of([one]) == 0.5
    other = replace(one, scores=(-99.0, *one.scores[1:]))
    assert pictures.svg(one) == pictures.svg(other) == pictures.svg(one.visible())
    for shown, said in ((one, "virtual node +0.777"), (other, "virtual node -99.000")):
        assert said in fragment([shown])
        assert said in pictures.card_svg(shown)
        assert said in pictures.gallery([shown])
    for view in (fragment, lambda some: pictures.card_svg(some[0]), pictures.gallery):
        assert "virtual node" not in view([one.visible()])


def test_scale_of_texts_is_as_before() -> None:
    assert colours.scale_of([replace(molecule(), picture=None)]) == VIRTUAL


@BOTH
def test_scores_of_zero(one: Explanation) -> None:
    one = replace(one, scores=(0.0,) * len(one.scores), ledger=None)
    for text in (pictures.svg(one), pictures.card_svg(one), pictures.gallery([one]), page([one])):
        assert "nan" not in text.replace("virtual", "").lower()
    assert {fill for _, fill, _ in drawn_nodes(pictures.svg(one)).values()} == {"#ffffff"}


# Molecules


@pytest.mark.parametrize("smiles", MOLECULES)
def test_molecules_of_every_kind(smiles: str) -> None:
    one = molecule(smiles)
    svg = molecule_svg(one)
    nodes = drawn_nodes(svg)
    assert len(nodes) == parsed(smiles).GetNumAtoms()
    _, _, width, height = map(float, ElementTree.fromstring(svg).attrib["viewBox"].split())
    assert 20 < width < 460
    assert 20 < height < 340
    centres = [middle(path) for path, _, _ in nodes.values()]
    assert len({(round(x), round(y)) for x, y in centres}) == len(nodes)
    coloured = terminal_pictures.molecule(one, 0.5)
    assert coloured.plain == smiles
    assert len(coloured.spans) == sum(score != 0 for score in one.visible().scores)  # no colour at 0
    assert len(svg) < 40_000


def middle(path: str) -> tuple[float, float]:
    points = [point for _, some in commands(path) for point in some]
    return sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)


def test_discs_lie_on_their_atoms() -> None:
    """Neighbours are one bond apart, and others are not."""
    smiles = "CC(=O)Nc1ccc(Cl)cc1"
    found = parsed(smiles)
    centres = {node: middle(path) for node, (path, _, _) in drawn_nodes(molecule_svg(molecule(smiles))).items()}
    bonds = {frozenset((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx())) for bond in found.GetBonds()}
    near, far = [], []
    for a, (x, y) in centres.items():
        for b, (to_x, to_y) in centres.items():
            if a < b:
                (near if frozenset((a, b)) in bonds else far).append(((x - to_x) ** 2 + (y - to_y) ** 2) ** 0.5)
    assert max(near) < 1.2 * min(near)
    assert min(far) > 1.2 * max(near)


def test_hydrogens_that_are_no_atoms_of_the_explanation_are_not_drawn() -> None:
    """RDKit shows the sense of such stereo centres with hydrogens of its own, unless it is told not to."""
    svg = molecule_svg(molecule("[C@@H]12CCCC[C@H]1CCCC2"))
    shapes = [element.attrib for element in ElementTree.fromstring(svg).iter(f"{SVG}path")]
    assert [one for one in shapes if "stroke" not in one] == []  # letters are filled alone


def test_a_molecule_is_no_larger_than_asked() -> None:
    sizes = []
    for size in ((420, 300), (200, 100)):
        _, _, width, height = ElementTree.fromstring(molecule_svg(molecule(LARGE), size=size)).attrib["viewBox"].split()
        assert float(width) < size[0] + 30
        assert float(height) < size[1] + 30
        sizes.append(float(width))
    assert sizes[1] < 0.6 * sizes[0]


# Superpixels


def test_outlines_of_regions_enclose_their_pixels() -> None:
    regions = regions_with_corners()
    paths = region_paths(regions)
    assert len(paths) == max(map(max, regions)) + 1
    for y in range(28):
        for x in range(28):
            around = [node for node, path in paths.items() if winding(path, x + 0.5, y + 0.5)]
            assert around == [regions[y][x]]


def winding(path: str, x: float, y: float) -> int:
    """Return how often a path of straight lines goes round a point: what it fills, by the rule that is not even-odd."""
    turns, start, here = 0, (0.0, 0.0), (0.0, 0.0)
    for command, points in commands(path):
        there = start if command == "Z" else points[-1]
        if command == "M":
            start = there
        elif (here[1] > y) != (there[1] > y) and here[0] + (y - here[1]) / (there[1] - here[1]) * (
            there[0] - here[0]
        ) > x:
            turns += 1 if there[1] > here[1] else -1
        here = there
    return turns


def test_one_path_for_each_superpixel() -> None:
    one = image()
    svg = superpixels_svg(one)
    assert len(drawn_nodes(svg)) == len(one.scores) - 1
    assert len(svg) < 40_000


@pytest.mark.parametrize("worst", ["checks", "one pixel each"])
def test_outlines_of_regions_that_are_odd(worst: str) -> None:
    regions = [[(x + y) % 2 if worst == "checks" else 6 * y + x for x in range(6)] for y in range(6)]
    paths = region_paths(regions)
    for y in range(6):
        for x in range(6):
            assert [node for node, path in paths.items() if winding(path, x + 0.5, y + 0.5)] == [regions[y][x]]


def test_contours_lie_where_the_image_has_the_level() -> None:
    found = contours(digit(), 128)
    distances = [[((x - 13.5) ** 2 + (y - 13.5) ** 2) ** 0.5 for x, y in loop] for loop in found]
    assert len(found) == 2  # both sides of the ring
    inner, outer = sorted(distances, key=min)
    reach = (255 - 128) / 60
    assert inner == pytest.approx([7 - reach] * len(inner), abs=0.2)
    assert outer == pytest.approx([7 + reach] * len(outer), abs=0.2)
    assert contours([[0] * 5] * 5, 128) == []
    assert len(contours([[255] * 5] * 5, 128)) == 1  # bright up to the border
    assert len(contours([[255, 0], [0, 255]], 128)) in (1, 2)


def test_input_is_drawn_without_colours() -> None:
    for one in (molecule(), image()):
        svg = pictures.gallery([one])
        assert len(re.findall("data-node", svg)) == len(one.scores) - 1  # of the method, and none of the input
        greys = set(re.findall(r'fill="(#[0-9a-f]{6})"', svg))
        assert len(greys) > 3


# Rows and galleries


def test_a_row_has_the_input_and_every_method_on_its_own_scale() -> None:
    ones = [molecule(), molecule(method="gae"), molecule(method="rollout")]
    ones[1] = replace(ones[1], scores=tuple(score * 10 for score in ones[1].scores))
    svg = pictures.row_of_pictures(ones)
    texts = [element.text for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert [text for text in texts if text in ("input", "exact", "gae", "rollout")] == [
        "input",
        "exact",
        "gae",
        "rollout",
    ]
    assert [text for text in texts if text and "±" in text] == [
        "±0.500 · virtual node +0.777",
        "±5.000 · virtual node +7.770",
        "±0.500 · virtual node +0.777",
    ]
    fills = re.findall(r'fill="(#[0-9a-f]{6})"[^>]*data-node', svg)
    count = len(ones[0].scores) - 1
    assert fills[:count] == fills[count : 2 * count] == fills[2 * count :]
    with pytest.raises(conserva.Error, match=r"2 inputs.*gallery\(\)"):
        pictures.row_of_pictures([molecule("CCO"), molecule("CCN")])


def test_a_gallery_has_a_row_for_each_input_and_a_column_for_each_method() -> None:
    ones = [molecule(smiles, method=method) for smiles in ("CCO", "CCN") for method in ("exact", "gae", "rollout")]
    del ones[3]  # CCN without exact: its place stays empty
    drawing = pictures.gallery_drawing(ones)
    places: dict[str, list[tuple[float, float]]] = {}
    for part in drawing.parts:
        if isinstance(part, pictures.Inset):
            name = next(words.text for words in part.drawing.parts if isinstance(words, pictures.TextLine))
            places.setdefault(name, []).append((part.x, part.y))
    assert {name: len(some) for name, some in places.items()} == {"input": 2, "exact": 1, "gae": 2, "rollout": 2}
    for some in places.values():
        assert len({x for x, _ in some}) == 1
        assert len({y for _, y in some}) == len(some)
    assert places["input"][0] < places["exact"][0] < places["gae"][0] < places["rollout"][0]


def test_rows_that_are_too_wide_go_on_below() -> None:
    ones = [image(method=f"method {i}") for i in range(20)]
    drawing = pictures.gallery_drawing(ones)
    placed = [part for part in drawing.parts if isinstance(part, pictures.Inset)]
    assert len(placed) == 21
    assert len({(part.x, part.y) for part in placed}) == 21
    assert max(part.x + part.drawing.width for part in placed) <= drawing.width <= pictures.ACROSS + 40
    assert max(part.y + part.drawing.height for part in placed) <= drawing.height


def test_the_same_method_twice_is_drawn_twice() -> None:
    assert pictures.gallery([molecule("CCO"), molecule("CCO", target="other")]).count(">input<") == 2
    assert pictures.gallery([molecule("CCO"), molecule("CCO")]).count(">input<") == 2


def test_circles_are_round() -> None:
    path = circle(10, 20, 5)
    points = [some[-1] for command, some in commands(path) if command != "Z"]
    assert [((x - 10) ** 2 + (y - 20) ** 2) ** 0.5 for x, y in points] == pytest.approx([5] * 5)
    (x, y), a, b, (to_x, to_y) = points[0], *next(some for command, some in commands(path) if command == "C")
    half = [
        (start + 3 * one + 3 * two + end) / 8 for start, one, two, end in ((x, a[0], b[0], to_x), (y, a[1], b[1], to_y))
    ]
    assert ((half[0] - 10) ** 2 + (half[1] - 20) ** 2) ** 0.5 == pytest.approx(5, abs=0.01)
    assert extent([pictures.Shape("M0 1H5V9Z", width=2)]) == (-1, 0, 6, 10)


# What is refused


@pytest.mark.parametrize(
    ("one", "says"),
    [
        (replace(molecule(), picture={"kind": "sound"}), "'sound'"),
        (replace(molecule(), picture={}), "None"),
        (replace(molecule(), picture={"kind": "molecule"}), "'smiles'"),
        (replace(image(), picture={"kind": "superpixels", "image": digit()}), "'regions'"),
        (replace(molecule(), picture={"kind": "molecule", "smiles": "CC"}), "2 atoms"),
        (replace(molecule(), picture={"kind": "molecule", "smiles": "C("}), "not a valid SMILES"),
        (replace(image(), picture={**(image().picture or {}), "image": digit()[1:]}), "27 rows"),
        (replace(image(), picture={**(image().picture or {}), "regions": [[0] * 28] * 28}), "1 superpixels"),
        (replace(molecule(), picture=None), "no picture"),
    ],
)
def test_pictures_that_are_refused(one: Explanation, says: str) -> None:
    with pytest.raises(conserva.Error, match=says):
        pictures.svg(one)
    with pytest.raises(conserva.Error, match=says):
        pictures.gallery([one])


def test_drawings_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(conserva.Error, match="'molecule', not 'superpixels'"):
        superpixels_svg(molecule())
    with pytest.raises(conserva.Error, match="in a separate call"):
        explanation_figure.draw([molecule(), replace(molecule(), picture=None)], tmp_path / "both.png")
    with pytest.raises(conserva.Error, match="no explanation"):
        pictures.gallery([])
    assert node_scores(molecule("CCO")) == {0: -0.5, 1: 0.2, 2: -0.2}


@BOTH
def test_the_ledger_of_a_card_is_a_waterfall_that_ends_at_the_output(one: Explanation) -> None:
    one = replace(one, ledger=Ledger(4.0, 1.0, -2.0, 0.5), output=3.5)
    parts = pictures.card(one).parts
    texts = [part.text for part in parts if isinstance(part, TextLine)]
    assert texts[-10:] == [
        *("inputs", "+4.000", "positions", "+1.000", "biases", "-2.000", "gap", "+0.500"),
        *("= output", "+3.500"),
    ]
    arrows = [list(commands(part.path)) for part in parts if isinstance(part, Shape) and part.path.count("L") == 4]
    ends = [(points[0][1][0][0], points[2][1][0][0]) for points in arrows]  # where each begins, and its point
    assert len(ends) == 5
    for (_, end), (start, _) in pairwise(ends[:4]):
        assert end == start
    assert [end > start for start, end in ends] == [True, True, False, True, True]
    assert ends[-1] == (ends[0][0], ends[3][1])


@BOTH
def test_of_scores_without_a_sign_no_picture_says_for_and_against(one: Explanation) -> None:
    one = replace(one, scores=tuple(map(abs, one.scores)), ledger=None, method="rollout")
    drawn = [pictures.card_svg(one), pictures.gallery([one])]
    assert not any("against" in text or "±" in text for text in drawn)
    both = pictures.gallery([one, replace(one, scores=tuple(-score for score in one.scores), method="gi")])
    assert "against" in both
    assert "without a sign: rollout" in re.sub(r"</text>\s*<text[^>]*>", " ", both)


def test_of_several_inputs_each_keeps_its_line() -> None:
    methods = [f"random:seed={seed}" for seed in range(12)]
    shown = [replace(molecule(smiles), method=method) for smiles in (LARGE, "CCO") for method in methods]
    placed = [part for part in pictures.gallery_drawing(shown).parts if hasattr(part, "drawing")]
    assert len({part.y for part in placed}) == 2
    assert len(placed) == 2 * 13


def test_a_system_on_which_rdkit_cannot_draw_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "rdkit.Chem.Draw", None)
    with pytest.raises(conserva.Error, match=r"cannot draw on this system.*libxrender1"):
        molecule_svg(molecule("CCO"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_a_figure_that_cannot_be_written_raises_what_the_system_says(ending: str, tmp_path: Path) -> None:
    from conserva.views.matplotlib_figures import new_figure, save_figure

    (tmp_path / f"x{ending}").symlink_to("/dev/full")
    figure = new_figure(2, 2)
    figure.subplots().plot([i * i % 97 for i in range(5000)])  # more than is written at a time
    with pytest.raises(OSError, match="No space left on device"):
        save_figure(figure, tmp_path / f"x{ending}")
