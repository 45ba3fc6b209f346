"""The note on a `show` that adds nothing: its edit shows what is listed, without what was hidden, tables included."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import declog
from tests.cli.conftest import Cli

PROFILES = {
    "alone": ("{show: [reward, loss]}", True),
    "with names that are hidden": ('{show: [loss, "reward*"], hide: [reward_std, kl]}', True),
    "with patterns of others": ('{show: [loss, "length*"], hide: ["reward*"]}', True),
    "with a table": ('{show: [loss, "table:samples"], hide: [kl]}', True),
    "with a hidden table": ('{show: [loss], hide: ["table:samples"]}', True),
    "with a condition that hides": ("{show: [loss], hide: [{select: kl, when: kl > 1}]}", True),
    "brings back one": ('{show: [reward_std], hide: ["reward*"]}', False),
    "brings back a part": ("{show: [length.mean], hide: [length]}", False),
    "brings back of a tag": ('{show: [reward], hide: ["tag:core"]}', False),
    "under a condition": ("{show: [{select: loss, when: loss > 0}]}", False),
    "a closed list": ("{only: [reward], show: [loss]}", False),
}


@pytest.mark.parametrize("case", PROFILES)
def test_a_show_that_adds_nothing(case: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where it brings nothing back; a pattern that might is not called so."""
    text, adds_nothing = PROFILES[case]
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text(f"defaults: [grpo, _self_]\nprofile: mine\nprofiles: {{mine: {text}}}\n")
    answer = " ".join(cli("check", "mine.yaml").out.split())
    found = re.search(r"`show` of the profile `mine` adds nothing.*?; (profiles: .*?) shows these alone", answer)
    assert (found is not None) is bool(adds_nothing)
    if found is None:
        return
    Path("edited.yaml").write_text(f"defaults: [grpo, _self_]\nprofile: mine\n{found[1]}\n")
    before, after = (declog.plan(name).profiles["mine"] for name in ("mine.yaml", "edited.yaml"))
    said = yaml.safe_load(text)
    words = {str(word) for word in said["show"]} - {"table:samples"}
    ids = {key.partition(".")[0] for key, _ in after.outputs}
    assert ids and after.outputs <= before.outputs and "kl" not in ids and "reward_std" not in ids
    assert all(any(id.startswith(word.rstrip("*")) for word in words) for id in ids)
    assert ("samples" in after.tables) is ("table:samples" in said["show"])
    assert "adds nothing" not in cli("check", "edited.yaml").out
