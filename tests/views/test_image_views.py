"""Explained images on pages, in files and in terminals."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pictures
from rich.console import Console
from rich.text import Text

import conserva
from browser import Pages, in_a_browser, pixels
from conserva.results.explanation import Explanation
from conserva.tasks.pixels import png
from conserva.views import explanation_figure, patch_overlay, pictures, terminal, terminal_pictures
from conserva.views.colours import AGAINST, FOR
from conserva.views.explanation_page import page
from conserva.views.picture_nodes import counted, label, strongest
from made_up_images import COLUMNS, ROWS, SCORES, dark_to_light, explained


def rasters(text: str) -> list[Pictures.Image]:
    found = re.findall(r'<image href="data:image/png;base64,([^"]+)"', text)
    return [Pictures.open(io.BytesIO(base64.b64decode(one))) for one in found]


# Pages and files


def test_every_patch_has_its_place_its_colour_and_its_number() -> None:
    text = pictures.svg(explained())
    path = r'<path d="M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)H\1Z" fill="(#\w+)"(?: opacity="([\d.]+)")? data-node="(\d)">'
    found = re.findall(path + r"<title>([^<]+)</title>", text)
    assert len(found) == 6
    for left, top, right, bottom, colour, opacity, node, title in found:
        row, column = divmod(int(node), COLUMNS)
        score = SCORES[int(node)]
        size = 280 / COLUMNS  # the longer side is 280 wide
        expected = (column * size, row * size, (column + 1) * size, (row + 1) * size)
        assert tuple(map(float, (left, top, right, bottom))) == pytest.approx(expected, abs=0.01)
        assert colour == "#{:02x}{:02x}{:02x}".format(*(FOR if score > 0 else AGAINST))
        assert float(opacity) == pytest.approx(patch_overlay.DENSEST * abs(score), abs=1e-3)
        assert title == f"r{row + 1}c{column + 1}: {score:+.3f}"


def test_beneath_the_colours_the_image_is_grey_and_light_and_alone_it_is_itself() -> None:
    (under,) = rasters(pictures.svg(explained()))
    levels = np.asarray(under)[::9, ::9]
    assert levels.shape == (20, 30)
    assert np.array_equal(np.asarray(under), levels.repeat(9, 0).repeat(9, 1))  # no blur where 280 are more than 30
    assert levels.min() == patch_overlay.DARKEST
    assert (np.diff(levels[0].astype(int)) >= 0).all()
    assert np.ptp(levels) > 80  # still to be recognised
    first, second = rasters(pictures.row_of_pictures([explained()]))
    assert np.array_equal(np.asarray(first.convert("RGB"))[::9, ::9], dark_to_light())
    assert np.array_equal(np.asarray(second), np.asarray(under))


def test_large_images_keep_their_pixels() -> None:
    image = dark_to_light(200, 300)
    large = explained(picture={"kind": "image", "image": png(image), "grid": [ROWS, COLUMNS]})
    first, _ = rasters(pictures.row_of_pictures([large]))
    assert np.array_equal(np.asarray(first.convert("RGB")), image)


def test_page_needs_nothing_from_outside() -> None:
    text = page([explained(text='<b>"&</b>', target="<s>")])
    assert "img-src data:" in text
    assert not re.search(r"https?://|<b>|<s>|<script", text)
    assert [one for one in re.findall(r'href="([^"]{5})', text) if one != "data:"] == []
    assert "point at or tap a patch for its score" in text
    assert "6 patches" in text
    assert "-1.000<span" in text  # the scale's ends
    assert re.findall(r"<li[^>]*><bdi>(r\dc\d)</bdi>", text) == ["r1c2", "r2c3", "r1c1", "r2c2", "r2c1", "r1c3"]


@in_a_browser
def test_in_a_browser_the_image_is_seen_beneath_the_colours(pages: Pages) -> None:
    html = page([explained(scores=(1.0, 1.0, 0.0, 0.0, -1.0, -1.0))])
    seen = pixels(pages.open(html, width=600, height=500))
    reddish, bluish = seen[:, :, 0] - seen[:, :, 2] > 60, seen[:, :, 2] - seen[:, :, 0] > 60
    grey = (np.ptp(seen, axis=2) < 3) & (seen[:, :, 0] > 115) & (seen[:, :, 0] < 235)
    assert min(reddish.sum(), bluish.sum(), grey.sum()) > 5000
    assert np.ptp(seen[reddish][:, 1]) > 15  # through the colour its ground is seen


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
def test_files(tmp_path: Path, ending: str) -> None:
    one, many = tmp_path / f"one{ending}", tmp_path / f"many{ending}"
    explained().save(one)
    explanation_figure.draw([explained(), explained(method="gi"), explained(text="dog.png")], many)
    assert min(one.stat().st_size, many.stat().st_size) > 2000
    if ending == ".svg":
        assert len(rasters(many.read_text())) == 5  # two inputs, three methods
        assert "+1.000 for" in one.read_text()


def test_figure_has_the_image_in_grey_where_a_score_is_0(tmp_path: Path) -> None:
    explained(scores=(0.0,) * 5 + (1.0,)).save(tmp_path / "one.png")
    seen = np.asarray(Pictures.open(tmp_path / "one.png").convert("RGB")).astype(int)
    inside = seen[len(seen) // 4 : len(seen) // 3, seen.shape[1] // 3 : seen.shape[1] // 2]
    assert np.ptp(inside, axis=2).max() < 3
    assert np.ptp(inside) > 5
    assert (seen[:, :, 0] - seen[:, :, 2] > 60).any()


# The terminal


def printed(one: Explanation, width: int = 110, colours: Any = "truecolor") -> str:
    console = Console(file=io.StringIO(), width=width, color_system=colours, force_terminal=True)
    terminal.show([one], console)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_terminal_has_the_image_and_its_colours_as_half_blocks() -> None:
    plain = [Text.from_ansi(line).plain for line in printed(explained()).splitlines()]
    drawn = [line for line in plain if "▀" in line]
    assert len(drawn) == ROWS * 16 // 2  # 48 blocks for three patches, two rows of pixels in each line
    assert {line.count("▀") for line in drawn} == {96}
    assert {line.count("▀") for line in map(_plain, printed(explained(), width=70).splitlines()) if "▀" in line} == {48}
    assert any("colours from -1.000 (blue, against the target) to +1.000 (red, for it)" in line for line in plain)
    assert any("6 patches, the largest scores:" in line for line in plain)
    narrow = [line for line in map(_plain, printed(explained(), width=20).splitlines()) if "▀" in line]
    assert {line.count("▀") for line in narrow} == {18}


def _plain(line: str) -> str:
    return Text.from_ansi(line).plain


def test_terminal_mixes_colour_and_ground_as_a_page_does() -> None:
    assert patch_overlay.blended((200, 200, 200), 0.0, 1.0) == (200, 200, 200)
    mixed = patch_overlay.blended((200, 200, 200), -2.0, 2.0)
    assert mixed == tuple(round(200 + (end - 200) * patch_overlay.DENSEST) for end in AGAINST)
    console = Console(file=io.StringIO(), width=110, color_system="truecolor", force_terminal=True)
    console.print(terminal_pictures.patches(explained(), 1.0, 110))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    upper, lower = (
        [tuple(map(int, one)) for one in re.findall(r"38;2;(\d+);(\d+);(\d+)", line)] for line in (lines[0], lines[-1])
    )
    assert upper[0][0] < 20  # the image itself: dark at its left
    ground = patch_overlay.grey(Pictures.fromarray(dark_to_light())).convert("RGB").resize((48, 32)).getpixel((47, 0))
    assert upper[-1] == ground  # r1c3 has the score 0
    assert lower[-1] == patch_overlay.blended(ground, 1.0, 1.0)  # and r2c3 the largest


def test_terminal_without_shades_lists_numbers() -> None:
    text = printed(explained(), colours=None)
    assert "▀" not in text
    assert re.search(r"r1c2 +-1\.000", text)


def test_methods_are_compared_without_a_virtual_node() -> None:
    console = Console(file=io.StringIO(), width=110)
    terminal.compare({"exact": explained(), "flow": "does not apply"}, console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "largest scores (patch)" in text
    assert "virtual" not in text
    assert re.search(r"exact +r1c2 -1.000 +r2c3 \+1.000 +r1c1 \+0.500 +\+0.250 +\+0.500 +\+0.750 +\+0.000", text)


def test_words_for_who_does_not_see_it() -> None:
    assert label(explained()).startswith("cat.png: 6 patches coloured by score, exact. Strongest: r1c2 -1.000,")
    assert strongest(explained(), 1) == [("r1c2", -1.0)]
    single = replace(
        explained(), features=("r1c1",), scores=(1.0,), special=(False,), words=(0,), picture={"kind": "image"}
    )
    assert counted(single) == "1 patch"


BAD = [
    ({"grid": [3, 3]}, r"has 3 x 3 patches, but the explanation has scores for 6"),
    ({"image": "no base64!"}, "'cat.png' is not an image: it must be a base64-encoded PNG"),
    ({"image": base64.b64encode(b"no png").decode()}, "is not an image"),
    ({"image": None}, "is not an image"),
    ({"kind": "film"}, "has the unknown kind 'film'; known kinds: 'molecule', 'superpixels', 'image'"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_pictures_that_cannot_be_drawn_are_refused(changes: dict[str, Any], message: str) -> None:
    one = explained()
    with pytest.raises(conserva.Error, match=message):
        pictures.svg(replace(one, picture={**one.picture, **changes}))  # type: ignore[dict-item]
