"""The page of a generation in a browser: it shows what `Generation.row` and `span` say."""

import re
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import expect

from browser import Pages, in_a_browser
from conserva.engine.ledger import ENTRIES, Ledger
from conserva.results.generation import Generation, Step
from conserva.views import colours
from conserva.views.generation_page import page as generation_page
from conserva.views.generation_wording import chip_label, opening, verdict
from conserva.views.ledger_steps import axis_of, ledger_steps
from conserva.views.wording import number
from driven_generations import SHOT, agrees, coloured, driven, lit, middle
from made_up_generations import HOSTILE, ONE, WRITTEN, generation

START = ONE.start


@in_a_browser
def test_pointing_and_clicking(pages: Pages) -> None:
    acts: list[tuple[str, Any]] = [
        ("leave", None), ("hover", START + 6), ("hover", START + 2), ("leave", None),
        ("click", START + 1), ("shift", START + 4), ("hover", START), ("shift", START), ("box", None), ("box", None),
        ("click", START + 3), ("click", START + 3), ("leave", None),
        ("hover", 4), ("click", 4), ("shift", START + 3), ("click", START + 3), ("leave", None),
    ]  # fmt: skip
    shots = iter(driven(pages, ONE, acts))

    opened = next(shots)
    agrees(opened, ONE.row(opening(ONE)))
    assert opened["selected"] == [START + opening(ONE)]
    assert opened["hash"] == ""
    shades = next(shots)
    agrees(shades, ONE.row(6))
    assert shades["colours"] == coloured({i: score for i, score in enumerate(ONE.steps[6].scores) if i})
    hovered, step = next(shots), ONE.steps[2]
    agrees(hovered, ONE.row(2))
    assert hovered["colours"] == coloured({i: score for i, score in enumerate(step.scores) if i})
    assert hovered["selected"] == [START + 2]
    assert hovered["summary"] == f"“↵” · logit {number(step.output)} · probability {step.probability:.1%}"
    assert hovered["others"] == f"most probable here: “↵” 50.0%, “{HOSTILE}” 12.5%"
    best = max(range(1, len(step.scores)), key=lambda i: abs(step.scores[i]))
    assert hovered["sources"].startswith(f"mostly from “{ONE.features[best].strip()}” {number(step.scores[best])}")
    assert (hovered["low"], hovered["high"]) == (number(-abs(step.scores[best])), number(abs(step.scores[best])))
    assert hovered["hash"] == ""
    left = next(shots)
    assert [left[name] for name in ("scores", "colours", "selected", "summary")] == [
        opened[name] for name in ("scores", "colours", "selected", "summary")
    ]

    assert next(shots)["hash"] == "#step=1"
    span = next(shots)
    agrees(span, ONE.span(1, 4))
    assert span["selected"] == [START + i for i in range(1, 5)]
    assert span["hash"] == "#step=1-4"
    assert span["others"] == ""
    assert span["summary"].startswith("“,↵ a & b [bold]x[/bold]” · logit ")
    still = next(shots)  # what is held stays; pointing shows the score of a token
    assert still | {"titles": {}} == span | {"titles": {}}
    assert still["titles"][str(START)] == f" Paris {number(ONE.span(1, 4).scores[START])}"
    backwards = next(shots)
    agrees(backwards, ONE.span(0, 1))
    assert backwards["colours"].keys() == {str(i) for i in lit(backwards) if i}
    assert "it is not coloured, but counted in the ledger" in backwards["share"]
    assert "<s>" not in backwards["sources"]
    assert backwards["hash"] == "#step=0-1"
    included = next(shots)
    agrees(included, ONE.span(0, 1))
    assert included["colours"]["0"][0] in map(colours.hexadecimal, (colours.FOR, colours.AGAINST))
    assert "<s>" in included["sources"]
    assert "not coloured" not in included["share"]
    assert included["hash"] == "#step=0-1&first=in"
    back = next(shots)
    assert back == backwards | {"titles": back["titles"], "focus": -1}

    assert next(shots)["hash"] == "#step=3"
    let_go = next(shots)  # with a second click
    assert (let_go["hash"], let_go["selected"]) == ("", [START + 3])
    assert next(shots)["selected"] == [START + opening(ONE)]
    column = next(shots)
    given = {START + j: step.scores[4] for j, step in enumerate(ONE.steps)}
    assert lit(column) == pytest.approx(given, rel=1e-4)
    last = opening(ONE)  # the generated token that was shown before
    assert column["summary"] == (
        f"“<b>France” contributed {number(given[START + last])} to “{WRITTEN[last].strip()}” and "
        f"{number(sum(given.values()))} to all generated tokens"
    )
    assert (column["bar"], column["share"], column["selected"]) == ("none", "", [4])
    assert next(shots)["hash"] == "#feature=4"
    assert next(shots)["selected"] == [START + 3]  # a span has generated tokens only
    assert next(shots)["hash"] == ""
    assert next(shots)["selected"] == [START + opening(ONE)]


@in_a_browser
def test_a_finger_that_comes_down_is_not_pointing_and_a_tap_holds(pages: Pages) -> None:
    page = pages.open(generation_page(ONE), width=390, height=844, touch=True)
    opened, (x, y) = page.evaluate(SHOT), middle(page.locator(".piece").nth(4))
    fingers = page.context.new_cdp_session(page)
    fingers.send("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": [{"x": x, "y": y}]})
    assert page.evaluate(SHOT) == opened
    fingers.send("Input.dispatchTouchEvent", {"type": "touchCancel", "touchPoints": []})
    page.touchscreen.tap(x, y)  # at once: a finger that stays down for long does not tap
    expect(page.locator(".piece").nth(4)).to_have_attribute("aria-pressed", "true")
    assert page.evaluate(SHOT)["hash"] == "#feature=4"


@in_a_browser
def test_a_drag_sums_the_tokens_it_passes_over(pages: Pages) -> None:
    acts: list[tuple[str, Any]] = [
        ("drag", [START + 1, START + 3, START + 4]), ("hover", START), ("drag", [START + 5, START]),
        ("drag", [START + 2, START + 4, START + 2]), ("drag", [START + 3, 4]), ("drag", [5, START + 1]),
    ]  # fmt: skip
    shots = driven(pages, ONE, acts)
    for seen, (first, last) in zip(shots, [(1, 4), (1, 4), (0, 5), (2, 2)], strict=False):
        agrees(seen, ONE.span(first, last))
        assert seen["selected"] == [START + i for i in range(first, last + 1)]
        assert seen["hash"] == (f"#step={first}-{last}" if last > first else f"#step={first}")
    # From a generated token into the prompt, or from the prompt: that is not a span.
    assert shots[4]["selected"] == shots[5]["selected"] == [START + 2]


@in_a_browser
def test_the_ledger_is_a_waterfall(pages: Pages) -> None:
    ledger = Ledger.of(2.0, -3.0, 6.5, -0.5)
    one = replace(ONE, steps=tuple(replace(step, output=2.0, ledger=ledger) for step in ONE.steps))
    (seen,) = driven(pages, one, [("click", START)])
    assert list(seen["ledger"]) == [*ENTRIES, "output"]
    found = [(float(left[:-1]), float(width[:-1]), kind) for left, width, kind in seen["steps"]]
    expected = ledger_steps(ledger, 2.0)
    low, high = axis_of(expected)
    assert float(seen["zero"][:-1]) == pytest.approx(100 * -low / (high - low))
    for (left, width, kind), step in zip(found, expected, strict=True):
        assert left == pytest.approx(100 * (min(step.start, step.end) - low) / (high - low), abs=0.01)
        assert width == pytest.approx(100 * abs(step.value) / (high - low), abs=0.01)
        assert kind == ("down" if step.value < 0 else "")


CHAT = ("<s>", "user", "\n", "Where", " is", " it", "</s>", "<s>", "assistant", "\n")
TEMPLATE = (True, True, True, False, False, False, True, True, True, True)


def chat() -> Generation:
    one = generation(CHAT, WRITTEN)
    return replace(one, special=(*TEMPLATE, *[False] * len(WRITTEN)))


@in_a_browser
def test_tokens_of_the_template_are_folded_and_open(pages: Pages) -> None:
    one = chat()
    acts = [("click", len(CHAT)), ("chip", 1), ("chip", 1), ("click", 3), ("key", "ArrowLeft"), ("box", None)]
    folded, opened, closed, *_ = driven(pages, one, acts)
    agrees(folded, one.row(0))
    assert folded["hidden"] == [0, 1, 2, 6, 7, 8, 9]
    scores = one.steps[0].scores
    assert (
        folded["chips"]
        == [
            ["user", "false", f"3 tokens of the template {number(scores[1] + scores[2])}"],  # without the first token
            ["assistant", "false", f"4 tokens of the template {number(sum(scores[6:10]))}"],
        ]
    )
    assert opened["hidden"] == [0, 1, 2]
    assert opened["chips"][1][1:] == ["true", ""]
    assert closed == folded | {"titles": closed["titles"], "focus": -1}
    visible = [abs(scores[i]) for i in (3, 4, 5)]
    assert folded["high"] == number(max(visible))  # the scale is that of what is coloured
    assert opened["high"] == number(max(*visible, *(abs(scores[i]) for i in range(6, 10))))


@in_a_browser
def test_the_keyboard_skips_folded_tokens_and_a_source_unfolds(pages: Pages) -> None:
    one = chat()
    steps = tuple(replace(step, scores=(*step.scores[:8], 30.0, *step.scores[9:])) for step in one.steps)
    acts = [
        ("tab", None), ("key", "Home"), ("key", "ArrowLeft"), ("key", "ArrowRight"), ("key", "Enter"), ("source", 0),
    ]  # fmt: skip
    _, first, left, right, _, unfolded = driven(pages, replace(one, steps=steps), acts)
    assert (first["focus"], left["focus"], right["focus"]) == (len(CHAT), 5, len(CHAT))
    assert first["sources"].startswith("mostly from “assistant” +30.000")
    assert 8 in first["hidden"]
    assert 8 not in unfolded["hidden"]


def test_the_label_of_a_fold() -> None:
    assert chip_label(["<|im_end|>", "↵", "<|im_start|>", "user", "↵"]) == "user"
    assert chip_label(["<|im_end|>", "↵"]) == "2 template tokens"
    assert chip_label(["Cutting", " Knowledge", " Date", "↵"]) == "4 template tokens"
    assert not re.search('class="chip"', generation_page(ONE))  # a run of one token is not folded
    assert generation_page(chat()).count('class="chip"') == 2


def test_the_page_opens_on_the_token_with_the_clearest_source() -> None:
    def step(*scores: float) -> Step:
        return Step("x", scores, 1.0, 0.5, None)

    features = ("<s>", "<|user|>", "a", "b", "x", "x", "x", "x")
    one = replace(
        ONE,
        features=features,
        special=(True, True, *[False] * 5, True),
        words=(None,) * 8,
        start=4,
        steps=(
            step(9, 5, 0.4, 0.6),  # 60 %
            step(9, 0, 1, 0, 9),  # most from a generated token
            step(9, 9, 0.2, -0.8, 0),  # 80 %: signs do not matter
            step(0, 0, 1, 0, 0, 0, 0),  # a special token, although its source is clear
        ),
    )
    assert opening(one) == 2
    assert opening(replace(one, start=8, steps=())) == 0
    nothing = tuple(replace(step, scores=tuple(0.0 for _ in step.scores)) for step in one.steps)
    assert opening(replace(one, steps=nothing)) == 0


def test_the_verdict_names_the_clearest_token_and_its_sources() -> None:
    scores = (9.0, -0.5, 0.0, 4.0, 0.25)
    one = replace(ONE, features=("<s>", "a", " b", " cat", " dog", " x"), special=(True, *[False] * 5), start=5)
    one = replace(one, words=(None,) * 6, steps=(Step(" x", scores, 1.0, 0.5, None),), written="so  many\nwords " * 9)
    assert verdict(one) == (
        "The generated text is “so many words so many words so many words so many words so m…”; its token “x” comes "
        "mostly from “cat” (+4.000) and “a” (-0.500)."
    )
    assert f"<h1>{verdict(one)}</h1>" in generation_page(one)
    assert verdict(replace(one, steps=(Step("x", (9.0, 0.0, 0.0, 0.0, 0.0), 1.0, 0.5, None),))).endswith("no token.")
    assert verdict(replace(one, steps=(), start=6, written="x")) == "The generated text is “x”."
    assert "\u202e" not in verdict(replace(one, written="\u202ex"))


@in_a_browser
@pytest.mark.parametrize("height", [640, 844])
def test_on_a_phone_the_whole_ledger_is_visible(pages: Pages, height: int) -> None:
    page = pages.open(generation_page(ONE), width=390, height=height, touch=True)
    share, below = page.evaluate("""() => {
      const panel = document.getElementById("panel"), last = document.querySelector(".step.output");
      const below = last.getBoundingClientRect().bottom - panel.getBoundingClientRect().bottom;
      return [panel.clientHeight / innerHeight, below];
    }""")
    assert share < 0.5  # of the screen: the rest is for the text
    assert below <= 0


@in_a_browser
def test_without_an_attention_sink_all_tokens_are_coloured(pages: Pages) -> None:
    (seen,) = driven(pages, replace(ONE, sink=None), [("click", START + 2)])
    assert seen["colours"] == coloured(dict(enumerate(ONE.steps[2].scores)))
    assert "not coloured" not in seen["share"]
    assert seen["hash"] == "#step=2"


@in_a_browser
def test_with_the_keyboard(pages: Pages) -> None:
    last = len(ONE.features) - 1
    keys: list[
        tuple[tuple[str, Any], Any, str]
    ] = [  # what is done, the step or steps or the feature shown, the address
        (("tab", None), opening(ONE), ""),
        (("key", "ArrowRight"), 1, ""),
        (("key", "Enter"), 1, "#step=1"),
        (("key", "Shift+ArrowRight"), (1, 2), "#step=1-2"),
        (("key", "Shift+ArrowRight"), (1, 3), "#step=1-3"),
        (("key", "Shift+ArrowLeft"), (1, 2), "#step=1-2"),
        (("key", "ArrowRight"), 3, "#step=3"),
        (("key", "Escape"), 3, ""),
        (("key", "Home"), 0, ""),
        (("key", "Shift+ArrowLeft"), 0, ""),  # a token of the prompt is in no span
        (("key", "ArrowLeft"), "read", ""),
        (("key", "End"), last - START, ""),
        (("key", "ArrowRight"), last - START, ""),
        (("key", " "), last - START, f"#step={last - START}"),
        (("key", "Escape"), last - START, ""),
        (("key", "Tab"), opening(ONE), ""),  # leaves the text
    ]
    for seen, (act, shown, address) in zip(driven(pages, ONE, [act for act, _, _ in keys]), keys, strict=True):
        assert seen["hash"] == address
        assert len(seen["stops"]) == 1  # Tab reaches the text once
        if shown == "read":
            assert (seen["focus"], seen["selected"]) == (START - 1, [START - 1])
        else:
            first, end = shown if isinstance(shown, tuple) else (shown, shown)
            agrees(seen, ONE.span(first, end))
            assert seen["selected"] == [START + i for i in range(first, end + 1)]
            assert act[1] == "Tab" or seen["focus"] == seen["stops"][0] == START + end


@in_a_browser
@pytest.mark.parametrize("ledger", [True, False])
def test_an_address_holds_a_token_under_the_policy_and_two_inputs_are_two_blocks(pages: Pages, ledger: bool) -> None:
    one = replace(ONE, sections=(("source", START - 1), ("answer so far", len(WRITTEN) + 1)))
    if not ledger:
        one = replace(one, steps=tuple(replace(step, ledger=None) for step in one.steps))
    dom = pages.open(generation_page(one), "#step=2-3&first=in").content()
    found = [(int(i), score) for i, score in re.findall(r'data-i="(\d+)"[^>]* data-score="(.*?)"', dom)]
    assert [float(score) for _, score in found] == pytest.approx(one.span(2, 3).scores, rel=1e-4, abs=1e-5)
    assert re.findall('<h2>(.*?)</h2><div class="pieces(?: read)?" role="group"', dom) == ["source", "answer so far"]
    assert ("no ledger: this method does not decompose the output" in dom.split("<script")[0]) == (not ledger)
    assert "<img" not in dom.split("<script")[0]


@in_a_browser
def test_sources_of_a_token_that_is_not_held_can_be_focused_and_clicked(pages: Pages) -> None:
    opened = pages.open(generation_page(ONE))
    stop, source = opened.locator(".piece[tabindex='0']"), opened.locator(".source").first
    stop.focus()
    opened.keyboard.press("ArrowRight")
    shown = opened.locator("#summary").inner_text()
    source.focus()
    expect(source).to_be_focused()  # focused by a key, it is not replaced
    expect(opened.locator("#summary")).to_have_text(shown)
    stop.focus()
    source.evaluate("button => button.addEventListener('click', () => { document.title = 'clicked'; })")
    source.click()
    expect(opened).to_have_title("clicked")
    opened.keyboard.press("Escape")
    opened.locator("h1").click()  # the focus leaves the text and the panel
    expect(opened.locator("#summary")).not_to_have_text(shown)
