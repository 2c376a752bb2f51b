"""The page in a real browser: Debian's chromium, driven by playwright."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from autopipe.documents.plan import Plan
from autopipe.planner import simulate_plan
from autopipe.reporting.page import report_page
from autopipe.simulator.idle import idle_times
from autopipe.units import format_time
from tests.reporting.page.plans import plan_of
from tests.reporting.page.test_page import HOSTILE, hostile

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs a chromium in the path")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


class Opened:
    """A page that was opened from a file, with all that it said and asked for."""

    def __init__(self, browser: Browser, file: Path, *, width: int = 1280, dark: bool = False) -> None:
        self.page: Page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(file.as_uri())
        self.page.wait_for_selector("#timeline svg")

    def quiet(self) -> bool:
        """Nothing on the console, nothing asked for but the file and the empty icon."""
        return not self.said and all(url.startswith(("file:", "data:")) for url in self.asked)


def write(plan: Plan, folder: Path) -> Path:
    file = folder / "report.html"
    file.write_text(report_page(plan, simulate_plan(plan), measured=simulate_plan(plan)))
    return file


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Pages by the number of their plan's stages; the large one has 512 micro-batches."""
    return {
        2: write(plan_of(2, 4), tmp_path_factory.mktemp("small")),
        64: write(plan_of(64, 512), tmp_path_factory.mktemp("large")),
    }


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("size", [2, 64])
def test_it_opens_without_an_error_or_a_request(
    browser: Browser, files: dict[int, Path], size: int, width: int, dark: bool
) -> None:
    opened = Opened(browser, files[size], width=width, dark=dark)
    assert opened.quiet(), (opened.said, opened.asked)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    rows = opened.page.locator("#timeline text", has_text="rank ")
    assert rows.count() == 2 * size
    ink, paper = (
        opened.page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("color", "backgroundColor")
    )
    assert (sum(map(int, ink[4:-1].split(","))) > sum(map(int, paper[4:-1].split(",")))) == dark
    opened.page.close()


def test_the_numbers_are_the_plans(browser: Browser, tmp_path: Path) -> None:
    plan = plan_of(4, 8)
    page = Opened(browser, write(plan, tmp_path)).page
    assert format_time(plan.step_ns) in page.locator(".verdict").inner_text()
    for index, stage in enumerate(plan.stages):
        cells = page.locator("#stages tbody tr").nth(index).locator("td")
        assert cells.nth(4).inner_text() == f"{stage.forward_ns / 1e6:.2f} ms"
        assert cells.nth(5).inner_text() == f"{stage.backward_ns / 1e6:.2f} ms"
    for index, rank in enumerate(plan.ranks):
        cells = page.locator("#ranks tbody tr").nth(index).locator("td")
        assert cells.nth(2).inner_text() == str(rank.in_flight)
        assert cells.nth(3).inner_text() == f"{100 * rank.busy_ns / plan.step_ns:.1f} %"
    page.close()


def test_a_click_names_the_action_and_its_times(browser: Browser, tmp_path: Path) -> None:
    plan = plan_of(2, 4)
    page = Opened(browser, write(plan, tmp_path)).page
    label = page.locator("#timeline text", has_text="F0").first
    box = label.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    first = simulate_plan(plan).ranks[0].spans[0]
    said = page.locator("#pointed").inner_text()
    assert said.startswith("predicted, rank 0: F of micro-batch 0 on stage 0")
    assert f"takes {(first.end_ns - first.start_ns) / 1e6:.2f} ms" in said
    assert page.locator(".picked").count() == 1
    page.close()


def test_a_click_on_a_gap_says_how_long_it_is_and_why(browser: Browser, tmp_path: Path) -> None:
    plan = plan_of(2, 4)
    page = Opened(browser, write(plan, tmp_path)).page
    lane = page.locator("#timeline .lane").nth(1).bounding_box()
    assert lane is not None
    page.mouse.click(lane["x"] + 3, lane["y"] + lane["height"] / 2)
    first = simulate_plan(plan).ranks[1].spans
    begin = next(span.start_ns for span in first if span.label == "F1.0")
    said = page.locator("#pointed").inner_text()
    assert said == f"predicted, rank 1: idle 0.00 ms to {begin / 1e6:.2f} ms, {begin / 1e6:.2f} ms, " + (
        "nothing to do yet: warm-up."
    )
    page.close()


def test_idle_time_by_cause_is_the_simulators(browser: Browser, tmp_path: Path) -> None:
    plan = plan_of(4, 8)
    page = Opened(browser, write(plan, tmp_path)).page
    for name in ("predicted", "measured"):
        causes = [text.strip() for text in page.locator(f"#idle-{name} th").all_inner_texts()[2:]]
        for index, row in enumerate(idle_times(simulate_plan(plan))):
            cells = page.locator(f"#idle-{name} tbody tr").nth(index).locator("td").all_inner_texts()
            for cause, share in zip(causes, cells[2:], strict=True):
                part = getattr(row, f"{cause.replace('-', '_')}_ns") / plan.step_ns
                assert float(share.removesuffix(" %")) == pytest.approx(100 * part, abs=0.11)
    page.close()


def test_keys_step_through_the_actions_of_a_rank_and_change_it(browser: Browser, tmp_path: Path) -> None:
    page = Opened(browser, write(plan_of(2, 4), tmp_path)).page
    said = page.locator("#pointed")
    page.locator("#timeline").focus()
    heard = []
    for key in ("n", "n", "p", "ArrowDown"):
        page.keyboard.press(key)
        heard.append(said.inner_text().split(",")[1])
    assert heard[0].startswith(" rank 0: F of micro-batch 0")
    assert heard[1].startswith(" rank 0: F of micro-batch 1")
    assert heard[2] == heard[0]
    assert heard[3].startswith(" rank 1")
    page.close()


def test_keys_and_buttons_zoom_and_move(browser: Browser, tmp_path: Path) -> None:
    plan = plan_of(2, 4)
    page = Opened(browser, write(plan, tmp_path)).page
    shown = page.locator("#window")
    whole = shown.inner_text()
    assert whole == f"0.00 ms to {plan.step_ns / 1e6:.2f} ms"
    page.locator("#timeline").focus()
    page.keyboard.press("+")
    half = shown.inner_text()
    ends = [float(word) for word in half.replace("to", "").replace("ms", "").split()]
    assert ends == pytest.approx([plan.step_ns / 4e6, plan.step_ns * 3 / 4e6], abs=0.006)
    page.keyboard.press("ArrowLeft")
    assert shown.inner_text() != half
    page.get_by_role("button", name="Whole step").click()
    assert shown.inner_text() == whole
    page.close()


def test_hostile_names_are_shown_as_they_are(browser: Browser, tmp_path: Path) -> None:
    plan = hostile(plan_of(8, 8))
    opened = Opened(browser, write(plan, tmp_path))
    assert opened.quiet(), (opened.said, opened.asked)
    page = opened.page
    assert page.locator("h1").inner_text() == HOSTILE[0]
    names = [page.locator("#stages tbody tr").nth(i).locator("td").nth(3).text_content() for i in range(len(HOSTILE))]
    assert names == [f"{text} ... b".replace("\r\n", "\n") for text in HOSTILE]
    assert page.evaluate("document.scripts.length") == 2
    page.close()


def test_it_prints_without_its_controls(browser: Browser, tmp_path: Path) -> None:
    page = Opened(browser, write(plan_of(2, 4), tmp_path)).page
    page.emulate_media(media="print")
    assert not page.locator(".controls").is_visible()
    assert page.locator("#timeline svg").is_visible()
    page.close()


def test_actions_are_told_apart_without_colour(browser: Browser, tmp_path: Path) -> None:
    """F and B of one stage differ in lightness by enough to read in black and white."""
    page = Opened(browser, write(plan_of(2, 4), tmp_path)).page
    opacity = {
        kind: float(page.locator(f"#timeline .{kind}").first.evaluate("e => getComputedStyle(e).fillOpacity"))
        for kind in ("forward", "backward")
    }
    assert opacity["backward"] - opacity["forward"] > 0.3
    page.close()


def test_a_plan_with_measured_times_shows_both(browser: Browser, tmp_path: Path) -> None:
    plan = plan_of(2, 4)
    slower = simulate_plan(plan)
    slower = msgspec.structs.replace(slower, step_ns=slower.step_ns * 2, source="measured")
    file = tmp_path / "report.html"
    file.write_text(report_page(plan, simulate_plan(plan), measured=slower))
    page = Opened(browser, file).page
    assert "(-50.0 %)" in page.locator("header").inner_text()
    assert page.locator("#timeline text", has_text="measured:").count() == 1
    page.close()
