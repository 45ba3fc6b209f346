"""The generated parts of the documentation are what the code says today."""

from pathlib import Path

import pytest

from tests.docs import reference

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_generated_parts_are_up_to_date(page: str) -> None:
    """`python -m tests.docs.reference docs/*.md` would change nothing."""
    text = (DOCS / page).read_text("utf-8")
    assert reference.rewritten(text) == text


def test_the_language_page_holds_every_part_of_the_reference() -> None:
    """Functions, reductions and the keys of the sections of a profile are all on the page, or on one of their own."""
    text = (DOCS / "language.md").read_text("utf-8")
    missing = [name for name in reference.parts() if f"<!-- reference: {name} -->" not in text]
    assert missing == [
        "codes",
        "error pages",
        "filters",
        "python api",
        "catalogue",
        "lengths of presets",
        "keys of Conditional",
        "keys of Described",
        "keys of Masked",
        "keys of Switched",
        "keys of Windowed",
        "keys of CaptureSpec",
        "keys of TestSpec",
        "keys of CompletionAxis",
        "keys of AxesSpec",
        "keys of Observed",
        "keys of Named",
        "keys of ObserveSpec",
        "keys of SelectorSpec",
    ]
