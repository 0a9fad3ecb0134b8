"""The page in a real browser: Debian's Chromium, driven by Playwright. Screenshots are left in runs/screenshots."""

import json
import shutil
import time

import pytest

from pairstill.show.report.page import write_report
from tests.conftest import ROOT
from tests.show.serve.conftest import root  # noqa: F401 (a fixture)
from tests.support.serving import Server

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
SCREENSHOTS = ROOT / "runs" / "screenshots"

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install -y chromium"),
]


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def open_page(browser):
    """`open_page(address, width, scheme)`: a page whose console must stay silent."""
    complaints, contexts = [], []

    def start(address, width=1440, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(address)
        return page

    yield start
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def report(sets, tmp_path_factory):
    return write_report(sets, tmp_path_factory.mktemp("page") / "report.html").as_uri()


def overflow(page):
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def keep(page, name):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_off_on_phones_and_desks(report, open_page, width, scheme):
    page = open_page(report, width, scheme)
    assert overflow(page) == 0
    page.locator(".pairs").first.scroll_into_view_if_needed()
    page.locator(".pair img").first.wait_for()
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(255, 255, 255)") is (scheme == "light")
    keep(page, f"report-{width}-{scheme}")


def test_the_gallery_filters_and_sorts(report, open_page):
    page = open_page(report)
    cards = page.locator(".pair")
    assert cards.count() == 6
    word = cards.nth(3).locator("p").first.inner_text()
    page.get_by_label("Find").fill(word)
    assert 1 <= cards.count() < 6
    assert "of 6 pairs" in page.locator("output").inner_text()
    page.get_by_label("Find").fill("")
    page.get_by_label("Sort").select_option("moved")
    moved = [
        float(text.split("moved ")[1].split()[0])
        for text in page.locator(".pair .small").all_inner_texts()
        if "moved" in text
    ]
    assert len(moved) == 6 and moved == sorted(moved, reverse=True)


def test_the_slider_works_from_the_keyboard_and_the_difference_shows(report, open_page):
    page = open_page(report)
    slider, frame = page.locator(".pair input[type=range]").first, page.locator(".frame").first
    slider.focus()
    for _ in range(10):
        page.keyboard.press("ArrowRight")
    assert frame.evaluate("node => node.style.getPropertyValue('--cut')") == "60%"
    after = page.locator(".frame .after").first
    assert after.evaluate("node => getComputedStyle(node).clipPath").endswith("60%)")
    page.get_by_label("Show").select_option("difference")
    assert after.evaluate("node => getComputedStyle(node).mixBlendMode") == "difference"
    assert not slider.is_visible()
    keep(page, "report-difference")


def test_it_prints(report, open_page):
    page = open_page(report)
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.emulate_media(media="print")
    assert not page.locator(".controls").first.is_visible()


def test_a_card_printed_before_it_was_seen_is_drawn_once(report, open_page):
    """The print begins in the task in which the page is opened, before any card was seen to be near the window."""
    page = open_page("about:blank")
    page.add_init_script("addEventListener('load', () => dispatchEvent(new Event('beforeprint')))")
    page.goto(report)
    page.locator(".pair img").first.wait_for()
    page.locator(".pairs").first.scroll_into_view_if_needed()
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    counts = page.locator(".pair").evaluate_all(
        "pairs => pairs.map((pair) => pair.querySelectorAll('img.after').length)"
    )
    assert set(counts) == {1}


@pytest.fixture(scope="module")
def served(root):  # noqa: F811
    with Server(root) as address:
        yield address


@pytest.mark.parametrize("width", [390, 1440])
def test_a_sentence_finds_pictures_and_a_picture_captions(served, open_page, width, root):  # noqa: F811
    page = open_page(f"{served}/search", width)
    page.get_by_label("A sentence").fill("a red circle")
    page.get_by_role("button", name="Find images").click()
    images = page.locator(".found img")
    images.nth(15).wait_for()
    deadline = time.monotonic() + 10
    while not images.first.evaluate("image => image.naturalWidth") and time.monotonic() < deadline:
        time.sleep(0.05)
    assert images.first.evaluate("image => image.naturalWidth") > 0 and images.count() == 16
    assert "ms" in page.get_by_role("status").inner_text()
    assert overflow(page) == 0
    keep(page, f"search-{width}")
    page.locator("#file").set_input_files(picture_file(root))
    page.locator(".found p").first.wait_for()


def picture_file(folder):
    from PIL import Image

    path = folder.parent / "dropped.png"
    Image.new("RGB", (40, 40), (200, 30, 30)).save(path)
    return path


@pytest.mark.parametrize("width", [390, 1440])
def test_the_overview_and_the_comparison(served, open_page, width):
    page = open_page(served, width)
    assert page.locator("tbody tr").count() == 2
    assert overflow(page) == 0
    keep(page, f"overview-{width}")
    for box in page.get_by_role("checkbox").all():
        box.check()
    page.get_by_role("button", name="Compare").click()
    page.wait_for_url("**/compare**")
    assert page.locator("tbody tr").count() == 2 and page.locator("svg").count() == 2
    assert overflow(page) == 0
    keep(page, f"compare-{width}")


def test_a_run_in_progress_updates(sets, open_page, tmp_path):
    run = tmp_path / "half" / "run"
    run.mkdir(parents=True)
    lines = (sets / "mdm" / "run" / "events.jsonl").read_text().splitlines()
    steps = [number for number, line in enumerate(lines) if json.loads(line)["kind"] == "step"]
    (run / "run.json").write_bytes((sets / "mdm" / "run" / "run.json").read_bytes())
    (run / "events.jsonl").write_text("\n".join(lines[: steps[1] + 1]) + "\n")
    with Server(tmp_path) as address:
        page = open_page(f"{address}/run?name=half")
        page.get_by_text("iteration 2 of 4").wait_for()
        (run / "events.jsonl").write_text("\n".join(lines[: steps[2] + 1]) + "\n")
        page.get_by_text("iteration 3 of 4").wait_for(timeout=10_000)
        assert page.locator("svg").count() == 3
        keep(page, "run-live")
        shutil.copytree(sets / "mdm", tmp_path / "half", dirs_exist_ok=True)
        page.get_by_text("Finished: 6 pairs by mdm").wait_for(timeout=10_000)
        page.get_by_text("The whole report").click()
        page.locator(".pair").first.wait_for()
        assert page.locator(".pair").count() == 6
