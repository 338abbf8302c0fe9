"""Pages that imitate notebooks, and what reads the contrast of every text in a result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from playwright.sync_api import Page

THEMES = {
    "JupyterLab, light": ("", 'data-jp-theme-light="true"', False),
    "JupyterLab, dark": ("", 'data-jp-theme-light="false"', True),
    "VS Code, light": ("", 'data-vscode-theme-kind="vscode-light"', False),
    "VS Code, dark": ("", 'data-vscode-theme-kind="vscode-dark"', True),
    "VS Code, dark with high contrast": ("", 'data-vscode-theme-kind="vscode-high-contrast"', True),
    "VS Code, light with high contrast": ("", 'data-vscode-theme-kind="vscode-high-contrast-light"', False),
    "Colab, light": ("", "", False),
    "Colab, dark": ('theme="dark"', "", True),
    "classic": ("", 'class="notebook_app"', False),
}
"""Notebook and theme -> attributes of the html and the body element, and whether the theme is dark."""

_CONTRASTS = """() => {
  const rgb = text => {
    const parts = text.match(/-?[\\d.]+(e-?\\d+)?/g).map(Number);
    const scaled = text.startsWith("color(") ? parts.map((x, i) => i < 3 ? 255 * x : x) : parts;
    return scaled.length < 4 ? [...scaled, 1] : scaled;
  };
  const luminance = colour => {
    const [r, g, b] = colour.map(c => c / 255 <= 0.03928 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = element => {
    for (let one = element; one; one = one.parentElement) {
      const colour = rgb(getComputedStyle(one).backgroundColor);
      if (colour[3] === 1) return colour;
    }
    return [255, 255, 255, 1];
  };
  const measured = root => {
    let lowest = 21, where = "", count = 0;
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const element = walker.currentNode.parentElement;
      if (!walker.currentNode.textContent.trim() || !element.checkVisibility()) continue;
      if (element.closest("style,svg,script")) continue;
      const [a, b] = [luminance(rgb(getComputedStyle(element).color)), luminance(ground(element))];
      const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      count += 1;
      if (contrast < lowest) [lowest, where] = [contrast, element.outerHTML.slice(0, 200)];
    }
    return {lowest, where, count, light: luminance(ground(root)) > 0.5};
  };
  return Array.from(document.querySelectorAll(".conserva"), measured);
}"""


def contrasts(page: Page) -> list[dict[str, Any]]:
    """Return what there is to read in each result of a page and of its frames, and the lowest contrast in it."""
    return [one for frame in page.frames for one in frame.evaluate(_CONTRASTS)]


STYLES = """<style>
.jp-RenderedHTMLCommon{font-size:14px;line-height:1.6}
.jp-RenderedHTMLCommon ul:not(.list-inline){padding-left:2em}
.jp-RenderedHTMLCommon table{border-collapse:collapse;border:none;font-size:12px;table-layout:fixed;margin:0 auto 1em}
.jp-RenderedHTMLCommon :is(td,th,tr){text-align:right;vertical-align:middle;padding:.5em;white-space:normal}
.jp-RenderedHTMLCommon h2{margin:1em 0 .5em;font-size:1.6em}
.jp-RenderedHTMLCommon p{margin:0 0 1em}
.jp-RenderedHTMLCommon dl{margin:0 0 1em}
</style>"""
"""Rules like those that JupyterLab has for results."""


def notebook(theme: str, *outputs: str) -> str:
    """Return a page that shows results as a notebook with this theme does."""
    root, body, is_dark = THEMES[theme]
    colours = "background:#111;color:#e0e0e0" if is_dark else "background:#fff;color:#222"
    cells = "".join(f'<div class="jp-OutputArea-output jp-RenderedHTMLCommon">{output}</div>' for output in outputs)
    return (
        f"<!doctype html><html {root}><meta charset=utf-8><body {body} style='{colours}'>{STYLES}{cells}</body></html>"
    )
