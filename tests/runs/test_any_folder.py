"""Any folder can be read: a stray, damaged or hostile file costs itself only, in bounded time and memory."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import declog
from declog.cli import main
from declog.runs import guarded
from tests import forks

PROFILE: dict[str, Any] = {
    "run": {"name": "any"}, "signals": {
        "any": {
            "x": {"axis": "completion"}, "text": {"axis": "completion", "type": "text"},
            "parts": {"axis": "completion", "family": True},
        },
    },
    "metrics": {
        "x": "mean(x)", "by": {"expr": "x", "by": "text"}, "parts": "mean(parts)",
        "h": {"expr": "x", "reduce": "histogram"},
    },
    "schemas": {"s": {"text": "text", "x": "float"}}, "tables": {"t": {"schema": "s"}},
    "alerts": {"high": {"when": "x > 0", "text": "high"}},
    "sinks": ["jsonl", "parquet"],
}  # fmt: skip
STEPS = range(4)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole run, which tests copy."""
    folder = tmp_path_factory.mktemp("clean") / "run"
    with declog.start(PROFILE, output_dir=folder) as log:
        for step in STEPS:
            with log.step(step):
                log.observe(x=[1.0, 2.0], text=["a", "b"], parts={"p": [1.0, 0.0]})
    (part,) = (folder / PART).parent.iterdir()
    part.rename(folder / PART)
    return folder


@pytest.fixture
def run(clean: Path, tmp_path: Path) -> Path:
    """A copy of a whole run."""
    shutil.copytree(clean, tmp_path / "run")
    return tmp_path / "run"


def steps(folder: Path, sink: str | None = None) -> tuple[list[int], list[int], list[str]]:
    """The steps of `x` and of the table's rows, and the problems, when everything was read."""
    read = declog.read(folder, sink=sink)
    scalars = [row["step"] for row in read.scalars if row["name"] == "x"]
    rows = [row["step"] for name, frame in read.tables.items() if name == "t" for row in frame]
    for what in vars(type(read)):  # everything that there is to read
        assert what.startswith("_") or getattr(read, what) is not None
    list(read.histograms), list(read.alerts), read.names(), read.scalars.arrow(), read.scalars.pandas()
    for frame in read.tables.values():
        frame.arrow()
    return scalars, rows, read.problems


WHOLE = (list(STEPS), [step for step in STEPS for _ in range(2)])


def parquet(path: Path, **columns: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def bomb(path: Path, *, says: bool = False) -> None:
    """Some kilobytes that hold gigabytes: rows without values, or (``says``) zeros, whose size stands in the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(packed(says))
    assert path.stat().st_size < 2 * 10**6


@cache
def packed(says: bool) -> bytes:
    """The bytes of such a file."""
    rows = 2**22
    column = pa.array(np.zeros(rows, np.int64)) if says else pa.nulls(rows, pa.int64())
    block = pa.table({"step": column, "mode": pa.nulls(rows, pa.string()), "name": pa.nulls(rows, pa.string())})
    file = io.BytesIO()
    with pq.ParquetWriter(file, block.schema, compression="zstd", use_dictionary=False) as writer:
        for _ in range(40):
            writer.write_table(block)
    return file.getvalue()


def rewritten(path: Path, change: Callable[[Any], Any]) -> None:
    """A JSON file with something else in it."""
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


PART, LINES = "parquet/scalars/000000/part-000000-000003.parquet", "jsonl/scalars.jsonl"
STRAY: dict[str, Callable[[Path], Path]] = {
    "a note": lambda run: _write(run / "parquet/scalars/notes.txt", b"hi"),
    "a note in a block": lambda run: _write(run / "parquet/tables/t/000000/.DS_Store", b"hi"),
    "a copied part": lambda run: _copy(run, run / "parquet/scalars/copy.parquet"),
    "a copied part in its block": lambda run: _copy(run, (run / PART).with_name("part-000000 (2).parquet")),
    "a part beside the blocks": lambda run: _copy(run, run / "parquet/scalars/part-000777.parquet"),
    "a pipe beside the blocks": lambda run: _pipe(run / "parquet/scalars/part-000777.parquet"),
    "a pipe in a block": lambda run: _pipe((run / PART).with_name("part-000777.parquet")),
    "a folder as a part": lambda run: _folder((run / PART).with_name("part-000777.parquet")),
    "no bytes": lambda run: _write((run / PART).with_name("part-000777.parquet"), b""),
    "other bytes": lambda run: _write((run / PART).with_name("part-000777.parquet"), b"\0" * 5000),
    "half a part": lambda run: _write((run / PART).with_name("part-000777.parquet"), (run / PART).read_bytes()[:700]),
    "broken pages": lambda run: _broken(run),
    "a link to a device": lambda run: _link((run / PART).with_name("part-000777.parquet"), "/dev/zero"),
    "a link to itself": lambda run: _link((run / PART).with_name("part-000777.parquet"), "part-000777.parquet"),
    "columns of another kind": lambda run: _part(run, step=["x"], mode=["train"], name=["x"], value=[1.0]),
    "a column that is another": lambda run: _part(run, step=[9], mode=["train"], name=["x"], value=["text"]),
    "no step": lambda run: _part(run, mode=["train"], name=["x"], value=[1.0]),
    "a text that is no UTF-8": lambda run: _part(
        run, step=[9], mode=["train"],
        name=pa.StringArray.from_buffers(1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")),
    ),
    "a part that unpacks to gigabytes": lambda run: _bomb((run / PART).with_name("part-000777.parquet")),
    "a table's first part": lambda run: _first(run),
    "a link out of the run": lambda run: _link(run / "more", "/"),
    "a pipe as lines": lambda run: _pipe(run / "jsonl/tables/other.jsonl"),
    "a device as lines": lambda run: _link(run / "jsonl/tables/other.jsonl", "/dev/zero"),
    "a folder as lines": lambda run: _folder(run / "jsonl/tables/other.jsonl"),
    "half a run.json": lambda run: _write(run / "run.json", b'{"kind": "declog-run", "run_id"'),
    "a run.json that is a pipe": lambda run: _pipe(run / "run.json"),
    "a run.json that is a device": lambda run: _link(run / "run.json", "/dev/zero"),
    "a run.json that is a folder": lambda run: _folder(run / "run.json"),
    "a run.json of other shapes": lambda run: _json(run / "run.json", {"failures": [1], "git": 7, "name": 9}),
    "earlier runs that are texts": lambda run: _json(run / "run.json", {"earlier": ["x"]}),
    "a plan.json that is a list": lambda run: _write(run / "plan.json", b"[1]"),
    "a plan.json of other shapes": lambda run: _json(run / "plan.json", {"outputs": 7, "alerts": [3], "tables": {}}),
    "a configuration that is no YAML": lambda run: _write(run / "config.yaml", b"a: [1\n\tb: *x"),
    "a configuration of many aliases": lambda run: _write(run / "config.yaml", _laughs()),
    "a configuration of other shapes": lambda run: _write(run / "config.yaml", b"sinks: [1]\nconstants: 4"),
    "a configuration that makes an object": lambda run: _write(run / "config.yaml", b"x: !!python/object:os.system {}"),
    "a configuration that is a pipe": lambda run: _pipe(run / "config.yaml"),
}  # fmt: skip


def _write(path: Path, data: bytes) -> Path:
    path.unlink(missing_ok=True)
    path.write_bytes(data)
    return path


def _add(path: Path, data: bytes) -> Path:
    """The bytes in the middle of a file."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:1], data, *lines[1:]]))
    return path


def _pipe(path: Path) -> Path:
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


def _folder(path: Path) -> Path:
    path.unlink(missing_ok=True)
    path.mkdir()
    return path


def _link(path: Path, target: str) -> Path:
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    return path


def _json(path: Path, change: dict[str, Any]) -> Path:
    rewritten(path, lambda facts: {**facts, **change})
    return path


def _copy(run: Path, target: Path) -> Path:
    shutil.copy(run / PART, target)
    return target


def _broken(run: Path) -> Path:
    data = (run / PART).read_bytes()
    return _write((run / PART).with_name("part-000777.parquet"), data[:4] + b"\xff" * 400 + data[404:])


def _part(run: Path, **columns: Any) -> Path:
    path = (run / PART).with_name("part-000777.parquet")
    parquet(path, **columns)
    return path


def _bomb(path: Path) -> Path:
    bomb(path)
    return path


def _first(run: Path) -> Path:
    """A part that is read before the others, of other types; they are more."""
    folder = run / "parquet/tables/t"
    whole = next(folder.glob("*/part-*.parquet"))
    for number in (1, 2):
        target = folder / f"{number:06d}" / "part-000100.parquet"
        target.parent.mkdir()
        shutil.copy(whole, target)
        table = pq.read_table(target).slice(0, 0)
        pq.write_table(table, target)
    path = folder / "000000" / "part-000000-000000.parquet"
    parquet(path, step=[9], mode=["train"], text=[[1, 2]], x=["text"])
    return path


def _laughs() -> bytes:
    lines = ["a: &a0 [x, x]"] + [f"b{k}: &a{k} [*a{k - 1}, *a{k - 1}, *a{k - 1}]" for k in range(1, 40)]
    return "\n".join(lines).encode()


EVENT = {"step": 9, "mode": "train"}
WIDE = EVENT | {f"c{number}": number for number in range(5000)}
ODD_LINES: dict[str, tuple[str, bytes | dict[str, Any]]] = {
    "a line that is too long": (LINES, b'{"x": "' + b"y" * (guarded.LINE_BYTES + 9) + b'"}'),
    "NUL bytes": (LINES, b"\0" * 100),
    "no UTF-8": (LINES, b'{"step": 9, "mode": "\xff\xfe", "scalars": {}}'),
    "deep JSON": (LINES, b'{"step": ' + b"[" * 10**6),
    "a long number": (LINES, b'{"step": ' + b"9" * 10**5 + b"}"),
    "a step that is a text": (LINES, EVENT | {"step": "x", "scalars": {"x": 1}}),
    "a step beyond 64 bits": (LINES, EVENT | {"step": 10**20, "scalars": {"x": 1}}),
    "scalars that are a list": (LINES, EVENT | {"scalars": [1]}),
    "a value that is a text": (LINES, EVENT | {"scalars": {"x": "one"}}),
    "a run that is a number": (LINES, EVENT | {"run_id": 7, "scalars": {"x": 1}}),
    "a metric that is a list": ("jsonl/metrics.jsonl", {"name": ["x"], "metric": 1}),
    "edges that are texts": ("jsonl/histograms.jsonl", EVENT | {"name": "h", "counts": [1], "edges": ["a"]}),
    "an alert without a text": ("jsonl/alerts.jsonl", EVENT | {"name": "high"}),
    "a row of many columns": ("jsonl/tables/t.jsonl", WIDE),
}
STRAY |= {
    what: lambda run, name=name, line=line: _add(  # type: ignore[misc]
        run / name, (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n"
    )
    for what, (name, line) in ODD_LINES.items()
}


@pytest.mark.parametrize("what", STRAY)
def test_one_file_costs_itself_only(what: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All rows of the other files are there, by the library and by the command line; the file is named."""
    file = STRAY[what](run)
    for sink in (None, "parquet", "jsonl"):
        scalars, rows, problems = steps(run, sink)
        assert (scalars, rows) == WHOLE, (sink, problems)
        if sink is None or sink in file.parts or file.name in ("run.json", "config.yaml"):
            assert any(str(file) in problem for problem in problems) or "plan" in str(file), problems
        assert len(problems) < 12
    assert main(["report", str(run)]) == 0
    assert main(["samples", str(run)]) == 0
    capsys.readouterr()


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "parquet,jsonl"])
@pytest.mark.parametrize("how", ["label", "member", "name", "table", "object"])
def test_a_lone_surrogate_is_its_escape(how: str, kind: str, tmp_path: Path) -> None:
    r"""In a label, a member, a name and a cell, of both sinks: every row is read, and the text is `\ud800`."""
    bad = json.loads('"\\ud800"')
    config = {**PROFILE, "sinks": kind.split(",")}
    with declog.start(config, output_dir=tmp_path) as log:
        for step in STEPS:
            with log.step(step):
                odd = bad if step == 1 else "ok"
                given: dict[str, Any] = {"x": [1.0, 2.0], "text": ["a", odd if how in ("label", "table") else "b"]}
                if how == "member":
                    given["parts"] = {odd: [1.0, 2.0]}
                log.observe(**given)
                if how == "name":
                    log.log_metric(f"{odd}/value", 1.0)
    assert log.failures == {}
    assert steps(tmp_path) == (*WHOLE, [])
    read = declog.read(tmp_path)
    if how in ("label", "member", "name"):
        assert [name for name in read.names() if "\\ud800" in name]
    if how == "table":
        assert [row["text"] for row in read.tables["t"] if row["step"] == 1] == ["a", "\\ud800"]
    assert main(["report", str(tmp_path)]) == main(["samples", str(tmp_path)]) == 0


BOUNDED = """
import resource, sys, time
import declog
began = time.monotonic()
read = declog.read(sys.argv[1])
rows = [row["step"] for row in read.scalars if row["name"] == "x"]
tables = {name: len(frame) for name, frame in read.tables.items()}
print(rows, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024, len(read.problems))
"""


@pytest.mark.parametrize(
    "what", ["a line of a gigabyte", "a file of a terabyte", "parts that unpack", "endless columns"]
)
def test_memory_is_bounded(what: str, run: Path) -> None:
    """A process that may have four gigabytes of addresses reads the rest of the run."""
    if what == "a line of a gigabyte":
        with open(run / LINES, "r+b") as file:
            file.seek(2**30, os.SEEK_END)  # a hole: nothing is on the disk
            file.write(b'\n{"step": 3, "mode": "train", "scalars": {}}\n')
    elif what == "a file of a terabyte":
        with open(run / LINES, "r+b") as file:
            file.truncate(2**40)
    elif what == "parts that unpack":
        for number in range(2):
            bomb((run / PART).with_name(f"part-00080{number}.parquet"), says=number == 1)
    else:
        lines = (json.dumps({"step": k, "mode": "train", f"a{k}": 1, f"b{k}": 1}) for k in range(20_000))
        (run / "jsonl/tables/wide.jsonl").write_text("\n".join(lines) + "\n")

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (4 * 2**30, 4 * 2**30))

    done = subprocess.run(
        [sys.executable, "-c", BOUNDED, str(run)], capture_output=True, text=True, timeout=120, preexec_fn=limited,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("[0, 1, 2, 3] "), done.stdout
    assert int(done.stdout.split()[-1]) >= 1


DENIED = """
import os, sys
import declog
def opened():
    read = declog.read(sys.argv[1])
    list(read.scalars), dict(read.tables), read.histograms, read.alerts, read.declog, read.plan
    return read
opened()  # what it imports may not be for everybody either
os.setgid(65534); os.setuid(65534)
read = opened()
print([row["step"] for row in read.scalars if row["name"] == "x"], read.state)
print(read.problems)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize(
    "name", ["parquet/scalars", PART, LINES, "jsonl", "run.json", "config.yaml", "run.lock", "more"]
)
def test_a_file_that_is_not_for_everybody(name: str, run: Path) -> None:
    """Permission denied to a file or a folder costs it, and is said."""
    path = run / name
    if not path.exists():
        path.write_text("{}") if "." in name else path.mkdir()
    for folder in (run, *run.parents):
        if folder.owner() == "root" and folder != Path("/") and "pytest" in str(folder):
            folder.chmod(0o755)
    path.chmod(0)
    done = forks.run(["-c", DENIED, run])
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.startswith("[0, 1, 2, 3]"), done.stdout
    assert name in ("run.lock",) or name in done.stdout


def test_a_newer_format_is_said(run: Path, tmp_path: Path) -> None:
    """The folder is read as far as it can be, with what to do; nothing is written into it."""
    rewritten(run / "run.json", lambda facts: {**facts, "format": 99, "declog": "9.9"})
    scalars, rows, problems = steps(run)
    assert (scalars, rows) == WHOLE
    assert [problem for problem in problems if "declog 9.9" in problem and "format 99" in problem]
    with pytest.raises(declog.SinkError, match=r"DL609.*format 99(.|\n)*use declog 9\.9"):
        declog.start({**PROFILE, "run": {"append": True}}, output_dir=run)
