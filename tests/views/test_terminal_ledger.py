"""The ledger in the terminal: rows that start where the one before ended, signs that can be seen, no broken line."""

import io
import itertools
import random
import re

import pytest
from rich.console import Console
from rich.text import Text

from conserva.engine.ledger import Ledger
from conserva.views.ledger_steps import axis_of, ledger_steps
from conserva.views.terminal_ledger import WIDEST, keys, ledger_bar, ledger_lines, reach_of

NEGATIVE = Ledger.of(2.8, -11.2, 2.0, 9.0)  # the gap is +3.0
KINDS = ["truecolor", "256", "standard", None]


def console(width: int = 80, colours: str | None = None, encoding: str = "utf-8") -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding)
    return Console(file=file, width=width, color_system=colours, force_terminal=colours is not None)  # type: ignore[arg-type]


def rows(ledger: Ledger[float], output: float, where: Console) -> list[str]:
    """The lines as they are printed, without colours."""
    for line in ledger_lines(ledger, output, where):
        where.print(line)
    where.file.flush()
    printed = where.file.buffer.getvalue().decode(where.encoding)  # type: ignore[attr-defined]
    return Text.from_ansi(printed).plain.rstrip("\n").split("\n")


def bars(lines: list[str]) -> list[tuple[int, int]]:
    """First and last column of what is drawn after the numbers, without the zero line and the arrow."""
    found = []
    for line in lines:
        start = re.match(r"\S+( \S+)? +[+-]\S+", line).end()  # type: ignore[union-attr]
        columns = [i for i, letter in enumerate(line) if i >= start and letter not in " │|→←<>"]
        found.append((columns[0], columns[-1]) if columns else (-1, -1))
    return found


# The geometry


def test_steps_begin_where_the_one_before_ends_and_the_last_is_the_output() -> None:
    steps = ledger_steps(NEGATIVE, 2.8)
    assert [step.name for step in steps] == ["inputs", "positions", "biases", "gap", "output"]
    assert [step.value for step in steps] == pytest.approx([-11.2, 2.0, 9.0, 3.0, 2.8])
    assert all(step.start == before.end for before, step in itertools.pairwise(steps[:4]))
    assert (steps[0].start, steps[-1].start, steps[-1].end) == (0, 0, 2.8)
    assert steps[3].end == pytest.approx(2.8)
    assert axis_of(steps) == pytest.approx((-11.2, 2.8))
    assert axis_of(ledger_steps(Ledger(0.0, 0.0, 0.0, 0.0), 0.0)) == (0.0, 1.0)


# The waterfall


@pytest.mark.parametrize("width", [60, 100, 200])
@pytest.mark.parametrize("colours", KINDS)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_bars_join_point_and_have_one_zero_line(width: int, colours: str | None, encoding: str) -> None:
    lines = rows(NEGATIVE, 2.8, console(width, colours, encoding))
    assert [line[:10].strip() for line in lines] == ["inputs", "positions", "biases", "gap", "= output"]
    assert [re.search(r"[+-]\d+\.\d{3}", line)[0] for line in lines] == [  # type: ignore[index]
        "-11.200", "+2.000", "+9.000", "+3.000", "+2.800",
    ]  # fmt: skip
    assert len({re.search(r"[+-]\d+\.\d{3}", line).end() for line in lines}) == 1  # type: ignore[union-attr]
    zero, right, left = ("│", "→", "←") if encoding == "utf-8" else ("|", ">", "<")
    (column,) = {line.index(zero) for line in lines}
    inputs, positions, biases, gap, output = bars(lines)
    assert inputs[1] == column - 1
    assert inputs[0] == positions[0]
    assert abs(biases[0] - positions[1]) <= 1
    assert gap[0] < column < gap[1]
    assert (output[0], output[1]) == (column + 1, gap[1])
    assert [line.count(left) for line in lines] == [1, 0, 0, 0, 0]
    assert [line.count(right) for line in lines] == [0, 1, 1, 1, 1]
    assert max(map(len, lines)) <= min(width, WIDEST + 30)


def test_without_colours_entries_have_glyphs_of_their_own() -> None:
    drawn = [set(line[20:]) - set(" │→←") for line in rows(NEGATIVE, 2.8, console())]
    assert drawn == [{"█"}, {"▓"}, {"▒"}, {"░"}, {"█"}]
    drawn = [set(line[20:]) - set(" |><") for line in rows(NEGATIVE, 2.8, console(encoding="ascii"))]
    assert drawn == [{"#"}, {"%"}, {"="}, {":"}, {"#"}]


@pytest.mark.parametrize("encoding", ["ascii", "cp1252", "latin-1"])
def test_other_encodings_get_characters_that_they_have(encoding: str) -> None:
    assert "".join(rows(NEGATIVE, 2.8, console(encoding=encoding))).isascii()
    assert keys(console(encoding=encoding)).plain.isascii()


def test_eighths_of_a_cell_are_drawn() -> None:
    drawn = []
    for eighths in range(8):  # the axis has 40 cells of 1
        lines = rows(Ledger(40.0, 0.0, 0.0, eighths / 8 - 20), 20 + eighths / 8, console(65, "truecolor"))
        drawn.append(lines[-1].partition("│")[2].rstrip("→"))
    assert drawn == [("█" * 20 + part).strip() for part in " ▏▎▍▌▋▊▉"]
    plain = rows(Ledger(40.0, 0.0, 0.0, -19.75), 20.25, console(65))[-1]
    assert plain.partition("│")[2] == "█" * 20 + "→"


def test_entries_that_round_to_nothing_have_a_number_alone() -> None:
    for line in rows(Ledger(4.0, -1e-6, 0.0, 1e-9), 4.0, console())[1:4]:
        assert re.fullmatch(r"\w+ +\S+ +│", line)


def test_a_narrow_terminal_has_the_numbers_alone() -> None:
    lines = rows(NEGATIVE, 2.8, console(30))
    assert all(re.fullmatch(r"(\w+|= output) +[+-][\d.]+", line) for line in lines)


EXTREME = [
    Ledger(0.0, 0.0, 0.0, 0.0),
    Ledger(1e300, -1e300, 1e300, -1e300),
    Ledger(1.7e308, 0.0, 0.0, -1.7e308),
    Ledger(-3.0, -2.0, -1.0, -0.5),
    Ledger(5e-324, 0.0, 0.0, 0.0),
    Ledger(123456.789, -123456.789, 1e-9, 0.0),
    Ledger(-0.0, 0.0, -0.0, 0.0),
]


@pytest.mark.parametrize("ledger", EXTREME)
@pytest.mark.parametrize("colours", KINDS)
def test_extreme_numbers_are_drawn_within_the_width(ledger: Ledger[float], colours: str | None) -> None:
    lines = rows(ledger, ledger.output, console(60, colours))
    assert len(lines) == 5
    assert max(map(len, lines)) <= 60


def test_no_random_ledger_breaks_a_line() -> None:
    chance = random.Random(1)
    for _ in range(300):
        ledger = Ledger(*(chance.gauss(0, 10 ** chance.uniform(-4, 3)) for _ in range(4)))
        width = chance.randint(45, 120)
        lines = rows(ledger, ledger.output, console(width, chance.choice(KINDS), chance.choice(["utf-8", "ascii"])))
        assert len(lines) == 5
        assert max(map(len, lines)) <= width
        zeros = {match.start() for line in lines for match in re.finditer(r"[│|]", line)}
        assert len(zeros) == 1


# In a table


def test_a_bar_has_negative_entries_at_the_left() -> None:
    reach = reach_of([NEGATIVE])
    assert reach == pytest.approx((-11.2, 14.0))
    text = ledger_bar(NEGATIVE, reach, 26, console()).plain.strip()
    left, right = text.split("│")
    assert set(left) == {"█"}
    assert re.fullmatch("▓{2}▒{9,10}░{3}", right)
    mirrored = Ledger(11.2, -2.0, -9.0, -3.0)
    left, right = ledger_bar(mirrored, reach_of([mirrored]), 26, console()).plain.strip().split("│")
    assert set(right) == {"█"}
    assert re.fullmatch("░{3}▒{9,10}▓{2}", left)


def test_bars_of_a_table_share_their_axis() -> None:
    small, large = Ledger(1.0, 0.0, 0.0, 0.0), Ledger(10.0, -5.0, 0.0, 0.0)
    reach = reach_of([small, large])
    lines = [ledger_bar(one, reach, 30, console()).plain for one in (small, large)]
    assert lines[0].index("│") == lines[1].index("│")
    assert [line.count("█") for line in lines] == [2, 20]
    assert reach_of([]) == (0.0, 0.0)
