"""Notebooks: a cell that is run twice, the console in a cell, and the page of a run in a frame below it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nbclient", reason="nbclient is not installed")

import nbformat
from nbclient import NotebookClient

import declog
from tests.browser import Open
from tests.docs.markdown import ROOT, blocks
from tests.forks import PATIENCE_S

PAGE = ROOT / "docs" / "index.md"
HEAD = PAGE.read_text(encoding="utf-8").partition("\n## Notebooks\n")[0].count("\n")
CELLS = [block for block in blocks(PAGE) if block.language == "python" and block.line > HEAD]


def executed(cells: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The outputs of each cell of a notebook, run by IPython's kernel in ``folder``."""
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    code: list[dict[str, Any]] = [
        {
            "cell_type": "code",
            "id": f"c{number}",
            "source": cell,
            "metadata": {},
            "outputs": [],
            "execution_count": None,
        }
        for number, cell in enumerate(cells)
    ]
    text = json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": code})
    notebook: Any = nbformat.reads(text, as_version=4)  # type: ignore[no-untyped-call]
    resources = {"metadata": {"path": str(folder)}}
    NotebookClient(notebook, timeout=PATIENCE_S, kernel_name="python3", resources=resources).execute()
    return [cell.outputs for cell in notebook.cells]


def shown(outputs: Sequence[Any], kind: str = "text/plain") -> str:
    """What a cell shows: what it prints and displays."""
    return "".join(each.text if each.output_type == "stream" else each.data.get(kind, "") for each in outputs)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore:.*TCP.*")
def test_the_notebook_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: Open) -> None:
    """Its cells are run, each twice: every run has a folder of its own, and the page is shown in its frame."""
    cells = [cell.text for cell in CELLS for _ in range(2)]
    outputs = executed(cells, tmp_path, monkeypatch)
    assert "step 29 · train" in shown(outputs[0]) and "step 29 · train" in shown(outputs[1])
    runs = sorted(file.parent for file in tmp_path.glob("outputs/**/run.json"))
    assert len(runs) == 2 and {declog.read(run).state for run in runs} == {"finished"}
    frame = shown(outputs[2], "text/html")
    assert shown(outputs[2]).startswith("<report of ") and frame.startswith("<iframe sandbox=")
    page = tmp_path / "notebook.html"
    page.write_text(f'<!doctype html><html data-ready="">{frame}</html>', encoding="utf-8")
    found = opened(page)
    inside = found.page.frame_locator("iframe")
    inside.locator("html[data-ready]").wait_for(state="attached")
    assert "reward" in inside.locator("body").inner_text()
    assert found.said == [] and [request for request in found.requests if not request.startswith("file:")] == []


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    """A recorder that is open is asked for what it has logged so far; a folder and a run that was read are the same."""
    with declog.start("grpo", ["sinks=[parquet]", "axes.group.size=4"], output_dir=tmp_path / "run") as log:
        for step in range(3):
            with log.step(step):
                log.observe(reward=[0.0, 1.0, 0.0, float(step)])
        page = declog.report(log)
        assert "step" in str(page) and page._repr_html_().count("<iframe") == 1
    path = tmp_path / "report.html"
    declog.report(declog.read(tmp_path / "run"), tmp_path / "run").save(path)
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    with pytest.raises(declog.UsageError, match="DL607"):
        declog.report(tmp_path / "none")
