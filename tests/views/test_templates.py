"""Templates: they escape what they insert, each of them is used, and there is no markup in Python code."""

import ast
import dataclasses
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jinja2 import StrictUndefined, nodes
from markupsafe import Markup

from conserva.auditing.result import Audit
from conserva.bias_study.result import BiasStudy
from conserva.evaluation.result import Evaluation
from conserva.results.explanation import Explanation
from conserva.results.generation import Generation
from conserva.results.renderers import RENDERERS
from conserva.results.trace import Trace
from conserva.views import evaluation_page, rendering, svg
from hostile_results import NAMES, TEXTS, harmless
from leaving import check_page
from made_up_evaluations import evaluation

VIEWS = Path(rendering.__file__).parent
TEMPLATES = sorted((VIEWS / "templates").iterdir())
PAGES = [path.name for path in TEMPLATES if path.suffix == ".html"]
MODULES = sorted(VIEWS.glob("*.py"))
HOSTILE = '</script><img src=x onerror="alert(1)"> \' & \u202e'


# Escaping


@pytest.mark.parametrize("name", PAGES)
def test_no_template_turns_escaping_off(name: str) -> None:
    environment = rendering.environment()
    assert environment.autoescape is True
    assert environment.undefined is StrictUndefined
    source, _, _ = rendering.LOADER.get_source(environment, name)
    tree = environment.parse(source)
    assert not {one.name for one in tree.find_all(nodes.Filter)} & {"safe", "forceescape"}
    assert not list(tree.find_all((nodes.ScopedEvalContextModifier, nodes.MarkSafe)))
    assert environment.get_template(name).environment.autoescape is True


def test_what_is_inserted_is_escaped_in_texts_and_in_attributes() -> None:
    template = rendering.environment().from_string('<p title="{{ text }}">{{ text }}</p>')
    assert template.render(text="<b>\"'&") == '<p title="&lt;b&gt;&#34;&#39;&amp;">&lt;b&gt;&#34;&#39;&amp;</p>'


def test_only_assets_and_svg_are_marked_as_markup() -> None:
    makers = set()
    for path in MODULES:
        for one in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(one, ast.Call) and isinstance(one.func, ast.Name) and one.func.id == "Markup":
                makers.add(path.name)
    assert makers == {"rendering.py", "svg.py"}


def test_svg_escapes_texts_and_attributes() -> None:
    found = svg.markup(svg.element("g", {"a": '<"&'}, svg.element("text", {}, text="<b>&")))
    assert isinstance(found, Markup)
    assert found == '<g a="&lt;&quot;&amp;">\n<text>&lt;b&gt;&amp;</text>\n</g>'


def test_data_of_a_script_cannot_end_it() -> None:
    found = rendering.environment().from_string("{{ data | tojson }}").render(data={"a": HOSTILE, "é": [1.5, None]})
    assert "<" not in found
    assert "é" in found


# Every text of every result


def texts_of(kind: Any, seen: set[Any]) -> Iterator[str]:
    """Yield the names of fields that hold strings, of a dataclass and of those in it."""
    if dataclasses.is_dataclass(kind) and kind not in seen:
        seen.add(kind)
        hints = typing.get_type_hints(kind)
        for field in dataclasses.fields(kind):
            yield from texts_of(hints[field.name], seen)
            if holds_text(hints[field.name]):
                yield field.name
    for one in typing.get_args(kind):
        yield from texts_of(one, seen)


def holds_text(kind: Any) -> bool:
    return kind in (str, Any) or any(map(holds_text, typing.get_args(kind)))


RESULTS = (Explanation, Generation, Trace, Audit, Evaluation, BiasStudy)
LOOKED_UP = {"picture", "curves", "metric", "without_value"}
"""Fields whose strings are looked up, and not shown."""


def test_attacks_on_views_reach_every_text_of_every_result() -> None:
    """The tests of hostile texts replace the fields that are listed there: no field may be missing."""
    assert {"Explanations", "Comparison", *(one.__name__ for one in RESULTS)} == set(RENDERERS)
    found = {name for one in RESULTS for name in texts_of(one, set())}
    assert {"text", "token", "module", "entity", "curves"} <= found
    assert found - TEXTS - NAMES - LOOKED_UP == {"protocol"}  # which the next test is about


def test_a_protocol_is_text_too() -> None:
    def changed(text: str) -> Evaluation:
        return evaluation(protocol={"name": text, "target": text, "mask": text, "steps": [text], text: {text: text}})

    page = check_page(evaluation_page.page, changed(HOSTILE), changed(harmless(HOSTILE)))
    assert page.count("&lt;/script&gt;&lt;img src=x") >= 6


# Files


def strings(source: str) -> Iterator[str]:
    for one in ast.walk(ast.parse(source)):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            yield one.value


def tags(source: str) -> list[str]:
    return [text for text in strings(source) if re.search(r"<[a-zA-Z/!?]", text)]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_no_module_has_markup_in_a_string(path: Path) -> None:
    allowed = ["<br>"] if path.name == "markdown.py" else []  # the only line break in a cell of a Markdown table
    assert tags(path.read_text(encoding="utf-8")) == allowed


def test_markup_in_strings_would_be_seen() -> None:
    assert tags("x = f'<p>{y}</p>'") == ["<p>", "</p>"]
    assert tags('x = 1 < y, "a < b"') == []


def test_every_template_is_used_and_every_name_is_of_one() -> None:
    pattern = r'"(\w+\.(?:html|css|js))"'
    used = set()
    for path in (*MODULES, *TEMPLATES):
        used |= set(re.findall(pattern, path.read_text(encoding="utf-8"))) - {path.name}
    assert used == {path.name for path in TEMPLATES}


def test_templates_are_part_of_the_package() -> None:
    text = (VIEWS.parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert '"views/templates/*"' in text
    assert all(path.is_file() for path in TEMPLATES)


@pytest.mark.parametrize("option", ["--help", "--version"])
def test_the_template_engine_is_imported_when_a_page_is_rendered(option: str) -> None:
    code = f"import sys; from conserva.cli import program; sys.argv = ['conserva', '{option}']\n"
    code += "try: program()\nexcept SystemExit: pass\nprint([m for m in ('torch', 'jinja2') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
