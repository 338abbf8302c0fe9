"""Write what the package is made of: a bill of materials in CycloneDX 1.6, and a table of licences.

    make sbom                                       # in an environment of its own that has every extra
    python scripts/bill_of_materials.py             # build/sbom.cdx.json and docs/licences.md, of this environment

Both say what the installed packages say of themselves, in their metadata, and are the same for the same environment.
A time stands in the bill only if SOURCE_DATE_EPOCH gives one.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

PACKAGE = "conserva"
CORE = "core"
DEVELOPMENT = ("test", "lint", "bench")
"""Extras that only those need who work on the package: they are in the table, and not in the bill."""

STRONG = re.compile(r"\bA?GPL|GNU (Affero )?General Public")
WEAK = re.compile(r"\bLGPL|\bMPL|\bEPL|\bCDDL|\bEUPL|Lesser General Public|Mozilla Public|Eclipse Public")
UNKNOWN = "not stated"


@dataclass
class Part:
    """An installed package, or one that is asked for and not installed."""

    name: str
    version: str = ""
    licence: str = UNKNOWN
    is_expression: bool = False
    record: str = ""
    """The SHA-256 of its RECORD, which has the hashes of all its files."""
    needs: tuple[str, ...] = ()
    groups: list[str] = field(default_factory=list)
    """Core, and the extras, that ask for it or for what asks for it."""
    asked_by: list[str] = field(default_factory=list)
    """Core, and the extras, that name it."""


@dataclass(frozen=True)
class Weights:
    """The weights of a bundled model."""

    name: str
    size: int
    sha256: str
    licence: str


def copyleft(licence: str) -> str:
    """Return "strong" or "weak" for a licence that asks derived works to be under it, and "" for others.

    Where one may choose, the choice that asks least counts. Parts with an exception for programs that merely use them,
    as GCC's runtime library has, do not count.
    """
    found = []
    for choice in re.split(r"\s+OR\s+", licence):
        terms = [term for term in re.split(r"\s+AND\s+", choice) if " WITH " not in term]
        strong, weak = any(map(STRONG.search, terms)), any(map(WEAK.search, terms))
        found.append("strong" if strong else "weak" if weak else "")
    return min(found, key=["", "weak", "strong"].index)


def licence_of(stated: Any) -> tuple[str, bool]:
    """Return the licence that a package's metadata states, and whether it is an SPDX expression."""
    if expression := stated.get("License-Expression"):
        return expression, True
    text = (stated.get("License") or "").strip()
    if text and "\n" not in text and len(text) <= 60:
        return text, False
    classified = [one.split(" :: ")[-1] for one in stated.get_all("Classifier") or [] if one.startswith("License ::")]
    return " AND ".join(classified) or UNKNOWN, False


def asked_for(name: str, extras: Iterable[str] = ()) -> Iterator[tuple[str, Requirement]]:
    """Yield what an installed package needs on this machine: the group that asks, and the requirement."""
    for text in metadata.metadata(name).get_all("Requires-Dist") or []:
        one = Requirement(text)
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            yield CORE, one
        else:
            yield from ((extra, one) for extra in extras if one.marker.evaluate({"extra": extra}))


def part_of(name: str) -> Part:
    """Return what the metadata of a package say."""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return Part(name)
    licence, is_expression = licence_of(found.metadata)
    record = found.read_text("RECORD")
    needs = sorted({canonicalize_name(one.name) for _, one in asked_for(name)})
    return Part(
        found.metadata["Name"],
        found.version,
        licence,
        is_expression,
        hashlib.sha256(record.encode()).hexdigest() if record else "",
        tuple(needs),
    )


def parts() -> dict[str, Part]:
    """Return all packages that the core and the extras ask for, and those that these ask for, by canonical name."""
    found: dict[str, Part] = {}
    extras = metadata.metadata(PACKAGE).get_all("Provides-Extra") or []
    for group, requirement in asked_for(PACKAGE, extras):
        if requirement.name == PACKAGE:  # extras of its own, which are listed by themselves
            continue
        name = canonicalize_name(requirement.name)
        found.setdefault(name, part_of(name)).asked_by.append(group)
        _mark(found, name, group, requirement.extras)
    return dict(sorted(found.items()))


def _mark(found: dict[str, Part], name: str, group: str, extras: Iterable[str] = ()) -> None:
    """Note that a group needs a package, and all that it needs."""
    part = found.setdefault(name, part_of(name))
    if group in part.groups and not extras:
        return
    if group not in part.groups:
        part.groups.append(group)
    if part.version:
        for _, one in asked_for(name, extras):
            _mark(found, canonicalize_name(one.name), group, one.extras)


def weights() -> list[Weights]:
    """Return the bundled weights, each with the licence that its card states."""
    found = []
    for folder in sorted(resources.files(PACKAGE).joinpath("models").iterdir(), key=lambda one: one.name):
        file = folder.joinpath("model.safetensors")
        if not file.is_file():
            continue
        content, card = file.read_bytes(), folder.joinpath("README.md").read_text(encoding="utf-8")
        stated = re.search(r"^## Licence\n- Weights: ([\w.-]+)[,.]", card, re.MULTILINE)
        if stated is None:
            raise SystemExit(
                f"The card of {folder.name!r} states no licence of its weights: add it under '## Licence'."
            )
        found.append(Weights(folder.name, len(content), hashlib.sha256(content).hexdigest(), stated[1]))
    return found


def bill(found: dict[str, Part], models: Iterable[Weights]) -> dict[str, Any]:
    """Return the bill of materials of the core, of the extras that users install, and of the bundled weights."""
    used = {name: part for name, part in found.items() if part.version and not set(part.groups) <= {*DEVELOPMENT}}
    own = part_of(PACKAGE)
    about: dict[str, Any] = {"component": {**_component(own), "type": "application"}}
    if epoch := os.environ.get("SOURCE_DATE_EPOCH"):
        about["timestamp"] = datetime.datetime.fromtimestamp(int(epoch), datetime.timezone.utc).isoformat()
    components = [_component(part) for part in used.values()]
    components += [_model(one, own.version) for one in models]
    named = [name for name, part in used.items() if part.asked_by]
    links = [{"ref": _purl(own), "dependsOn": [_purl(used[name]) for name in named]}]
    for part in used.values():
        links.append({"ref": _purl(part), "dependsOn": [_purl(used[name]) for name in part.needs if name in used]})
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": about,
        "components": components,
        "dependencies": links,
    }


def _purl(part: Part) -> str:
    version = part.version.replace("+", "%2B")
    return f"pkg:pypi/{canonicalize_name(part.name)}@{version}"


def _component(part: Part) -> dict[str, Any]:
    licence = {"expression": part.licence} if part.is_expression else {"license": {"name": part.licence}}
    groups = [name for name in sorted(set(part.groups)) if name not in DEVELOPMENT]
    found = {
        "type": "library",
        "bom-ref": _purl(part),
        "name": part.name,
        "version": part.version,
        "purl": _purl(part),
        "licenses": [licence],
    }
    properties = [{"name": f"{PACKAGE}:group", "value": name} for name in groups]
    if kind := copyleft(part.licence):
        properties.append({"name": f"{PACKAGE}:copyleft", "value": kind})
    if part.record:  # of the list of files that pip wrote, with the hash of each; not of the wheel
        properties.append({"name": f"{PACKAGE}:sha256-of-RECORD", "value": part.record})
    if groups:
        found |= {"scope": "required" if CORE in groups else "optional", "properties": properties}
    return found


def _model(one: Weights, version: str) -> dict[str, Any]:
    return {
        "type": "machine-learning-model",
        "bom-ref": f"{PACKAGE}/models/{one.name}",
        "name": f"{PACKAGE}/models/{one.name}/model.safetensors",
        "version": version,
        "scope": "required",
        "hashes": [{"alg": "SHA-256", "content": one.sha256}],
        "licenses": [{"license": {"id": one.licence}}],
        "properties": [{"name": f"{PACKAGE}:size", "value": str(one.size)}],
    }


def table(found: dict[str, Part], models: Iterable[Weights]) -> str:
    """Return the page of licences."""
    shown: set[str] = set()
    lines = [_HEAD]
    flagged = [(part, kind) for part in found.values() if (kind := copyleft(part.licence))]
    for kind, what in (("strong", "Strong copyleft"), ("weak", "Weak copyleft, file by file or library by library")):
        names = [f"{part.name} ({_where(part)})" for part, one in flagged if one == kind]
        lines.append(f"- {what}: {', '.join(names) or 'none'}.")
    if igraph := found.get("igraph"):
        is_core = CORE in igraph.groups
        lines.append(
            _IGRAPH.format(where="installed with the core" if is_core else f"in the extra {_where(igraph)}")[:-1]
        )
    groups = [CORE, *sorted({name for part in found.values() for name in part.groups} - {CORE, *DEVELOPMENT})]
    for group in (*groups, *DEVELOPMENT):
        rows = {name: part for name, part in found.items() if group in part.groups}
        more = {name: part for name, part in rows.items() if name not in shown}
        lines += [f"\n## {_title(group)}", _said(group, rows, more), *_rows(group, more)]
        shown |= set(rows)
    lines += ["\n## Bundled weights", "", "| weights | bytes | SHA-256 | licence |", "|---|---|---|---|"]
    lines += [f"| {one.name} | {one.size:,} | `{one.sha256}` | {one.licence} |" for one in models]
    return "\n".join([*lines, _FOOT])


_HEAD = """# Licences

conserva itself is under Apache-2.0. The packages that it needs have licences of their own, listed here as their
metadata state them, with the versions that `make sbom` found; it writes this page. What a package's build for one
system holds beside it, as compilers' libraries, is told in the package and not here. Builds of torch for GPUs bring
NVIDIA's packages with NVIDIA's own terms.

## Copyleft
"""
_IGRAPH = """
igraph is under the GPL and is {where}. conserva calls it in one place, attention flow (`a-flow`) through
three layers or more, and works without it otherwise. Whoever passes on conserva together with igraph has to follow the
GPL.
"""
_FOOT = """
The terms of the data that the weights were trained on are told in each model's card, `src/conserva/models/*/README.md`.
"""


def _title(group: str) -> str:
    return "Core" if group == CORE else f"Extra `{group}`"


def _where(part: Part) -> str:
    return CORE if CORE in part.groups else ", ".join(sorted(set(part.groups)))


def _said(group: str, rows: dict[str, Part], more: dict[str, Part]) -> str:
    """Return a line on what a group asks for, where not all of it is in its own table."""
    before = sorted(part.name for name, part in rows.items() if group in part.asked_by and name not in more)
    told = f"Also {', '.join(before)}, listed above." if before else ""
    return f"\n{told}\n" if told and more else f"\n{told}" if told else ""


def _rows(group: str, found: dict[str, Part]) -> Iterator[str]:
    if not found:
        return
    yield "| package | version | licence | copyleft | asked for |\n|---|---|---|---|---|"
    for part in sorted(found.values(), key=lambda one: (group not in one.asked_by, one.name.lower())):
        version = part.version.partition("+")[0] or "not installed"
        by = "by conserva" if group in part.asked_by else "by those"
        licence = part.licence if part.version else "unknown until it is installed"
        yield f"| {part.name} | {version} | {licence} | {copyleft(part.licence)} | {by} |"


def main() -> None:
    """Write both files."""
    root = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bill", type=Path, default=root / "build" / "sbom.cdx.json", help="where the bill goes")
    parser.add_argument("--table", type=Path, default=root / "docs" / "licences.md", help="where the table goes")
    given = parser.parse_args()
    found, models = parts(), weights()
    given.bill.parent.mkdir(parents=True, exist_ok=True)
    given.bill.write_text(json.dumps(bill(found, models), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    given.table.write_text(table(found, models), encoding="utf-8")
    for path in (given.bill, given.table):
        print(path)


if __name__ == "__main__":
    main()
