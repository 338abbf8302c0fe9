"""What the package is made of: licences of weights and of dependencies, the bill of materials, versions, attacks."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from conserva.models.bundled import BUNDLED_MODELS

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "src" / "conserva" / "models"


def script(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.pop(0)


def requirements(extra: str = "") -> list[Requirement]:
    """What pyproject.toml asks for, read without a parser of TOML, which Python 3.10 does not have."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = re.search(rf"^{extra or 'dependencies'} = (\[.*?\])$", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    quoted = re.findall(r'"([^"]+)"', found[1])
    return [one for one in map(Requirement, quoted) if one.name != "conserva"]


CORE = [canonicalize_name(one.name) for one in requirements()]
EXTRAS = (
    "captum",
    "data",
    "figures",
    "flow",
    "geometric",
    "gguf",
    "graphs",
    "images",
    "inseq",
    "test",
    "train",
    "lint",
    "bench",
)


# Weights


@pytest.mark.parametrize("name", BUNDLED_MODELS)
def test_the_card_of_bundled_weights_states_their_licence_and_the_terms_of_their_data(name: str) -> None:
    card = (MODELS / name / "README.md").read_text(encoding="utf-8")
    section = card.partition("\n## Licence\n")[2]
    assert section.startswith("- Weights: Apache-2.0, as this package")
    assert re.search(r"^- Data: .*licence", section, re.MULTILINE)


def test_cards_that_are_written_by_scripts_state_it_too() -> None:
    for name in ("sentiment_card.md", "train_digits.py"):
        text = (ROOT / "scripts" / name).read_text(encoding="utf-8")
        assert "\n## Licence\n- Weights: Apache-2.0, as this package" in text, name


# The bill of materials


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """The bill and the table of this environment, as the command writes them."""
    folder = tmp_path_factory.mktemp("bill")
    command = [sys.executable, str(ROOT / "scripts" / "bill_of_materials.py")]
    command += ["--bill", str(folder / "new" / "bill.json"), "--table", str(folder / "table.md")]
    environment = {key: value for key, value in os.environ.items() if key != "SOURCE_DATE_EPOCH"}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    return (folder / "new" / "bill.json").read_text("utf-8"), (folder / "table.md").read_text("utf-8")


@pytest.fixture(scope="module")
def bill(written: tuple[str, str]) -> dict[str, Any]:
    return json.loads(written[0])


def test_the_bill_has_the_form_of_cyclonedx(bill: dict[str, Any]) -> None:
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.6", 1)
    assert {"metadata", "components", "dependencies"} <= set(bill)
    assert bill["metadata"]["component"]["purl"].startswith("pkg:pypi/conserva@")
    references = [bill["metadata"]["component"]["bom-ref"], *(one["bom-ref"] for one in bill["components"])]
    assert len(set(references)) == len(references)
    for one in bill["components"]:
        assert one["type"] in ("library", "machine-learning-model")
        assert one["scope"] in ("required", "optional")
        assert one["name"]
        assert one["version"]
        (licence,) = one["licenses"]
        stated = licence.get("expression") or licence["license"].get("id") or licence["license"]["name"]
        assert stated.strip(), one["name"]
        assert all(set(each) == {"name", "value"} for each in one["properties"])
    for link in bill["dependencies"]:
        assert {link["ref"], *link["dependsOn"]} <= set(references)


def test_the_bill_has_every_dependency_of_the_core_as_installed(bill: dict[str, Any]) -> None:
    found = {canonicalize_name(one["name"]): one for one in bill["components"] if one["type"] == "library"}
    for name in CORE:
        one = found[name]
        assert one["version"] == metadata.version(name)
        assert one["purl"] == f"pkg:pypi/{name}@{one['version'].replace('+', '%2B')}"
        assert one["scope"] == "required"
        assert {"name": "conserva:group", "value": "core"} in one["properties"]
        assert "not stated" not in str(one["licenses"])
    assert found["tokenizers"]["scope"] == "required"  # which transformers asks for
    assert found["scikit-image"]["scope"] == found["tifffile"]["scope"] == "optional"
    assert "pytest" not in found


def test_the_bill_has_the_bundled_weights(bill: dict[str, Any]) -> None:
    models = {one["name"]: one for one in bill["components"] if one["type"] == "machine-learning-model"}
    assert len(models) == len(BUNDLED_MODELS)
    for name in BUNDLED_MODELS:
        content = (MODELS / name / "model.safetensors").read_bytes()
        one = models[f"conserva/models/{name}/model.safetensors"]
        assert one["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}]
        assert one["licenses"] == [{"license": {"id": "Apache-2.0"}}]
        assert one["properties"] == [{"name": "conserva:size", "value": str(len(content))}]


def test_nothing_of_the_machine_is_in_what_is_written(written: tuple[str, str]) -> None:
    for text in written:
        assert "timestamp" not in text
        assert not re.search(r"/(home|root|work|usr|opt|tmp|Users)/|site-packages|file:", text)


def test_what_is_written_is_the_same_each_time(written: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    made = script("bill_of_materials")
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    found, models = made.parts(), made.weights()
    assert json.loads(written[0]) == made.bill(found, models)
    assert written[1] == made.table(found, models)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    assert made.bill(found, models)["metadata"]["timestamp"] == "1970-01-01T00:00:00+00:00"


def test_the_page_of_licences_is_not_behind(written: tuple[str, str]) -> None:
    page = (ROOT / "docs" / "licences.md").read_text(encoding="utf-8")
    rows = {canonicalize_name(line.split("|")[1].strip()): line for line in page.splitlines() if line.startswith("| ")}
    for one in [*requirements(), *(each for extra in EXTRAS for each in requirements(extra))]:
        row = rows[canonicalize_name(one.name)]
        assert "not installed" not in row, row
        assert "not stated" not in row, row
    for text in (page, written[1]):
        assert text.partition("## Bundled weights")[2] == page.partition("## Bundled weights")[2]
        assert re.search(r"Strong copyleft: .*igraph \((core|[a-z]+)\)", text)
        assert "igraph is under the GPL" in text


@pytest.mark.parametrize(
    ("licence", "kind"),
    [
        ("MIT", ""),
        ("Apache-2.0 OR BSD-2-Clause", ""),
        ("GNU General Public License (GPL)", "strong"),
        ("AGPL-3.0-only", "strong"),
        ("GPL-2.0-or-later OR MIT", ""),
        ("GPL-3.0-only OR LGPL-3.0-only", "weak"),
        ("MPL-2.0 AND MIT", "weak"),
        ("Mozilla Public License 2.0 (MPL 2.0)", "weak"),
        ("GNU Lesser General Public License v3 (LGPLv3)", "weak"),
        ("BSD-3-Clause AND GPL-3.0-or-later WITH GCC-exception-3.1", ""),
    ],
)
def test_copyleft_is_told(licence: str, kind: str) -> None:
    assert script("bill_of_materials").copyleft(licence) == kind


# Versions


def pythons() -> list[str]:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return re.findall(r'"Programming Language :: Python :: (3\.\d+)"', text)


def test_the_oldest_python_that_is_claimed_is_the_one_that_is_required() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'requires-python = ">={pythons()[0]}"' in text
    assert f"{sys.version_info.major}.{sys.version_info.minor}" in pythons()


@pytest.mark.parametrize("python", pythons())
def test_every_package_is_pinned_once_for_each_python(python: str) -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    found: dict[str, Requirement] = {}
    for pin in pins:
        if pin.marker is None or pin.marker.evaluate({"python_version": python}):
            assert canonicalize_name(pin.name) not in found, pin
            found[canonicalize_name(pin.name)] = pin
    assert {canonicalize_name(pin.name) for pin in pins} == set(found)
    for one in [*requirements(), *requirements("test"), *requirements("lint")]:
        (pinned,) = found[canonicalize_name(one.name)].specifier
        assert pinned.operator == "=="
        assert one.specifier.contains(pinned.version), one


def test_markers_of_pins_speak_of_pythons_alone() -> None:
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines():
        if ";" in line:
            assert re.fullmatch(r'python_version (<|>=) "3\.\d+"', str(Marker(line.partition(";")[2]))), line


def test_the_oldest_packages_are_those_of_the_lower_bounds() -> None:
    versions = script("check_versions")
    oldest = {Requirement(text).name: str(Requirement(text).specifier) for text in versions.wanted("oldest")}
    assert set(CORE) <= set(oldest)
    assert all(specifier.startswith("==") and specifier.endswith(".*") for specifier in oldest.values())
    assert versions.wanted("pinned")[-2:] == ["--constraint", str(ROOT / "constraints.txt")]


# Attacks


ATTACK = """
import os
def test_attack():
    assert os.environ["ATTACK_SCALE"] == "2.5"
    with open({path!r}, "a") as file:
        print(os.environ["ATTACK_SEED"], file=file)
    assert os.environ["ATTACK_SEED"] != "13"
"""


def attack(tmp_path: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], list[int]]:
    test, seeds = tmp_path / "test_it.py", tmp_path / "seeds"
    test.write_text(ATTACK.format(path=str(seeds)), encoding="utf-8")
    command = [sys.executable, str(ROOT / "scripts" / "attack.py"), "--scale", "2.5", *arguments, str(test)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done, [int(line) for line in seeds.read_text().split()]


def test_attacks_go_on_with_fresh_seeds_until_the_time_is_up(tmp_path: Path) -> None:
    done, seeds = attack(tmp_path, "--seconds", "0")
    assert done.returncode == 0, done.stdout
    assert len(seeds) == 1
    assert f"ATTACK_SEED={seeds[0]}" in done.stdout
    assert "0 of 1 rounds failed; 1 tests passed" in done.stdout
    _, again = attack(tmp_path, "--seconds", "0")
    assert again[0] != again[1]


def test_a_failure_is_told_with_what_repeats_it(tmp_path: Path) -> None:
    done, seeds = attack(tmp_path, "--seconds", "0", "--seed", "13")
    assert done.returncode == 1
    assert seeds == [13]
    assert "1 of 1 rounds failed; 0 tests passed" in done.stdout
    assert re.search(r"To repeat a round that failed: .* --seed 13 ", done.stdout)


def test_cases_of_attacks_are_counted(tmp_path: Path) -> None:
    test = tmp_path / "test_counted.py"
    counts = "open(os.environ['ATTACK_COUNTS'], 'a').write('texts\\t1500\\nkills\\t2\\ntexts\\t1\\n')"
    test.write_text(f"import os\ndef test_attack():\n    {counts}\n", encoding="utf-8")
    command = [sys.executable, str(ROOT / "scripts" / "attack.py"), "--seconds", "0", str(test)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.endswith("Cases: 2 kills, 1,501 texts.\n"), done.stdout
