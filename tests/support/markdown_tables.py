"""What tests share: markdown tables."""

import re


def section(text: str, title: str) -> str:
    return re.split(r"\n## ", text.partition(f"\n## {title}\n")[2])[0]


def tables(text: str) -> list[list[dict[str, str]]]:
    """Return the tables of a part of a page: a mapping from titles to cells for each row."""
    found = []
    for lines in re.findall(r"(?:^\|.*\|\n?)+", text, flags=re.MULTILINE):
        cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines.strip().splitlines()]
        assert {len(row) for row in cells} == {len(cells[0])}
        found.append([dict(zip(cells[0], row, strict=True)) for row in cells[2:]])
    return found


def row_in(rows: list[dict[str, str]], **cells: str) -> dict[str, str]:
    (found,) = (row for row in rows if all(row[key].split("<br>")[0] == cell for key, cell in cells.items()))
    return found


def plain(cell: str) -> list[str]:
    return cell.replace("**", "").replace("&nbsp;", " ").split("<br>")
