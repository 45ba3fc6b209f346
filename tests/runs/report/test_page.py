"""The report in a browser: it shows what the sinks wrote, whole and as text, and leads from one thing to the next."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from declog.runs.report import page as reports
from declog.runs.run import read
from tests.browser import Open, Opened
from tests.runs.report import runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small run with everything in it."""
    return runs.small(tmp_path_factory.mktemp("run") / "a")


@pytest.fixture(scope="module")
def rows(run: Path) -> list[dict[str, Any]]:
    """The rows of its table, as the jsonl sink has them."""
    return runs.jsonl(run, "tables/samples")


@pytest.fixture(scope="module")
def file(run: Path) -> Path:
    """Its report."""
    reports.write(run / "report.html", read(run))
    return run / "report.html"


def texts(page: Page, selector: str) -> list[str]:
    """The texts of all elements that a selector finds."""
    found: list[str] = page.eval_on_selector_all(selector, "all => all.map((one) => one.textContent)")
    return found


def chart(page: Page, name: str) -> str:
    """A selector of the chart that has a curve."""
    (place,) = [place for place, names in enumerate(charts(page)) if name in names]
    return f".plot >> nth={place}"


def charts(page: Page, selector: str = ".plot") -> list[list[str]]:
    """The names of the curves of each chart."""
    found: list[str] = page.eval_on_selector_all(selector, "all => all.map((one) => one.dataset.name)")
    return [names.split("\n") for names in found]


def value_of(text: str) -> float:
    """A number as the page writes it."""
    return float(text.replace("\u2212", "-").replace("\u221e", "inf").replace(",", ""))


def selected(page: Page) -> int:
    """The row that is shown."""
    return int(page.get_attribute("#list li.on", "data-row") or -1)


def settled(page: Page, found: str) -> None:
    """Wait until so many samples are listed."""
    page.wait_for_function("(text) => document.querySelector('#found').textContent === text", arg=found)


def test_it_opens_offline_and_in_silence(file: Path, opened: Open) -> None:
    """One request, for the file itself; nothing is said on the console while all charts are drawn."""
    page = opened(file)
    page.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.requests == [file.as_uri()]
    assert page.said == []
    assert page.page.inner_text("h1") == "report_run"
    assert page.page.title() == "report_run · declog report"
    assert page.page.locator(".plot canvas").count() == page.page.locator(".plot").count()


def test_every_scalar_has_one_curve_whose_label_states_its_last_value(run: Path, file: Path, opened: Open) -> None:
    """Of all modes; that of the loss is NaN, and said to be."""
    page = opened(file).page
    logged = runs.last_values(run)
    spoken = {
        name if mode == "train" or name.startswith("eval/") else f"{name} ({mode})": value
        for (name, mode), value in logged.items()
    }
    names = [name for found in charts(page) for name in found]
    assert sorted(names) == sorted({name for name, _ in logged})
    said = "; ".join(page.eval_on_selector_all(".canvas", "all => all.map((one) => one.ariaLabel)")).split("; ")
    labels = {one.partition(": ")[0]: one.partition(", last ")[2].partition(", least")[0] for one in said}
    assert sorted(labels) == sorted(spoken)
    shown = {name: value_of(label) for name, label in labels.items()}
    assert math.isnan(shown["loss"])
    assert page.inner_text(f"{chart(page, 'loss')} >> .now") == "NaN"
    assert shown == pytest.approx(spoken, rel=5e-3, abs=1e-12, nan_ok=True)


def test_the_formula_shows_on_focus(file: Path, opened: Open) -> None:
    """With the profile's words about the metric."""
    page = opened(file).page
    page.locator(chart(page, "kl")).locator(".info").focus()
    hint = page.inner_text("#tip")
    assert "mean(kl)" in hint
    assert "exp(" in hint
    assert "healthy: 0 to 0.2" in hint
    page.locator("#filter").focus()
    assert page.locator("#tip").is_hidden()


def test_an_alert_leads_to_the_nearest_samples(file: Path, opened: Open) -> None:
    """The step is chosen in the samples, and marked in the curves."""
    page = opened(file).page
    assert "KL 0.904 left the trust region" in page.inner_text("#alerts")
    page.locator("#alerts .link", has_text="step 15").click()
    settled(page, "8 of 264")
    assert page.input_value("#bystep") == "15"
    assert page.inner_text("#detail b") == "step 15"
    assert page.inner_text("#pin b") == "Step 15"


def test_texts_are_whole(file: Path, rows: list[dict[str, Any]], opened: Open) -> None:
    """A sample's text, opened by its link, is that of the file, character by character, and so is its reward."""
    for row in (0, 100, 230):
        page = opened(file, f"#sample=samples%2F{row}").page
        assert selected(page) == row
        assert page.text_content(".completion .txt") == rows[row]["completion"]
        assert page.text_content(".prompt .txt") == rows[row]["prompt"]
        assert float(page.inner_text("#detail .score")) == pytest.approx(rows[row]["reward"], rel=1e-3)


def test_tokens_are_coloured_by_each_of_their_values(file: Path, rows: list[dict[str, Any]], opened: Open) -> None:
    """As many as were logged; a token says its values."""
    page = opened(file, "#sample=samples%2F100").page
    cell = rows[100]["pieces"]
    assert texts(page, ".tk") == cell["tokens"]
    assert texts(page, ".tools .btn") == ["none", "logprob", "kl", "advantage"]
    colours = []
    for name in ("logprob", "kl", "advantage", "none"):
        page.locator(".tools .btn", has_text=name).click()
        colours.append(page.eval_on_selector_all(".tk", "all => all.map((one) => one.style.backgroundColor)"))
    assert len({tuple(one) for one in colours}) == 4 - (colours[0] == colours[1])
    assert set(colours[3]) == {""}
    page.locator(".tk").nth(3).hover()
    (logprob,) = [line.split()[1] for line in page.inner_text("#tip").splitlines() if line.startswith("logprob")]
    assert value_of(logprob) == pytest.approx(cell["logprob"][3], rel=1e-3)


def test_a_group_side_by_side(file: Path, rows: list[dict[str, Any]], opened: Open) -> None:
    """All of its members, best first, each scrolled to its end, where the answer is."""
    page = opened(file, "#sample=samples%2F100").page
    page.keyboard.press("g")
    page.wait_for_selector(".side")
    members = sorted(range(100, 104), key=lambda row: -rows[row]["reward"])
    shown = page.eval_on_selector_all(".member", "all => all.map((one) => Number(one.dataset.row))")
    assert shown == members
    assert texts(page, ".member .txt") == [rows[row]["completion"] for row in members]
    rewards = [rows[row]["reward"] for row in members]
    said = {key: value_of(value) for key, value in (text.split() for text in texts(page, ".summary span")[:2])}
    assert said == pytest.approx({"mean": statistics.mean(rewards), "std": statistics.stdev(rewards)}, rel=1e-3)
    ends = "all => all.map((one) => one.scrollTop + one.clientHeight >= one.scrollHeight - 2)"
    assert page.eval_on_selector_all(".member .txt", ends) == [True] * 4


def test_a_prompt_over_the_run(file: Path, rows: list[dict[str, Any]], opened: Open) -> None:
    """Its rows at all steps, each a way to it."""
    page = opened(file, "#sample=samples%2F0").page
    same = [row for row, one in enumerate(rows) if one["prompt"] == rows[0]["prompt"]]
    assert page.locator(".dot").count() == len(same)
    page.locator(".dot").last.click()
    page.wait_for_function("() => document.querySelector('#list li.on').dataset.row !== '0'")
    assert selected(page) in same[1:]


def test_search_finds_what_grep_finds(file: Path, rows: list[dict[str, Any]], opened: Open) -> None:
    """In all texts, whatever the case; what was found is marked."""
    page = opened(file).page
    for word in ("ANSWER>33", "hmm", "nowhere"):
        count = sum(word.lower() in f"{row['prompt']}\n{row['completion']}".lower() for row in rows)
        page.fill("#search", word)
        settled(page, f"{count} of {len(rows)}")
        assert (word.lower() in "".join(texts(page, "#detail .found")).lower()) == (count > 0)
    page.fill("#search", "Boxes of")
    settled(page, f"{sum('boxes of' in (row['prompt'] or '') for row in rows)} of {len(rows)}")
    assert set(texts(page, "#detail mark")) == {"boxes of"}
    page.fill("#search", "nowhere")
    settled(page, f"0 of {len(rows)}")
    assert page.inner_text("#detail") == "No sample matches."


@pytest.mark.parametrize("order", ["worst", "best", "step", "latest", "longest"])
def test_orders(order: str, file: Path, rows: list[dict[str, Any]], opened: Open) -> None:
    """The list begins with what its name says."""
    page = opened(file).page
    page.select_option("#byorder", order)
    page.wait_for_function("() => document.querySelector('#list li.on')?.ariaPosInSet === '1'")
    keys: dict[str, Callable[[dict[str, Any]], float]] = {
        "worst": lambda row: row["reward"], "best": lambda row: -row["reward"], "step": lambda row: row["step"],
        "latest": lambda row: -row["step"], "longest": lambda row: -len(row["completion"] or ""),
    }  # fmt: skip
    shown = page.eval_on_selector_all("#list li[data-row]", "all => all.map((one) => Number(one.dataset.row))")
    expected = sorted(map(keys[order], rows))[: len(shown)]
    assert [keys[order](rows[row]) for row in shown] == expected


def test_j_and_k(file: Path, opened: Open) -> None:
    """Go to the next sample and back; typed into a field, they are letters."""
    page = opened(file).page
    order = page.eval_on_selector_all("#list li[data-row]", "all => all.map((one) => Number(one.dataset.row))")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.wait_for_function("(row) => document.querySelector('#list li.on')?.dataset.row === row", arg=str(order[2]))
    page.keyboard.press("k")
    page.wait_for_function("(row) => document.querySelector('#list li.on')?.dataset.row === row", arg=str(order[1]))
    page.keyboard.press("/")
    page.keyboard.type("j")
    assert page.input_value("#search") == "j"


def test_curves_are_filtered(file: Path, opened: Open) -> None:
    """By name, title, help and tag, all words of it; a link to a hidden one shows it again."""
    page = opened(file).page
    count = page.locator(".plot").count()
    page.fill("#filter", "kl nats")
    assert charts(page, ".plot:not([hidden])") == []
    assert page.locator("#nocurve").is_visible()
    page.fill("#filter", "reference")
    assert 0 < page.locator(".plot:visible").count() < count
    page.evaluate("location.hash = 'metric=loss'")
    page.wait_for_selector(".plot.aimed")
    assert page.locator(".plot:visible").count() == count


def test_families_bands_and_modes_share_charts(file: Path, opened: Open) -> None:
    """Reward functions are one chart, lengths one with a band, and evaluation stands with training."""
    page = opened(file).page
    together = charts(page)
    assert ["rewards/right/mean", "rewards/form/mean"] in together
    assert ["reward", "eval/reward"] in together
    assert ["completions/mean_length", "completions/min_length", "completions/max_length"] in together
    assert texts(page, f"{chart(page, 'reward')} >> .legend span")[1].startswith("eval ")
    groups = page.eval_on_selector_all("#plots .group", "all => all.map((one) => one.dataset.group)")
    assert (groups[0], groups[-1]) == ("core", "declog")


def test_a_click_pins_a_step_and_a_drag_zooms(file: Path, opened: Open) -> None:
    """In all charts; a double click shows the whole run again. Escape unpins, but while something is typed."""
    page = opened(file).page
    page.locator(chart(page, "loss")).scroll_into_view_if_needed()
    over = page.locator(chart(page, "loss")).locator(".u-over")
    box = over.bounding_box()
    assert box is not None
    over.click(position={"x": box["width"] / 2, "y": 50})
    assert page.inner_text("#pin b") in ("Step 14", "Step 15")
    page.locator("#pin button", has_text="unpin").click()
    assert page.locator("#pin").is_hidden()
    page.mouse.move(box["x"] + 20, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 120, box["y"] + 40, steps=4)
    page.mouse.up()
    assert page.locator("#unzoom").is_visible()
    over.dblclick(position={"x": 100, "y": 50})
    assert page.locator("#unzoom").is_hidden()
    over.click(position={"x": box["width"] / 2, "y": 50})
    page.locator("#filter").press("Escape")  # is the field's own
    assert page.locator("#pin").is_visible()
    page.locator("#filter").blur()
    page.keyboard.press("Escape")
    assert page.locator("#pin").is_hidden()


def test_smoothing_and_log_scale(file: Path, opened: Open) -> None:
    """Draw the curves anew; a curve with zeros stays on its scale."""
    found = opened(file)
    page = found.page
    canvas = page.locator(chart(page, "reward")).locator("canvas")
    pictures = [canvas.screenshot()]
    page.check("#log")
    page.wait_for_timeout(100)
    pictures.append(canvas.screenshot())
    page.locator("#smoothing").fill("0.9")
    page.wait_for_timeout(100)
    pictures.append(canvas.screenshot())
    assert len(set(pictures)) == 3
    assert found.said == []


def test_badges_say_what_is_wrong(run: Path, file: Path, opened: Open) -> None:
    """Alerts, and values that are not finite, are counted and not hidden."""
    badges = texts(opened(file).page, ".badge")
    assert "1 metric with NaN or Inf" in badges
    assert [badge for badge in badges if badge.endswith(" alerts")] == [f"{len(runs.jsonl(run, 'alerts'))} alerts"]


def test_what_changed_is_what_the_numbers_say(run: Path, file: Path, opened: Open) -> None:
    """First and last tenth of a metric, computed from the file: the same on its card and in the table."""
    page = opened(file).page
    values = [line["scalars"]["entropy"] for line in runs.jsonl(run, "scalars") if line["mode"] == "train"]
    row = page.locator("#changetable tr", has_text="entropy").locator("td.n")
    first, end = (float(row.nth(place).inner_text().split()[0]) for place in (0, 1))
    assert (first, end) == pytest.approx((sum(values[:3]) / 3, sum(values[-3:]) / 3), rel=1e-3)
    card = page.locator(".card", has_text="Entropy")
    assert value_of(card.locator(".value").inner_text().removesuffix("nats")) == pytest.approx(values[-1], rel=1e-3)
    assert value_of(card.locator(".course").inner_text().split()[1]) == pytest.approx(values[0], rel=1e-3)


def test_histograms_and_what_is_logged(run: Path, file: Path, opened: Open) -> None:
    """One picture per histogram, one line per name with its formula and who declared it."""
    page = opened(file).page
    drawn = page.eval_on_selector_all(".histogram", "all => all.map((one) => one.dataset.name)")
    assert drawn == list(dict.fromkeys(line["name"] for line in runs.jsonl(run, "histograms")))
    names = page.eval_on_selector_all("#loggedtable tbody tr", "all => all.map((one) => one.dataset.name)")
    assert sorted(names) == sorted(name for name, _ in runs.last_values(run) if not name.startswith("declog/"))
    policy = page.locator("#loggedtable details", has=page.locator("summary b", has_text="policy"))
    policy.locator("summary").click()
    kl = page.locator("#loggedtable tr[data-name='kl'] td")
    assert kl.nth(0).inner_text().split("\n")[1].startswith("conf/declog/packs/policy.yaml:")
    assert kl.nth(1).inner_text().startswith("mean(kl)")


def test_the_keyboard_is_enough(file: Path, opened: Open) -> None:
    """Tab reaches the first chart, arrows go over its steps, Enter pins one; the list is walked with arrows."""
    page = opened(file).page
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.className") == "canvas":
            break
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.inner_text("#pin b") == "Step 1"
    page.locator("#list").focus()
    before = selected(page)
    page.keyboard.press("ArrowDown")
    page.wait_for_function("(row) => document.querySelector('#list li.on')?.dataset.row !== row", arg=str(before))
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "detail"
    assert page.eval_on_selector_all("button, input, select", "all => all.every((one) => one.tabIndex >= 0)") is True


def test_dark_narrow_and_printed(file: Path, opened: Open) -> None:
    """It follows the system, has no sideways scroll on a phone, and prints every chart."""
    dark = opened(file, color_scheme="dark").page
    assert dark.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 26)"
    phone = opened(file, viewport={"width": 390, "height": 800}).page
    assert phone.evaluate("document.documentElement.scrollWidth") == 390
    phone.keyboard.press("g")
    phone.wait_for_selector(".side")
    assert phone.evaluate("document.documentElement.scrollWidth") == 390
    paper = opened(file).page
    assert paper.locator(".plot canvas").count() < paper.locator(".plot").count()
    assert paper.pdf().startswith(b"%PDF-")
    assert paper.locator(".plot canvas").count() == paper.locator(".plot").count()


def test_hostile_texts_are_shown_and_do_nothing(tmp_path: Path, opened: Open) -> None:
    """Nothing runs, nothing is fetched, no element is made of them; control characters are shown by their numbers."""
    folder = runs.hostile(tmp_path / "hostile")
    reports.write(tmp_path / "hostile.html", read(folder))
    found: Opened = opened(tmp_path / "hostile.html", "#sample=samples%2F0")
    page = found.page
    rows = runs.jsonl(folder, "tables/samples")
    assert page.text_content(".completion .txt") == rows[0]["completion"] == runs.HOSTILE
    page.evaluate("location.hash = 'sample=samples%2F1'")
    page.wait_for_function("() => document.querySelector('#detail').textContent.includes('U+202E')")
    assert "\u202e" not in (page.text_content("body > main") or "")
    page.keyboard.press("g")
    page.wait_for_selector(".side")
    for link in page.locator("nav a:visible").all():
        link.click()
    assert page.title() == "grpo · declog report"
    assert page.locator("main img, main script, main iframe, main i:not([class]):not(.bar i), main b u").count() == 0
    assert "rewards/<i>sum</i>/mean" in texts(page, "#loggedtable .link")
    assert (found.requests, found.said) == ([(tmp_path / "hostile.html").as_uri()], [])


def test_paper_is_white(file: Path, opened: Open) -> None:
    """Printed from a dark screen, the page and its charts have the colours of a light one; afterwards they are dark."""
    page = opened(file, color_scheme="dark").page
    colour = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(colour)
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(colour) == "rgb(250, 250, 247)"
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert page.evaluate(colour) == dark != "rgb(250, 250, 247)"


def test_a_phone(file: Path, opened: Open) -> None:
    """At 390 pixels the sections are a strip to be pushed."""
    page = opened(file, viewport={"width": 390, "height": 844}).page
    assert page.locator("nav a", has_text="Curves").is_visible()
    assert page.evaluate("getComputedStyle(document.querySelector('nav')).overflowX") == "auto"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_badges_can_be_read(scheme: str, file: Path, opened: Open) -> None:
    """Text against its background, as WCAG counts contrast: at least 4.5 to 1."""
    page = opened(file, color_scheme=scheme).page
    contrasts = page.evaluate(
        """() => {
          const pixel = document.createElement("canvas").getContext("2d");
          const shade = (...layers) => {
            pixel.clearRect(0, 0, 1, 1);
            for (const layer of layers) Object.assign(pixel, { fillStyle: layer }).fillRect(0, 0, 1, 1);
            const parts = [...pixel.getImageData(0, 0, 1, 1).data].slice(0, 3).map((one) => one / 255);
            const [r, g, b] = parts.map((one) => (one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
            return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
          };
          const page = getComputedStyle(document.body).backgroundColor;
          return [...document.querySelectorAll(".badge")].map((badge) => {
            const { color, backgroundColor } = getComputedStyle(badge);
            const [text, behind] = [shade(page, backgroundColor, color), shade(page, backgroundColor)];
            return Math.max(text, behind) / Math.min(text, behind);
          });
        }"""
    )
    assert contrasts and min(contrasts) >= 4.5
