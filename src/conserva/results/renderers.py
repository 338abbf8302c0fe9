"""The registry of renderers: the function of `conserva.views` that renders each result in each format.

Views are named as strings and imported on first use, so that the results do not depend on them. The same holds for the
functions of `conserva.integrations` that convert a result to an object of another library.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar


@dataclass(frozen=True)
class Renderer:
    """A function of `conserva.views` that takes one result."""

    package: ClassVar[str] = "conserva.views"

    name: str
    """The function, as "module:function"."""

    def __call__(self, result: Any, *arguments: Any, **options: Any) -> Any:
        module, _, name = self.name.partition(":")
        return getattr(import_module(f"{self.package}.{module}"), name)(self._given(result), *arguments, **options)

    def _given(self, result: Any) -> Any:
        return result


class ListRenderer(Renderer):
    """A function of `conserva.views` that takes a list of results."""

    def _given(self, result: Any) -> Any:
        return [result]


class Converter(Renderer):
    """A function of `conserva.integrations` that takes one result and returns an object of another library."""

    package = "conserva.integrations"


TEXT_FORMATS = {".html": "page"}
"""Ending of a file -> the renderer, below, whose text is saved in it. Pictures are saved by the renderer "picture"."""

FRAMED = Renderer("rendering:framed")
"""Puts a page into a frame, for notebooks."""

RENDERERS: Mapping[str, Mapping[str, Renderer]] = {
    "Explanation": {
        "terminal": ListRenderer("terminal:show"),
        "page": ListRenderer("explanation_page:page"),
        "notebook": ListRenderer("explanation_page:fragment"),
        "picture": ListRenderer("explanation_figure:draw"),
        "shap": Converter("shap:of_one"),
    },
    "Explanations": {
        "terminal": Renderer("terminal:show"),
        "page": Renderer("explanation_page:page"),
        "notebook": Renderer("explanation_page:fragment"),
        "picture": Renderer("explanation_figure:draw"),
        "shap": Converter("shap:of_many"),
    },
    "Comparison": {
        "terminal": Renderer("terminal:show_comparison"),
        "page": Renderer("comparison_page:page"),
        "notebook": Renderer("comparison_page:fragment"),
        "picture": Renderer("explanation_figure:draw"),
    },
    "Generation": {
        "terminal": Renderer("generation_terminal:show_generation"),
        "page": Renderer("generation_page:page"),
    },
    "Trace": {
        "terminal": Renderer("trace:show_trace"),
        "page": Renderer("trace_page:page"),
        "notebook": Renderer("trace_page:fragment"),
        "picture": Renderer("trace:draw_trace"),
    },
    "Audit": {
        "terminal": Renderer("audit_terminal:show"),
        "page": ListRenderer("audit_page:page"),
        "picture": ListRenderer("waterfall:draw_waterfall"),
        "norm": Renderer("waterfall:draw_norm"),
        "sums": ListRenderer("waterfall:draw_scatter"),
    },
    "Evaluation": {
        "terminal": Renderer("evaluation_terminal:show"),
        "page": Renderer("evaluation_page:page"),
        "picture": Renderer("curves:draw_curves"),
    },
    "BiasStudy": {
        "terminal": Renderer("bias_summary:show"),
        "page": Renderer("bias_page:page"),
        "picture": Renderer("bias_figure:draw_histograms"),
    },
}
"""The renderers by result class and format. Without a "notebook" renderer, notebooks embed the page in an iframe."""
