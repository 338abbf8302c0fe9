"""Results in notebooks: they follow the notebook's theme, whatever the system's is, and can be read in all of them."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from conserva import Comparison, Explanations
from made_up_explanations import BROWSER, explanation, in_browser
from made_up_generations import generation
from made_up_images import explained
from made_up_traces import SHOWN
from notebook_pages import THEMES, notebook

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine")

DARK_SYSTEM = ("--force-dark-mode", "--blink-settings=preferredColorScheme=0")
ONE = explanation(["[CLS]", *(f"word{i}" for i in range(11))], unknown=(*(False,) * 11, True))
OUTPUTS = {
    "an explanation": ONE,
    "a picture": explained(),
    "a comparison": Comparison((ONE, explanation(["[CLS]", "b"], method="gi")), {"a-flow": "why"}),
    "a list": Explanations((ONE,) * 7),
    "a trace": SHOWN,
    "a generation, in a frame": generation(),
}


def measured(folder: Path, theme: str, *options: str) -> list[dict[str, Any]]:
    path = folder / "notebook.html"
    path.write_text(notebook(theme, *(one._repr_html_() for one in OUTPUTS.values())), encoding="utf-8")
    found = re.search('<pre id="result">(.*?)</pre>', in_browser(path, "--dump-dom", *options), re.DOTALL)
    assert found
    result: list[dict[str, Any]] = json.loads(unescape(found[1]))
    return result


@pytest.mark.parametrize("theme", THEMES)
def test_results_follow_the_notebook_and_not_the_system(theme: str, tmp_path: Path) -> None:
    is_dark = THEMES[theme][2]
    # The system has the other theme; equal themes are the easy case.
    found = measured(tmp_path, theme, *(() if is_dark else DARK_SYSTEM))
    assert len(found) == len(OUTPUTS)
    for name, one in zip(OUTPUTS, found, strict=True):
        assert one["count"] > 10, name
        assert one["lowest"] >= 4.5, (name, one["where"])
        assert one["light"] is not is_dark, name


def test_a_page_by_itself_follows_the_system(tmp_path: Path) -> None:
    from conserva.views.explanation_page import page
    from notebook_pages import CONTRASTS

    path = tmp_path / "page.html"
    text = re.sub('<meta http-equiv="Content-Security-Policy".*?>', "", page([ONE]), flags=re.DOTALL)
    path.write_text(text.replace("</body>", f"{CONTRASTS}</body>"), encoding="utf-8")
    for options, is_light in (((), True), (DARK_SYSTEM, False)):
        found = re.search('<pre id="result">(.*?)</pre>', in_browser(path, "--dump-dom", *options), re.DOTALL)
        assert found
        (one,) = json.loads(unescape(found[1]))
        assert one["light"] is is_light
        assert one["lowest"] >= 4.5, one["where"]
