"""Traces and generations in the terminal: readable labels, cells for any background, the ledger as a waterfall."""

import io
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from conserva.results.generation import Generation
from conserva.results.trace import Trace
from conserva.views.generation_terminal import show_generation
from conserva.views.trace import show_trace
from made_up_generations import ONE, generation
from made_up_traces import SHOWN

COLOURS = {"force_terminal": True, "color_system": "truecolor"}


def printed(result: Trace | Generation, width: int, encoding: str = "utf-8", **settings: Any) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding, "backslashreplace")
    console = Console(file=file, width=width, **settings)
    (show_trace if isinstance(result, Trace) else show_generation)(result, console)  # type: ignore[arg-type]
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def plain(text: str) -> list[str]:
    return Text.from_ansi(text).plain.split("\n")


# Traces


def test_every_feature_has_a_line_with_its_name_cells_and_score() -> None:
    out = printed(SHOWN, 100, **COLOURS)
    lines = plain(out)
    assert lines[1].split() == ["in", "0", "1", "inputs"]
    names = ["[cls]", "<script>alert(1)</scrip…", "電影↵", "end"]
    assert [line for line in lines[2:6] if not line.startswith(names[lines.index(line) - 2])] == []
    assert [line.split()[-1] for line in lines[3:6]] == ["+0.500", "-0.250", "+1.000"]
    assert "····" in lines[2]  # the inputs have no [cls]
    coloured = out.split("\n")
    assert "48;2;33;102;172m    " in coloured[4]  # -2.0 is the largest score
    assert "48;2;178;24;43m    " in coloured[2]  # 1.75
    assert "░░░░" in coloured[4]  # -0.25
    assert "48;2;255;255;255" not in out


def test_columns_and_sums_are_named_below() -> None:
    lines = plain(printed(SHOWN, 200, **COLOURS))
    assert "columns: inputs (in), then the outputs of layer 0 to layer 1" in lines
    assert "sums: in +1.250, 0 -1.375, 1 +1.750" in lines


@pytest.mark.parametrize("width", [40, 60, 120])
@pytest.mark.parametrize("layers", [1, 3, 24, 100])
def test_many_layers_stand_in_bands(width: int, layers: int) -> None:
    many = replace(
        SHOWN,
        layers=("inputs", *(f"layer {i}" for i in range(layers - 1))),
        scores=tuple(tuple(float(i % 4 == column) for column in range(4)) for i in range(layers)),
        sums=(1.0,) * layers,
        ledger=None,
    )
    out = printed(many, width, **COLOURS)
    lines = plain(out)
    assert all(Text(line).cell_len <= width for line in lines)
    full = re.findall(r"48;2;178;24;43m( +)\x1b", out)
    across = {len(cells) for cells in full}
    assert len(full) == layers
    assert len(across) == 1


def test_labels_do_not_touch() -> None:
    many = replace(
        SHOWN,
        layers=("inputs", *(f"layer {i}" for i in range(39))),
        scores=((1.0, 0.0, 0.0, 0.0),) * 40,
        sums=(1.0,) * 40,
    )
    ruler = plain(printed(many, 80, **COLOURS))[1].split()
    assert ruler[0] == "in"
    assert [int(label) for label in ruler[1:-1]] == sorted({int(label) for label in ruler[1:-1]})


def test_without_shades_each_layer_lists_its_largest_scores() -> None:
    for settings in ({"color_system": None}, {"force_terminal": True, "color_system": "standard"}):
        lines = plain(printed(SHOWN, 100, **settings))
        assert any(line.startswith("layer 0  -1.375  電影↵(-2.000)") for line in lines)
        assert any(re.fullmatch(r"layer 1  \+1\.750  \[cls\]\(\+1\.750\)", line) for line in lines)
        assert "colours" not in "\n".join(lines)


@pytest.mark.parametrize("settings", [COLOURS, {"color_system": None}])
def test_a_trace_ends_with_the_waterfall(settings: dict[str, Any]) -> None:
    lines = [line for line in plain(printed(SHOWN, 60, **settings)) if line]
    assert [re.split(r"  +", line)[:2] for line in lines[-5:]] == [
        ["inputs", "+1.250"], ["positions", "+0.500"], ["biases", "+0.250"], ["gap", "+0.000"], ["= output", "+2.000"],
    ]  # fmt: skip
    assert "no ledger" in printed(replace(SHOWN, ledger=None), 60, **settings)


def test_a_first_feature_with_much_of_the_relevance_is_mentioned() -> None:
    sink = replace(SHOWN, scores=((-9.0, 0.5, -0.25, 1.0), *SHOWN.scores[1:]), sums=(-7.75, *SHOWN.sums[1:]))
    assert "the first token '[cls]' has -9.000, 84% of the absolute relevance" in printed(sink, 200)
    assert "first token" not in printed(replace(SHOWN, scores=((0.1, 0.5, -0.25, 1.0), *SHOWN.scores[1:])), 200)


def test_a_trace_has_plain_characters_in_other_encodings() -> None:
    tame = replace(SHOWN, features=("[cls]", "a", "b", "c"))
    out = "\n".join(plain(printed(tame, 60, "ascii", **COLOURS)))
    assert "\\u" not in out.replace("\\u2026", "")


# Generations


HOSTILE = ("x" * 200, "שלום", "🎬" * 40, "\n\n", "", " ", "[bold]b[/bold]", "\x1b[31m")


@pytest.mark.parametrize("width", [50, 60, 80, 120, 200])
@pytest.mark.parametrize("settings", [COLOURS, {"color_system": "standard", "force_terminal": True}, {}])
def test_no_number_of_a_generation_is_cut(width: int, settings: dict[str, Any]) -> None:
    one = generation(("<s>", *HOSTILE), HOSTILE)
    lines = plain(printed(one, width, **settings))
    assert all(Text(line).cell_len <= width for line in lines)
    text = "\n".join(lines)
    for step in one.steps:
        assert f"{step.scores[0]:+.3f} (" in text
        assert f"{step.output:+.3f}" in text
        assert f"{step.probability:.1%}" in text


def test_the_ledgers_of_all_tokens_are_added_up() -> None:
    lines = plain(printed(ONE, 60))
    together = ONE.span(0, -1)
    assert f"all 7 tokens together: {together.output:+.3f}" in lines
    text = " ".join(" ".join(lines).split())
    assert f"the first token '<s>' has {together.scores[0]:+.3f}" in text or together.sink is None
    assert re.search(rf"= output +{re.escape(f'{together.output:+.3f}')}", text)
    assert re.search(rf"inputs +{re.escape(f'{together.ledger.inputs:+.3f}')}", text)


def test_one_token_has_its_own_ledger_and_some_tokens_have_none() -> None:
    def shown(steps: list[int]) -> str:
        out = io.StringIO()
        show_generation(ONE, Console(file=out, width=100), steps)
        return out.getvalue()

    assert "logit of ' Paris'" in shown([0])
    assert f"= output  {ONE.steps[0].output:+.3f}".replace("  ", "") in shown([0]).replace(" ", "").replace("=o", "= o")
    assert "output" not in shown([0, 2])


def test_the_share_of_the_first_token_is_stated() -> None:
    out = " ".join(printed(replace(ONE, sink=0), 200).split())
    sink = replace(ONE, sink=0).span(0, -1).sink
    assert f"the first token '<s>' has {sink.score:+.3f}, {sink.share:.0%} of the absolute relevance" in out


def test_scores_without_a_sign_are_not_called_for_and_against() -> None:
    steps = tuple(replace(step, ledger=None, scores=tuple(map(abs, step.scores))) for step in ONE.steps)
    assert "red for, blue against the token" in printed(ONE, 200)
    assert "against" not in printed(replace(ONE, steps=steps), 200)
