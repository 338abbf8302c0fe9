"""Texts in the terminal: as they were written, readable on any background, with numbers that are not broken."""

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.color import Color, ColorSystem
from rich.console import Console
from rich.style import Style
from rich.text import Text

import conserva
from conserva.engine.ledger import ENTRIES, Ledger
from conserva.results.explanation import ClassScore, Explanation, Sink, Window
from conserva.results.explanations import Comparison
from conserva.views import terminal
from conserva.views.colours import GLYPHS, contrast, terminal_style
from conserva.views.terminal import compare, show, show_comparison
from conserva.views.written_text import sections_of
from made_up_explanations import explanation

BLACK, WHITE = (0, 0, 0), (255, 255, 255)


def written(text: str, spans: list[tuple[int, int] | None], **changes: Any) -> Explanation:
    """An explanation of a text with features at these offsets."""
    features = ["[CLS]" if span is None else text[span[0] : span[1]].lower() for span in spans]
    features, special = changes.pop("features", features), tuple(span is None for span in spans)
    return explanation(features, text=text, offsets=tuple(spans), special=special, **changes)


def printed(ones: Any, width: int = 100, numbers: bool = False, encoding: str = "utf-8", **settings: Any) -> str:
    settings = {"color_system": None, **settings}
    file = io.TextIOWrapper(io.BytesIO(), encoding, "backslashreplace")
    console = Console(file=file, width=width, force_terminal=settings["color_system"] is not None, **settings)
    if isinstance(ones, Comparison):
        show_comparison(ones, console, numbers=numbers)
    else:
        show(ones if isinstance(ones, list) else [ones], console, numbers=numbers)
    file.flush()
    return file.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def plain(text: str) -> str:
    return Text.from_ansi(text).plain


def joined(one: Explanation) -> str:
    """The text that is shown, without marks and colours."""
    return "".join(piece.before + piece.text for section in sections_of(one) for piece in section.pieces)


# The text as it was written


def test_case_spaces_and_line_breaks_are_those_of_the_text() -> None:
    text = "A  Gorgeous,\n\nnaïve\tFILM"
    spans = [(0, 1), (3, 11), (11, 12), (14, 19), (20, 24)]
    assert joined(written(text, spans)) == "A  Gorgeous,↵\n↵\nnaïve⇥FILM"
    assert "A  Gorgeous,↵ ↵ naïve⇥FILM" in plain(printed(written(text, spans), color_system="truecolor"))


@pytest.mark.parametrize("system", ["truecolor", None])
@pytest.mark.parametrize("between", ["\n", "\r\n", "\x0b", "\x0c", "\x85", "\u2028", "\u2029", "\r"])
def test_no_text_forges_a_line(between: str, system: str | None) -> None:
    text = f"a{between}positive: +9.000"
    one = written(text, [(0, 1), (1 + len(between), len(text))])
    for ones in (one, Comparison((one,))):
        lines = plain(printed(ones, 200, color_system=system)).splitlines()
        assert sum("positive: +9.000" in line for line in lines) == 1
        assert not [line for line in lines if line.strip().startswith("positive: +9")]


def test_subword_pieces_stand_together() -> None:
    one = written("overengineered film", [None, (0, 4), (4, 8), (8, 14), (15, 19), None])
    assert joined(one) == "[CLS] overengineered film [CLS]"
    assert "over(+0.400)engi(-0.400)neered(+1.000) film" in printed(one)


def test_without_offsets_the_spelling_of_the_tokenizer_is_joined() -> None:
    pieces = explanation(["[CLS]", "un", "##seen", "film", "##s"], words=(None, 0, 0, 1, 1))
    assert joined(pieces) == "[CLS] unseen films"
    apart = explanation(["a", "##b"], words=(0, 1), special=(False, False))  # a text may contain "##"
    assert joined(apart) == "a ##b"
    blanks = explanation(["<s>", "The", " cap", "ital", "\n", " is", "\nso"])
    assert joined(blanks) == "<s> The capital↵ is↵so"


def test_characters_of_several_tokens_are_one_piece_with_their_sum() -> None:
    one = written("ok 🎬!", [(0, 2), (3, 4), (3, 4), (3, 4), (4, 5)], features=["ok", "ð", "Ł", "¬", "!"])
    (section,) = sections_of(one)
    assert [piece.text for piece in section.pieces] == ["ok", "🎬", "!"]
    assert section.pieces[1].score == pytest.approx(sum(one.scores[1:4]))
    assert f"🎬({sum(one.scores[1:4]):+.3f})" in printed(one)


def test_characters_without_a_feature_are_marked_unless_they_are_invisible() -> None:
    assert joined(written("left out here", [(0, 4), (9, 13)])) == "left … here"
    assert joined(written("cut off after this", [(0, 3), (4, 7)])) == "cut off …"
    assert joined(written("a\u200b b\u202e", [(0, 1), (3, 4)])) == "a b"
    assert joined(written("first not shown", [(6, 9), (10, 15)])) == "not shown"  # as after without_sink


def test_offsets_are_those_of_the_text_before_it_is_made_printable() -> None:
    text = "\x1b[31m red \u202e film"
    one = written(text, [(1, 5), (6, 9), (12, 16)])
    assert joined(one) == "[31m red  film"
    assert "\x1b" not in printed(one)


def test_a_space_of_a_token_is_not_coloured() -> None:
    pieces = sections_of(written("a joy ", [(0, 1), (1, 6)]))[0].pieces
    assert [(piece.before, piece.text) for piece in pieces] == [("", "a"), (" ", "joy")]
    assert sections_of(written("a  b", [(0, 1), (1, 3), (3, 4)]))[0].pieces[1].text == "␣␣"


def test_offsets_in_any_order_and_empty_ones_are_shown() -> None:
    one = written("ab cd", [(3, 5), (0, 2), (0, 0), (5, 5)], features=["cd", "ab", "", "end"])
    assert joined(one).split()[:4] == ["cd", "ab", "␣", "end"]
    assert joined(replace(one, features=(), scores=(), special=(), words=(), offsets=(), unknown=())) == ""


def test_unknown_tokens_are_marked_once_in_a_row() -> None:
    one = written("電影 ok", [(0, 1), (1, 2), (3, 5)], unknown=(True, True, False))
    for text in (printed(one), plain(printed(one, color_system="256"))):
        assert text.count("[?]") == 2  # and in the note
        assert "[?] marks text that is not in the model's vocabulary" in text
    assert "電影[?] ok" in plain(printed(one, color_system="256"))
    assert "[?]" not in printed(written("ok", [(0, 2)]))


def test_sections_have_titles_and_texts_of_their_own() -> None:
    one = written("One two", [(0, 3), (4, 7)], sections=(("first", 1), ("second", 1)))
    assert [(section.name, section.pieces[0].text) for section in sections_of(one)] == [
        ("first", "One"), ("second", "two"),
    ]  # fmt: skip
    lines = printed(one).splitlines()
    assert lines.index("first") + 1 == lines.index("One(-1.000)")
    assert lines.index("second") + 1 == lines.index("two(+0.400)")


def test_the_bundled_model_shows_a_text_as_it_is() -> None:
    text = "The UNBELIEVABLY  overengineered\nplot; \U0001f3ac!"
    one = conserva.explain(conserva.load(), text)
    shown = "[CLS] The UNBELIEVABLY  overengineered↵\nplot; \U0001f3ac! [SEP]"
    assert joined(one) == joined(one.merged()) == shown
    assert joined(one.visible()) == shown[6:-6]


# Colours


def shades(style: str, system: ColorSystem) -> list[tuple[int, int, int]]:
    """Text colour and background of a style as a terminal shows them; None where it has none."""
    parsed = Style.parse(style)
    return [colour and tuple(colour.downgrade(system).get_truecolor()) for colour in (parsed.color, parsed.bgcolor)]


@pytest.mark.parametrize("system", [ColorSystem.TRUECOLOR, ColorSystem.EIGHT_BIT])
def test_every_shade_is_readable_on_light_and_on_dark(system: ColorSystem) -> None:
    found = set()
    for i in range(-100, 101):
        style = terminal_style(i / 100, 1.0)
        found.add(style)
        if not style:
            assert abs(i) < 5
            continue
        ink, ground = shades(style, system)
        assert ink is not None
        for behind in [ground] if ground else [BLACK, WHITE]:
            assert contrast(ink, behind) >= 4.5, (style, i)
    assert len(found) == 9


@pytest.mark.parametrize("system", [ColorSystem.TRUECOLOR, ColorSystem.EIGHT_BIT])
def test_steps_stay_apart_and_keep_their_hue(system: ColorSystem) -> None:
    for sign in (1, -1):
        grounds = [shades(terminal_style(sign * share, 1.0), system)[1] for share in (0.3, 0.6, 0.9)]
        hues = [red - blue for red, _, blue in grounds]
        assert hues == sorted(hues, reverse=sign < 0)
        assert len(set(grounds)) == 3
        assert all(hue * sign > 0 for hue in hues)
    full = Color.parse("#b2182b").downgrade(system).get_truecolor()
    assert shades(terminal_style(1.0, 1.0), system)[1] == full


@pytest.mark.parametrize("system", ["truecolor", "256"])
def test_a_score_near_zero_sets_no_colour(system: str) -> None:
    one = written("weak strong", [(0, 4), (5, 11)], scores=(0.01, 1.0))
    out = printed(one, color_system=system)
    line = next(line for line in out.splitlines() if "strong" in line)
    assert line.startswith("weak")
    assert line.count("48;") == 1
    assert "48;2;255;255;255" not in out


def test_special_tokens_are_dim_and_sixteen_colours_show_signs() -> None:
    one = written("bad good", [None, (0, 3), (4, 8)], scores=(0.0, -1.0, 1.0))
    assert "\x1b[2m[CLS]\x1b[0m" in printed(one, color_system="truecolor")
    few = printed(one, color_system="standard")
    assert "\x1b[94mbad(-1.000)" in few
    assert "\x1b[31mgood(+1.000)" in few
    assert "48;" not in few


def test_scores_without_a_sign_are_not_called_for_and_against() -> None:
    attention = written("a b", [(0, 1), (2, 3)], scores=(0.25, 0.75), ledger=None, method="rollout")
    out = plain(printed(attention, color_system="truecolor"))
    assert "against" not in out
    assert "colours from 0 to +0.750 (red); the scores of rollout have no sign" in out
    signed = replace(attention, method="gi", scores=(-0.25, 0.75))
    assert "against the target" in plain(printed(signed, color_system="truecolor"))
    both = plain(printed(Comparison((attention, signed))))
    assert "red for, blue against the target; without a sign: rollout" in both
    alone = plain(printed(Comparison((attention,))))
    assert "against" not in alone


# Numbers


@pytest.mark.parametrize("system", ["truecolor", "256", "standard", None])
def test_numbers_stand_beside_the_words(system: str | None) -> None:
    one = written("a Joy", [(0, 1), (2, 5)], scores=(-0.5, 2.0))
    assert "a(-0.500) Joy(+2.000)" in plain(printed(one, numbers=True, color_system=system))
    both = Comparison((one, replace(one, method="gi", scores=(0.25, -1.0))))
    text = plain(printed(both, numbers=True, color_system=system))
    assert "a(-0.500) Joy(+2.000)" in text
    assert "a(+0.250) Joy(-1.000)" in text
    coloured = plain(printed(one, color_system="truecolor"))
    assert "a Joy" in coloured
    assert "(-0.500)" not in coloured


HOSTILE = {
    "one long word": ("x" * 197, [(0, 197)]),
    "many pieces without a space": ("ab" * 100, [(i, i + 2) for i in range(0, 200, 2)]),
    "wide letters": ("電影很好看" * 20, [(i, i + 1) for i in range(100)]),
    "right to left": ("שלום עולם " * 10, [(i, i + 4) for i in range(0, 100, 5)]),
    "emoji": ("👩‍👩‍👧 " * 10, [(i, i + 5) for i in range(0, 60, 6)]),
    "only spaces": (" " * 50, [(i, i + 1) for i in range(50)]),
    "line breaks": ("a\n\n\nb\n" * 5, [(i, i + 1) for i in range(0, 30, 6)]),
    "zero width": ("a\u200b\u200db " * 10, [(i, i + 1) for i in range(0, 50, 5)]),
    "markup": ("[bold]x[/] :smile: " * 5, [(i, i + 6) for i in range(0, 90, 19)]),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("width", [40, 60, 100, 200])
@pytest.mark.parametrize("system", ["truecolor", None])
def test_no_number_is_broken_and_no_line_too_long(name: str, width: int, system: str | None) -> None:
    text, spans = HOSTILE[name]
    one = written(text, spans)  # type: ignore[arg-type]
    for shown in (printed(one, width, numbers=True, color_system=system), printed(one, width, color_system=system)):
        lines = plain(shown).splitlines()
        assert all(Text(line).cell_len <= width for line in lines)
    numbers = re.findall(r"\([+-]\d\.\d{3}\)", plain(printed(one, width, numbers=True, color_system=system)))
    assert len(numbers) == sum(len(section.pieces) for section in sections_of(one))


# What else is said


def test_classes_are_shown_as_what_they_are() -> None:
    one = explanation(["a"], target="a")
    assert "classes" not in printed(one)

    def line(head: str, *classes: tuple[str, float, float | None], **changes: Any) -> str:
        shown = tuple(ClassScore(*entry) for entry in classes)
        return printed(replace(one, classes=shown, provenance={"head": head}, **changes), 200).splitlines()[1]

    four = (("a", 4.0, 0.7), ("b", 2.0, 0.2), ("c", 1.0, 0.1), ("d", 0.0, 0.0))
    assert line("single_label", *four) == "classes: a 70.0%, b 20.0%, c 10.0%"
    assert line("single_label", *four, target="d") == "classes: a 70.0%, b 20.0%, d 0.0%"
    assert line("multi_label", *four[:2]) == "classes, each by itself: a 70.0%, b 20.0%"
    numbers = (("price", 4.0, None), ("size", -2.0, None))
    assert line("regression", *numbers) == "outputs: price +4.000, size -2.000"
    assert "class" not in line("regression", ("output", 4.0, None))
    assert "class" not in line("binary", ("toxic", 4.0, 0.98))


def test_windows_and_the_first_token_have_a_line_each() -> None:
    windows = (Window(0, 512, 1.0), Window(400, 700, 2.5))
    one = explanation(["a", "b"], windows=windows, sink=Sink("a", -1.0, 0.5, 0))
    text = printed(one, 200)
    assert (
        "explained in 2 windows of up to 512 tokens, with outputs from +1.000 to +2.500; the output is their mean"
        in text
    )
    assert "the first token 'a' has -1.000, 50% of the absolute relevance" in text
    assert "windows" not in printed(explanation(["a"]))


def test_a_large_gap_is_explained_below_the_ledger() -> None:
    lossy = explanation(["a"], method="gi", ledger=Ledger.of(1.5, 0.1, 0.0, 0.0))
    lines = printed(lossy, 200).splitlines()
    assert lines[-3].startswith("Large gap: of the output +1.500, gi attributes +0.100")
    assert lines[-4].startswith("= output")
    small = explanation(["a"], ledger=Ledger.of(1.5, 1.5, 0.0, 0.0))
    assert "Large gap" not in printed(small, 200)
    assert "of the output +1.500, gi attributes" in printed(Comparison((small, lossy)), 200)
    assert "no ledger" in printed(explanation(["a"], ledger=None))


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_comparison_has_a_row_for_each_method(width: int) -> None:
    one = written("Some words of a text", [(0, 4), (5, 10), (11, 13), (14, 15), (16, 20)])
    refused = {"a-flow": "needs attention maps"}
    ones = Comparison((one, replace(one, method="gae", ledger=None)), refused)
    lines = printed(ones, width).splitlines()
    header = lines[1]
    entries = ENTRIES if width >= 80 else ("inputs", "gap")
    assert header.split() == ["method", "text", *entries, *(["ledger"] if width >= 120 else [])]
    rows = [re.split(r" +", line)[0] for line in lines[2:] if line[:1].strip()]
    assert rows[:3] == ["exact", "gae", "a-flow"]
    exact = next(line for line in lines if line.startswith("exact"))
    for entry in entries:
        end = header.index(entry) + len(entry)
        assert exact[:end].endswith(f"  {getattr(one.ledger, entry):+.3f}")
    assert ("│" in exact) == (width >= 120)
    assert all(len(line) <= width for line in lines)
    table = [line for line in lines if not line.startswith(("By ", "Large "))]
    assert max(len(line.rstrip()) for line in table) <= 150  # columns are not wider than what is in them
    assert "needs attention maps" in "\n".join(lines)


def test_a_comparison_without_results_gives_the_reasons() -> None:
    assert "needs attention maps" in printed(Comparison((), {"a-flow": "needs attention maps"}))
    assert compare({}, Console(file=io.StringIO())) is None


def test_other_encodings_have_separators_that_they_can_print() -> None:
    one = written("a b", [(0, 1), (2, 3)])
    for ones in (one, Comparison((one,))):
        text = printed(ones, 120, encoding="ascii")
        assert "\\x" not in text
        assert "\\u" not in text
    assert max(width for _, width in terminal.BARS) == terminal.BAR


def test_the_word_that_is_asked_about_is_below_the_text() -> None:
    lines = printed([written("one two [word: two]", [(0, 3), (4, 7)])], numbers=True).splitlines()
    assert lines[lines.index("[word: two]") - 1].startswith("one(")
    assert not any("…" in line for line in lines)


def test_with_no_color_a_terminal_shows_scores_as_numbers_and_the_ledger_in_glyphs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = printed([explanation(["[CLS]", "joy"])], color_system="truecolor")
    assert "joy(+0.400)" in text
    assert "blue" not in text
    assert GLYPHS["positions"] in text
