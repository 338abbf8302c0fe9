"""Results in notebooks: they follow the notebook's theme, whatever the system's is, and can be read in all of them."""

from __future__ import annotations

import pytest

from browser import Pages, in_a_browser
from conserva import Comparison, Explanations
from conserva.views.explanation_page import page
from made_up_explanations import explanation
from made_up_generations import generation
from made_up_images import explained
from made_up_traces import SHOWN
from notebook_pages import THEMES, contrasts, notebook

ONE = explanation(["[CLS]", *(f"word{i}" for i in range(11))], unknown=(*(False,) * 11, True))
OUTPUTS = {
    "an explanation": ONE,
    "a picture": explained(),
    "a comparison": Comparison((ONE, explanation(["[CLS]", "b"], method="gi")), {"a-flow": "why"}),
    "a list": Explanations((ONE,) * 7),
    "a trace": SHOWN,
    "a generation, in a frame": generation(),
}


@in_a_browser
@pytest.mark.parametrize("theme", THEMES)
def test_results_follow_the_notebook_and_not_the_system(theme: str, pages: Pages) -> None:
    is_dark = THEMES[theme][2]
    html = notebook(theme, *(one._repr_html_() for one in OUTPUTS.values()))
    # The system has the other theme; equal themes are the easy case.
    found = contrasts(pages.open(html, dark=not is_dark))
    assert len(found) == len(OUTPUTS)
    for name, one in zip(OUTPUTS, found, strict=True):
        assert one["count"] > 10, name
        assert one["lowest"] >= 4.5, (name, one["where"])
        assert one["light"] is not is_dark, name


@in_a_browser
def test_a_page_by_itself_follows_the_system(pages: Pages) -> None:
    opened = pages.open(page([ONE]))
    for scheme in ("light", "dark"):
        opened.emulate_media(color_scheme=scheme)
        (one,) = contrasts(opened)
        assert one["light"] == (scheme == "light")
        assert one["lowest"] >= 4.5, one["where"]
