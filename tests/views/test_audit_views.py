"""Views of an audit: every number is shown whole, only ledgers that close are said to close, pages load nothing."""

import dataclasses
import io
import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from matplotlib.image import imread
from rich.console import Console

import conserva
from browser import Pages, check_light_and_dark, in_a_browser
from conserva.auditing.result import Audit, Norm, layer_of
from conserva.engine.ledger import ENTRIES, Ledger
from conserva.views import audit_terminal as terminal
from conserva.views import audit_wording as wording
from conserva.views import waterfall
from conserva.views.audit_page import page as report
from conserva.views.audit_wording import summary
from conserva.views.wording import number
from made_up_audits import BOOKS, audit, wave
from made_up_evaluations import read


def three(layers: int = 4) -> list[Audit]:
    return [audit(rules, layers) for rules in BOOKS]


# The result


def test_json_gives_the_same_audit_back(tmp_path: Path) -> None:
    for one in three():
        assert Audit.from_json(one.to_json()) == one
    (tmp_path / "audit.json").write_text(one.to_json(), encoding="utf-8")
    assert Audit.load(tmp_path / "audit.json") == one
    for text, problem in (("{", "not JSON"), ('{"schema": "else"}', "not a valid audit"), ("[]", "not a valid audit")):
        with pytest.raises(conserva.Error, match=problem):
            Audit.from_json(text)


@pytest.mark.parametrize("rules", BOOKS)
def test_books_layers_and_kinds_tell_the_same(rules: str) -> None:
    one = audit(rules)
    assert one.output == pytest.approx(one.ledger.inputs + one.ledger.positions + one.ledger.biases + one.ledger.gap)
    assert sum(one.kinds().values()) == pytest.approx(one.ledger.gap)
    assert sum(leak for _, leak in one.layers().values()) == pytest.approx(one.ledger.gap)
    assert sum(constants for constants, _ in one.layers().values()) == pytest.approx(
        one.ledger.positions + one.ledger.biases
    )
    for part in one.components:
        assert part.entering == pytest.approx(part.leaving + part.constants + part.leak)


def test_components_are_ranked_and_layers_run_from_the_output_down() -> None:
    one = audit("ah+ln")
    sizes = [part.size for part in one.ranked()]
    assert sizes == sorted(sizes, reverse=True)
    assert len(sizes) == 5  # what does not leak is not ranked
    assert one.ranked()[0].module == "bert.pooler.activation"
    encoder = [f"bert.encoder.layer.{i}" for i in (3, 2, 1, 0)]
    assert list(one.layers()) == ["classifier", "bert.pooler", *encoder, "bert.embeddings"]
    leak = sum(part.leak for part in one.components if ".layer.2." in part.module)
    assert one.layers()["bert.encoder.layer.2"][1] == leak
    assert one.kinds()["norm"] == 0
    assert layer_of("") == "the model itself"
    assert layer_of("encoder.layer.11") == "encoder.layer.11"


def test_the_share_of_the_gap_is_that_of_the_worst_sample() -> None:
    ledgers = Ledger(1.5, 0.0, 0.0, 0.5), Ledger(-6.0, 2.0, -1.0, 1.0)
    one = audit("exact", outputs=(2.0, -4.0), ledgers=ledgers)
    assert one.gap_share() == 0.25
    assert one.sums == (1.5, -6.0)


# The terminal


def printed(one: Audit, width: int, **settings: object) -> str:
    out = io.StringIO()
    terminal.show(one, Console(file=out, width=width, color_system=None), **settings)  # type: ignore[arg-type]
    return out.getvalue()


@pytest.mark.parametrize("width", [60, 80, 140])
@pytest.mark.parametrize("rules", BOOKS)
def test_everything_is_printed_in_one_piece(rules: str, width: int) -> None:
    one = audit(rules)
    text = printed(one, width, full=True)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    assert "\x1b" not in text
    flat = " ".join(text.split())
    assert f"sentiment · positive · rules {rules} · 24 samples" in flat
    assert wording.verdict([one]) in flat
    for name in ENTRIES:
        assert re.search(rf"(?m)^{name} +{re.escape(number(getattr(one.ledger, name)))}\b", text)
    assert re.search(rf"(?m)^= output +{re.escape(number(one.output))}\b", text)
    for i, part in enumerate(one.ranked(), start=1):
        assert re.search(rf"\b{i}  {re.escape(part.module)}\n", text)
        assert f"{part.function} · {part.kind} · {part.rule}" in text
        assert " ".join(wording.amounts(part)) in flat
    for kind, leak in one.kinds().items():
        assert re.search(rf"(?m)^{kind} +{re.escape(number(leak))} ", text)
    for layer, (constants, leak) in one.layers().items():
        assert re.search(rf"(?m)^{layer} +{re.escape(number(constants))} +{re.escape(number(leak))}", text)
    for norm in one.norms:
        assert " ".join(map(number, (norm.entering, norm.leaving, norm.predicted))) in flat
    for head in wording.heads(one):
        assert f"{head.module[-12:]} {head.head} {number(head.broke)} {number(head.covariance)}" in flat
    assert "linear · linear · zero 18 9" in flat


def test_names_give_way_in_the_middle_and_numbers_do_not() -> None:
    one = audit()
    long = "model." + "very_long_part." * 9 + "norm"
    norm = Norm(long, -12345.678, 1.0, 1.0)
    part = dataclasses.replace(one.components[1], module=long, entering=-12345.678, size=99.0)
    text = printed(dataclasses.replace(one, norms=(norm,), components=(part, *one.components)), 60, full=True)
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("-12345.678") == 2
    assert len(re.findall(r"(?m)^(?:1  | 1  )?model\.very.*….*part\.norm\b", text)) == 2
    assert wording.shortened("abcdefghij", 5) == "ab…ij"
    assert wording.shortened("abcde", 5) == "abcde"


def test_the_five_largest_leaks_are_shown_and_the_rest_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    one = audit()
    text = printed(one, 80)
    assert f"... and {len(one.ranked()) - 5} more" in text
    for i, part in enumerate(one.ranked(), start=1):
        assert bool(re.search(rf"\b{i}  {re.escape(part.module)}\n", text)) == (i <= 5)
    titles = ("Layers", "Proposition 1", "Proposition 2", "Coverage", "Leaks by kind")
    assert not [title for title in titles if title in text]
    assert "--full" in text
    one.show()
    assert capsys.readouterr().out.count("\n") < 40
    one.show(full=True)
    full = capsys.readouterr().out
    assert all(title in full for title in titles)
    assert "--full" not in full
    assert "Nothing: the leaks of 5 components are rounding errors" in printed(audit("exact"), 80)
    assert "rounding errors" not in printed(audit("exact"), 80, full=True)
    few = dataclasses.replace(one, components=one.components[:5])
    assert "more" not in printed(few, 80).partition("All leaks")[0]


@pytest.mark.parametrize("rules", BOOKS)
@pytest.mark.parametrize("width", [30, 60, 140])
def test_the_verdict_comes_first_and_fits(rules: str, width: int) -> None:
    text = printed(audit(rules), width)
    assert max(map(len, text.splitlines())) <= width
    start = " ".join(text.split()).partition("24 samples")[2].strip()
    assert start.startswith(wording.verdict([audit(rules)]))


def test_the_ledger_in_the_terminal_is_a_waterfall() -> None:
    lines = printed(audit(ledger=Ledger(5.0, -3.0, 0.0, 1.6)), 60).splitlines()
    drawn = {line.split()[0]: line for line in lines if "→" in line or "←" in line}
    assert list(drawn) == ["inputs", "positions", "gap", "="]  # nothing is drawn for 0
    assert "←" in drawn["positions"]


def test_text_has_the_colour_of_the_terminal() -> None:
    out = io.StringIO()
    terminal.show(audit(), Console(file=out, width=80, force_terminal=True, color_system="truecolor"), full=True)
    assert not re.search(r"\x1b\[[\d;]*\b(30|37|40|47|48)\b", out.getvalue())


def test_parts_that_are_not_there_are_not_spoken_of() -> None:
    text = printed(audit(heads=(), norms=(), coverage=()), 80)
    assert "Proposition" not in text
    assert "Proposition" not in printed(audit(heads=(), norms=(), coverage=()), 80, full=True)
    assert "Nothing: every component" in printed(audit(components=()), 80)


def test_propositions_are_judged_only_where_they_apply() -> None:
    text = printed(audit("gi"), 80, full=True)
    assert text.count("It holds") == 2
    assert "It holds" not in printed(audit("ah+ln"), 80, full=True)
    assert "here the rule was freeze" in printed(audit("ah+ln"), 80, full=True)
    one = audit("gi")
    heads = (dataclasses.replace(one.heads[0], covariance=one.heads[0].covariance + 0.5), *one.heads[1:])
    wrong = printed(dataclasses.replace(one, heads=heads), 80, full=True)
    assert "does NOT hold: largest disagreement over all 16 heads: 0.500" in wrong


def test_a_gap_that_no_component_explains_is_told(tmp_path: Path) -> None:
    one = audit("ah+ln")
    holed = dataclasses.replace(one, components=tuple(part for part in one.components if part.function != "tanh"))
    assert "+1.425 of the gap is in no component" in printed(holed, 80)
    assert "no component" not in printed(one, 80)
    assert "+1.425 is in no component" in " ".join(summary([holed]))
    assert waterfall.UNTRACED in waterfall.waterfall_svg([holed])
    assert waterfall.UNTRACED not in waterfall.waterfall_svg([one])


@pytest.mark.parametrize("width", [30, 60, 140])
def test_rule_sets_stand_side_by_side(width: int) -> None:
    out = io.StringIO()
    terminal.compare(three(), Console(file=out, width=width, color_system=None))
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    if width >= 60:
        assert re.search(r"gi +ah\+ln +exact", text)
        assert re.search(r"gap +\+3.550 +\+2.850 +\+5e-07", text)
        assert re.search(r"activation +\+1.047 +\+2.850 +\+5e-07", text)
    for one in three():
        for value in (
            one.ledger.inputs,
            one.ledger.positions,
            one.ledger.biases,
            one.ledger.gap,
            *one.kinds().values(),
        ):
            assert number(value) in text
    with pytest.raises(conserva.Error, match="no audit"):
        terminal.compare([])


# Figures


def draw_norm(audits: list[Audit], path: Path) -> None:
    waterfall.draw_norm(audits[0], "bert.embeddings.LayerNorm", path)


@pytest.mark.parametrize("ending", [".png", ".svg", ".pdf"])
@pytest.mark.parametrize("draw", [waterfall.draw_waterfall, waterfall.draw_scatter, draw_norm])
def test_figures_are_written(tmp_path: Path, ending: str, draw) -> None:
    path = tmp_path / f"figure{ending}"
    draw(three(), path)
    start = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[ending]
    assert path.read_bytes().startswith(start)
    if ending == ".png":
        assert len({tuple(pixel) for pixel in imread(path)[::3, ::3].reshape(-1, 4).round(2)}) > 30


@pytest.mark.parametrize("layers", [1, 60])
def test_figures_of_few_and_many_layers(layers: int) -> None:
    svg = waterfall.waterfall_svg(three(layers)[:1])
    names = set(re.findall(r">layer\.(\d+)<", svg))
    assert len(names) == 1 if layers == 1 else 20 < len(names) <= waterfall.LABELS
    assert {">output<", ">inputs<"} <= set(re.findall(r">\w+<", svg))


def test_steps_lead_from_the_output_to_the_inputs_and_hide_nothing_that_cancels() -> None:
    for one in three():
        path = waterfall.steps(one)
        left = one.output + sum(change for step in path for change in step.parts.values())
        assert left == pytest.approx(one.ledger.inputs)
        assert [step.layer for step in path] == list(one.layers())
    layer = next(step for step in waterfall.steps(audit("gi")) if step.layer.endswith("layer.3"))
    assert layer.lost > 0.1
    assert layer.twice < -0.1


def test_of_a_negative_output_leaks_below_0_are_lost() -> None:
    one = audit("gi")
    turned = [dataclasses.replace(part, leak=-part.leak, constants=-part.constants) for part in one.components]
    ledger = Ledger(*(-getattr(one.ledger, name) for name in ENTRIES))
    negative = dataclasses.replace(one, output=-one.output, components=tuple(turned), ledger=ledger)
    for step, opposite in zip(waterfall.steps(one), waterfall.steps(negative), strict=True):
        assert (opposite.lost, opposite.twice) == pytest.approx((-step.lost, -step.twice))
    assert terminal._leak_bars(negative, [-1.0, 0.5]) == terminal._leak_bars(one, [1.0, -0.5])
    assert terminal._leak_bars(negative, [-1.0])[0].startswith("█")


def inputs_only(sums: Iterable[float]) -> tuple[Ledger[float], ...]:
    return tuple(Ledger(total, 0.0, 0.0, 0.0) for total in sums)


def test_a_rule_set_that_reaches_far_does_not_make_the_others_vanish() -> None:
    one, far = audit("exact"), audit("gi")
    first, second = (dataclasses.replace(far.components[i], leak=leak) for i, leak in ((1, 1e4), (2, -1e4)))
    far = dataclasses.replace(
        far, components=(first, second, *far.components[3:]), ledgers=inputs_only(map(float, range(24)))
    )
    assert len({limits for _, limits in waterfall._steps_and_limits([one, far])}) == 2
    assert "own axis" in waterfall.waterfall_caption([one, far])
    assert "own axis" not in waterfall.waterfall_caption(three())
    spread = dataclasses.replace(far, ledgers=inputs_only(1e3 * wave(i) for i in range(24)))
    assert waterfall.scatter_svg([one, spread]).count("own y axis") == 1


def test_labels_are_as_short_as_they_stay_apart() -> None:
    assert waterfall.short_module_names(["classifier", "bert.pooler", "bert.encoder.layer.3"]) == [
        "classifier",
        "pooler",
        "layer.3",
    ]
    both = ["a.encoder.layer.0", "a.decoder.layer.0"]
    assert waterfall.short_module_names(both) == ["encoder.layer.0", "decoder.layer.0"]


def test_figures_in_a_page_hold_numbers_as_text_and_load_nothing() -> None:
    odd = [dataclasses.replace(one, rules=f"<b>&$x_1$</b> {one.rules}") for one in three()]
    module = "bert.embeddings.LayerNorm"
    drawn = [waterfall.waterfall_svg(odd), waterfall.scatter_svg(odd), waterfall.norm_svg(odd[0], module)]
    for svg in drawn:
        assert svg.startswith("<svg ")
        assert "http" not in svg
        assert waterfall.INK not in svg
    for svg in drawn[:2]:
        assert "&lt;b&gt;&amp;$x_1$&lt;/b&gt; gi" in svg
        assert "gap +2.850" in svg
    for value in (one.ledger.inputs for one in odd):
        assert number(value) in drawn[0]
    assert f"sum {number(sum(odd[0].norms[0].after))}" in drawn[2]
    names = [set(re.findall(r'\bid="([^"]+)"', svg)) for svg in drawn]
    assert not names[0] & names[1] | names[0] & names[2] | names[1] & names[2]
    for svg, known in zip(drawn, names, strict=True):
        assert set(re.findall(r'(?:url\(|href=")#([^")]+)', svg)) <= known


def test_a_norm_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    with pytest.raises(conserva.Error, match=r"'pooler'.*'bert\.embeddings\.LayerNorm'"):
        waterfall.draw_norm(audit(), "pooler", tmp_path / "norm.png")
    with pytest.raises(conserva.Error, match="none, it has no relevance by position"):
        waterfall.draw_norm(audit(norms=()), "pooler", tmp_path / "norm.png")


# The page


def test_page_holds_everything_and_loads_nothing() -> None:
    odd = '<script>alert(1)</script> & "more"'
    audits = [dataclasses.replace(one, model=odd, target="<b>x</b>") for one in three()]
    part = dataclasses.replace(audits[0].components[0], module="a<b>.norm", function="f<i>", size=9.0)
    audits[0] = dataclasses.replace(audits[0], components=(part, *audits[0].components[1:]))
    page = report(audits)
    found = read(page)
    assert not re.search(r"https?://|@import|url\((?!#)", page)
    assert not found.tags & {"script", "img", "image", "link", "iframe", "object", "b", "i"}
    assert "default-src 'none'" in page
    for text in (odd, "<b>x</b>", "a<b>.norm", "f<i>", "sha256:0123", "2.11"):
        assert text in found.text
    for one in audits:
        for value in (
            one.output,
            one.ledger.inputs,
            one.ledger.positions,
            one.ledger.biases,
            one.ledger.gap,
            *one.kinds().values(),
        ):
            assert number(value) in found.text
        for component in one.ranked():
            assert component.module in found.text
            assert wording.operation(component) in found.text
            assert all(amount in found.text for amount in wording.amounts(component))
        for norm in one.norms:
            assert number(norm.entering) in found.text
    assert page.count("<svg ") == 6  # three, for wide and for narrow pages
    assert re.findall(r'<a href="#([^"]+)"', page) == re.findall(r'<section id="([^"]+)"', page)


def test_the_summary_says_what_the_numbers_say() -> None:
    start, gi, paper, exact, theory = summary(three())
    assert "+3.600" in start
    assert "Under “gi” the ledger does not close" in gi
    assert "the kind “norm”" in gi
    assert audit("gi").ranked()[0].module in gi
    assert "+2.850 is left as the gap: relevance is lost" in paper
    assert "100.0% of all leaks are in operations of the kind “activation”" in paper
    assert "bert.pooler.activation (tanh" in paper
    assert "Under “exact” the ledger closes" in exact
    assert theory.count(" agrees with the measurements under “gi”") == 2
    assert "ah+ln" not in theory
    one = audit("gi")
    twice = dataclasses.replace(one, ledger=Ledger(4.6, 0.0, 0.0, -1.0))
    assert "is counted twice" in summary([twice])[1]
    one = audit("gi")
    norms = (dataclasses.replace(one.norms[0], predicted=1.0), *one.norms[1:])
    assert "Proposition 2, on norms, does not agree" in summary([dataclasses.replace(one, norms=norms)])[-1]


def test_pages_of_audits_that_lack_parts() -> None:
    bare = audit("exact", heads=(), norms=(), coverage=(), provenance={}, ledgers=(), outputs=())
    page = report([bare])
    assert "Proposition 1:" not in page
    assert "<h2>Coverage" not in page
    with pytest.raises(conserva.Error, match="no audit"):
        report([])


@in_a_browser
def test_in_a_browser_the_page_shows_in_light_and_dark(pages: Pages) -> None:
    opened = pages.open(report(three()), height=2400)
    found = read(opened.content())
    assert "Do the explanations add up?" in found.text
    check_light_and_dark(opened)
