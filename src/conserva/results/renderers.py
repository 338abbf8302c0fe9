"""The registry of renderers: the function of `conserva.views` that renders each result in each format.

Views are named as strings and imported on first use, so that the results do not depend on them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Renderer:
    """A function of `conserva.views` that takes one result."""

    name: str
    """The function, as "module:function"."""

    def __call__(self, result: Any, *arguments: Any) -> Any:
        module, _, name = self.name.partition(":")
        return getattr(import_module(f"conserva.views.{module}"), name)(self._given(result), *arguments)

    def _given(self, result: Any) -> Any:
        return result


class ListRenderer(Renderer):
    """A function of `conserva.views` that takes a list of results."""

    def _given(self, result: Any) -> Any:
        return [result]


RENDERERS: Mapping[str, Mapping[str, Renderer]] = {
    "Explanation": {
        "terminal": ListRenderer("terminal:show"),
        "page": ListRenderer("html:page"),
        "notebook": ListRenderer("html:fragment"),
        "picture": ListRenderer("figure:draw"),
    },
    "Explanations": {
        "terminal": Renderer("terminal:show"),
        "page": Renderer("html:page"),
        "notebook": Renderer("html:fragment"),
        "picture": Renderer("figure:draw"),
    },
    "Comparison": {
        "terminal": Renderer("terminal:show_comparison"),
        "page": Renderer("html:comparison_page"),
        "notebook": Renderer("html:comparison_fragment"),
        "picture": Renderer("figure:draw"),
    },
    "Generation": {
        "terminal": Renderer("generation_terminal:show_generation"),
        "page": Renderer("generation_page:generation_page"),
    },
    "Trace": {
        "terminal": Renderer("trace:show_trace"),
        "page": Renderer("trace:trace_page"),
        "notebook": Renderer("trace:trace_fragment"),
        "picture": Renderer("trace:draw_trace"),
    },
    "Audit": {
        "terminal": Renderer("audit:show"),
        "page": ListRenderer("audit_report:report"),
        "picture": ListRenderer("waterfall:draw_waterfall"),
        "norm": Renderer("waterfall:draw_norm"),
        "sums": ListRenderer("waterfall:draw_scatter"),
    },
    "Evaluation": {
        "terminal": Renderer("table:show"),
        "page": Renderer("report:report"),
        "picture": Renderer("curves:draw_curves"),
    },
    "BiasStudy": {
        "terminal": Renderer("bias_summary:show"),
        "page": Renderer("bias_report:page"),
        "picture": Renderer("bias_figure:draw_histograms"),
    },
}
"""The renderers by result class and format. Without a "notebook" renderer, notebooks embed the page in an iframe."""
