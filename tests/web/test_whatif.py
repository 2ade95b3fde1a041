"""Other scales and policies, as a reader tries them on the page."""

from __future__ import annotations

from playwright.sync_api import Route

from ampmon_server.model.words import two_to
from posted import PostedRun
from web.reader import Reader


PART = ".part.whatif"


def _shown(reader: Reader, chart: str) -> None:
    """Open the tab and scroll to a chart until it is drawn. Charts above it load meanwhile."""
    reader.wait("the charts", lambda: reader.points("scale"))
    reader.tab("whatif")
    reader.wait(f"the chart {chart}", lambda: reader.scrolled_to(chart))


def test_a_scale_is_tried_with_a_slider(reader: Reader) -> None:
    """A scale chosen by keys is described with its code, and the address has it.

    A page without a clipboard, as one without TLS, says so and selects the code.
    """
    run = PostedRun(reader.server)
    run.updates(20)
    reader.show(run)
    _shown(reader, "whatif")
    reader.wait("the sample's", lambda: "newest sample, chosen" in str(_labels(reader)))
    newest = int(reader.ask("document.querySelector('.whatif input').value"))
    assert not reader.page.locator(f"{PART} .code").is_visible()

    slider = reader.page.locator(f"{PART} input")
    slider.focus()
    for _ in range(3):
        slider.press("ArrowLeft")
    tried = two_to(newest - 3)
    reader.wait("the sentence", lambda: reader.text(".sentence").startswith(f"At {tried}: "))
    assert "In the newest finite sample, at 2¹⁶: " in reader.text(".sentence")
    readout = "[data-figure=whatif] .readout"
    reader.wait("the shares there", lambda: tried in reader.text(readout))
    assert reader.text(f"{PART} .code .caption") == "Alternative: no finding recommends a change."
    assert reader.text(f"{PART} code").startswith(
        f'scaler = torch.amp.GradScaler("cpu", init_scale=2.0**{newest - 3})'
    )
    assert f"whatif_scale={newest - 3}" in reader.ask("location.hash")

    reader.figure("whatif").locator("select").select_option("bf16")
    reader.wait("bf16", lambda: "bfloat16" in reader.text(f"{PART} code"))
    reader.open(reader.ask("location.hash"))
    _shown(reader, "whatif")
    reader.wait("the same scale in bf16", lambda: f"At {tried} in bf16" in reader.text(".sentence"))
    _marked_without_clipboard(reader)


def _marked_without_clipboard(reader: Reader) -> None:
    code = reader.wait("the code", lambda: reader.text(f"{PART} code"))
    reader.ask(
        "void Object.defineProperty(navigator, 'clipboard', {configurable: true, value: undefined})"
    )
    copy = reader.page.locator(f"{PART} .code button")
    copy.click()
    reader.wait("the words", lambda: copy.inner_text() == "Code selected: copy it")
    assert reader.ask("String(getSelection())") == code
    reader.ask("delete navigator.clipboard")


def test_one_parameter_is_left_again(reader: Reader) -> None:
    """If a parameter is missing, the chart says so, and a button leads back to all parameters."""
    run = PostedRun(reader.server)
    run.updates(5)
    reader.show(run, "?parameter=gone.weight&tab=whatif")
    words = "[data-figure=whatif] .empty"

    def says_why() -> bool:
        reader.figure("whatif").scroll_into_view_if_needed()
        return "there is no 'gone.weight'" in reader.text(words)

    reader.wait("why there is nothing", says_why)
    reader.page.locator(PART).get_by_role("button", name="Show all parameters").click()
    reader.wait("all", lambda: "all fp16-representable parameters" in reader.caption("whatif"))
    assert not reader.page.locator(PART).get_by_role("button", name="all parameters").is_visible()


def test_a_policy_is_tried_in_a_form(reader: Reader) -> None:
    """An invalid number is reported beside its field. A valid one is replayed and put in the address."""
    run = PostedRun(reader.server)
    for _ in range(3):
        run.updates(20, sampled=False)
        run.updates(skipped=True, sampled=False)
    reader.show(run)
    _shown(reader, "simulated")
    part = reader.page.locator(".part.simulate")
    sentence = ".simulate .sentence"
    # The run's scale is back at its old value after each skip, which its own policy would not do.
    reader.wait("the run's own", lambda: "instead of 3." in reader.text(sentence))

    reader.ignore_page_errors("422")
    part.locator("[name=growth_interval]").fill("0")
    part.locator("[name=growth_interval]").press("Enter")
    wrong = reader.wait("what is wrong", lambda: reader.text("#wrong-growth_interval"))
    assert "a whole number of steps, from 1 to 2³¹ - 1, not 0" in wrong
    assert reader.points("simulated") > 0

    part.locator("select").select_option("fixed")
    reader.wait("torch's fields to go", lambda: part.locator("input").count() == 1)
    part.locator("[name=init_scale]").fill("1024")
    part.locator("[name=init_scale]").press("Enter")
    reader.wait("the code", lambda: "scaler.update(1024)" in reader.text(".simulate code"))
    assert "sim_policy=fixed&sim_init_scale=1024" in reader.ask("location.hash")

    part.get_by_role("button", name="Find a better setting").click()
    reader.wait("advice", lambda: "sim_policy=torch" in reader.ask("location.hash"))


def test_an_answer_that_was_dropped_is_asked_for_again(reader: Reader) -> None:
    """A simulation whose answer comes after the view has changed is requested again at once."""
    run = PostedRun(reader.server)
    run.updates(20, sampled=False)
    run.updates(skipped=True, sampled=False)
    reader.show(run)
    held: list[Route] = []

    def keep(route: Route) -> None:
        held.append(route)

    reader.page.route("**/figures/simulated?*", keep)
    reader.tab("whatif")

    def asked() -> bool:
        reader.figure("simulated").scroll_into_view_if_needed()
        return bool(held)

    reader.wait("the call", asked)
    reader.ask("(now => { performance.now = () => now })(performance.now())")  # no pause can end
    reader.ask("location.hash += '&statistic=norm'")
    reader.page.unroute_all()  # releases the held requests
    _shown(reader, "simulated")
    reader.ask("delete performance.now")


def _labels(reader: Reader) -> object:
    return reader.plot("whatif", "plot.layout.annotations.map(each => each.text)")


def test_a_slider_that_was_moved_back_still_follows_the_address(reader: Reader) -> None:
    """A drag that ends where it began ends, although the browser reports no change."""
    run = PostedRun(reader.server)
    run.updates(20)
    reader.show(run)
    _shown(reader, "whatif")
    slider = reader.page.locator(f"{PART} input")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    assert box is not None
    newest = int(slider.input_value())
    low, high = (int(slider.get_attribute(end) or 0) for end in ("min", "max"))
    thumb = 8 + (box["width"] - 16) * (newest - low) / (high - low)
    x, y = box["x"] + thumb, box["y"] + box["height"] / 2
    reader.page.mouse.move(x, y)
    reader.page.mouse.down()
    reader.page.mouse.move(x - 40, y)
    assert int(slider.input_value()) < newest
    reader.page.mouse.move(x, y)
    reader.page.mouse.up()
    assert int(slider.input_value()) == newest
    reader.page.evaluate(f"location.hash = '{run.path}?tab=whatif&whatif_scale=3'")
    reader.wait("the scale of the address", lambda: slider.input_value() == "3")


def test_back_from_a_refused_setting_shows_the_one_before(reader: Reader) -> None:
    """The form has the values of the address again, and the error beside the field is gone."""
    reader.ignore_page_errors("status of 422")
    run = PostedRun(reader.server)
    run.updates(20)
    reader.show(run)
    _shown(reader, "simulated")
    field = reader.page.locator(".simulate input[name=growth_interval]")
    for value in ("50", "-3"):
        field.fill(value)
        field.press("Enter")
        reader.page.wait_for_url(f"**growth_interval={value}")
    wrong = reader.page.locator("#wrong-growth_interval")
    reader.wait("the error", wrong.inner_text)
    reader.page.go_back()
    reader.wait("no error", lambda: not wrong.inner_text())
    assert field.input_value() == "50"
