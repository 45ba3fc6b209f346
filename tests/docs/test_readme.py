"""README.md, CONTRIBUTING.md and the way through docs/: what they say of the tree and the language is so."""

from __future__ import annotations

import re
import tomllib

import pytest
import yaml

import declog
from tests.conftest import WritePreset
from tests.docs.markdown import ROOT


def part(heading: str, page: str) -> str:
    text = (ROOT / page).read_text(encoding="utf-8")
    (found,) = re.findall(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    return str(found)


def test_the_map_names_every_room_and_fits_in_six_lines() -> None:
    """The list of README.md: the presets, and the rooms of the package, each once."""
    (places,) = re.findall(r"(?:^-.*\n)+", part("Where things live", "README.md"), re.MULTILINE)
    rooms = [f"declog/{file.parent.name}/" for file in (ROOT / "declog").glob("*/__init__.py")]
    named = re.findall(r"`([\w/]+/)`", places)
    assert sorted(named) == sorted(["conf/declog/", *rooms])
    assert len(places.splitlines()) <= 6
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 140


def test_what_an_addition_edits_is_there() -> None:
    """Every path of CONTRIBUTING.md leads to a file or folder, or to one that the addition makes."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = re.findall(r"`((?:conf|declog|docs|tests)/[\w./]+)`", text)
    assert len(named) > 15
    made = [name for name in named if not (ROOT / name).exists()]
    assert all("NAME" in name or "DLnnn" in name for name in made), made
    assert all((ROOT / name.partition("NAME")[0].partition("DLnnn")[0]).parent.is_dir() for name in made)


def test_the_extras_are_those_of_the_package() -> None:
    """All of them, and no other."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    (sentence,) = re.findall(r"The extras are (.*?);", part("Install", "docs/index.md"), re.DOTALL)
    assert set(re.findall(r"`(\w+)`", sentence)) == set(extras)


def test_the_pages_stand_in_one_order() -> None:
    """Every page of docs/ once, in the navigation of the site and on its first page; those of README.md are of them."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    sections = [entries for section in nav[1:] for entries in section.values()]
    pages = [page for entries in sections for entry in entries for page in entry.values()]
    assert sorted(["index.md", *pages]) == sorted(file.name for file in (ROOT / "docs").glob("*.md"))
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| \[.*?\]\((.*?)\) \|", index, re.MULTILINE) == pages
    named = re.findall(r"/docs/(\w+\.md)\)", part("Documentation", "README.md"))
    assert named == [page for page in pages if page in named]


def test_the_documentation_stays_short() -> None:
    """Sixteen pages, and 35,000 words beside what is generated: tables of keys, metrics, errors and benchmarks."""
    pages = [page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md")]
    generated = re.compile(r"<!-- reference: .*?<!-- end -->", re.DOTALL)
    table = re.compile(r"^\|.*\n\|-+:\|.*\n(\|.*\n)*", re.MULTILINE)  # as benchmarks write them
    assert len(pages) <= 16
    assert sum(len(table.sub("", generated.sub("", page)).split()) for page in pages) <= 35_000


REFUSED = {
    "families per token": "signals: {any: {heads: {axis: token, family: true}}}",
    "families of text": "signals: {any: {answers: {axis: completion, family: true, type: text}}}",
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_said_to_be_refused_is_refused(what: str, write_preset: WritePreset) -> None:
    """With DL205 at its place, and nothing else is wrong with the profile."""
    assert what in " ".join((ROOT / "docs" / "language.md").read_text(encoding="utf-8").split())
    folder = write_preset("mine", f"defaults: [grpo, _self_]\n{REFUSED[what]}\n")
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(declog.compose("mine", config_dir=folder))
    assert {problem.code for problem in caught.value.problems} == {"DL205"}
