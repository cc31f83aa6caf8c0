#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""The page of `nalagen serve` in Chromium, by selenium: serve_browser.py URL RUN.
RUN: folder of a run that this script lets grow; dropped.png: class 4, seed 1234567, index 2, 3 steps, another size."""
import base64
import json
import sys
import time

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

URL, RUN = sys.argv[1:]


def browser(width=1280, height=900):
    options = webdriver.ChromeOptions()
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=%d,%d" % (width, height)):
        options.add_argument(word)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))


def until(condition, what, seconds=90):
    end = time.time() + seconds
    while not condition():
        assert time.time() < end, what + ": " + page.find_element(By.ID, "status").text
        time.sleep(0.05)


def element(name):
    return page.find_element(By.ID, name)


def value(script):
    return page.execute_script("return " + script)


def drag(name, to):
    """A control is moved, as by a mouse."""
    page.execute_script("const e = document.getElementById(arguments[0]); e.value = arguments[1];"
                        "e.dispatchEvent(new Event('input', {bubbles: true}));", name, to)


def saved(link):
    """The bytes that a link saves. The page's own policy lets no script read its blobs back, so they are watched as they come."""
    return base64.b64decode(page.execute_async_script("""
        const [link, done] = arguments;
        blobs[document.getElementById(link).href].arrayBuffer().then(b => done(btoa(String.fromCharCode(...new Uint8Array(b)))));""", link))


def gallery():
    return len(page.find_elements(By.CSS_SELECTOR, "#gallery button"))


page = browser()
try:
    page.get(URL)
    page.execute_script("""
        window.blobs = {};
        const make = URL.createObjectURL;
        URL.createObjectURL = blob => { const url = make.call(URL, blob); blobs[url] = blob; return url; };""")
    until(lambda: len(page.find_elements(By.CSS_SELECTOR, "#classes button")) == 5, "classes")
    until(lambda: page.find_elements(By.CSS_SELECTOR, "#classes img"), "thumbnails")

    # make pictures of a class chosen by keyboard
    page.find_element(By.CSS_SELECTOR, "#classes [aria-selected=true]").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    drag("number", 3)
    element("go").click()
    until(lambda: gallery() == 3, "three pictures")
    until(lambda: not element("stop").is_enabled(), "the end")
    assert "seed 0" in element("caption").text and element("caption").text.startswith("2 "), element("caption").text
    assert "--seed 0" in element("command").get_attribute("value")
    assert element("download").get_attribute("download").endswith(".png")

    # a control that moves redraws, and the last value is the one that stays; nothing on the page jumps
    top = element("command").rect["y"]
    for steps in range(2, 30):
        drag("steps", steps)
    until(lambda: " 29 steps" in element("caption").text and not element("stop").is_enabled(), "the last value")
    assert gallery() == 3 and element("command").rect["y"] == top

    # stop
    drag("number", 16)
    page.execute_script("document.getElementById('live').checked = false; document.getElementById('steps').max = 10000;")
    drag("steps", 10000)
    element("go").click()
    until(lambda: element("stop").is_enabled() and "of 16" in element("status").text, "a long job")
    element("stop").click()
    until(lambda: not element("stop").is_enabled() and element("status").text == "stopped", "stopped")
    until(lambda: page.execute_async_script("const d = arguments[0]; fetch('/api/device').then(a => a.json()).then(s => d(s.running + s.queued));") == 0,
          "the server has stopped it")

    # a walk: its pictures in a strip, one animated picture in the gallery, a strip to download
    element("walk").find_element(By.TAG_NAME, "summary").click()
    drag("steps", 3)
    drag("frames", 5)
    page.execute_script("document.getElementById('to-class').value = '3'; document.getElementById('to-seed').value = '11';")
    element("go-walk").click()
    until(lambda: gallery() == 4 and not element("stop").is_enabled(), "a walk")
    assert len(page.find_elements(By.CSS_SELECTOR, "#strip button")) == 5
    assert "2 → 3" in element("caption").text and "0 → 11" in element("caption").text, element("caption").text
    command = element("command").get_attribute("value")
    assert "--walk 5 --to-class 3 --to-seed 11 --animate 120" in command, command
    animated, strip = saved("download"), saved("download-grid")
    assert b"acTL" in animated and animated[16:20] == (16).to_bytes(4, "big")
    assert b"acTL" not in strip and strip[16:20] == (5 * 16 + 4 * 2).to_bytes(4, "big")
    page.find_elements(By.CSS_SELECTOR, "#strip button")[2].click()
    assert "picture 3 of 5" in element("caption").text and "-n 1 --first-index 2" in element("command").get_attribute("value")

    # a picture that is dropped is made again
    with open("dropped.png", "rb") as file:
        dropped = base64.b64encode(file.read()).decode()
    page.execute_script("""
        const data = new DataTransfer();
        data.items.add(new File([Uint8Array.from(atob(arguments[0]), c => c.charCodeAt(0))], "x.png", {type: "image/png"}));
        document.getElementById("frame").dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));""",
                        dropped)
    until(lambda: gallery() == 5 and not element("stop").is_enabled(), "made again")
    assert element("seed").get_attribute("value") == "1234567" and element("steps").get_attribute("value") == "3"
    assert element("caption").text.startswith("4 ") and "seed 1234567 · index 2" in element("caption").text, element("caption").text
    assert saved("download") == base64.b64decode(dropped)

    # a training that runs; what is read anew takes no focus away
    element("tab-runs").click()
    until(lambda: "Step" in element("run-facts").text, "the run")
    chosen = page.find_element(By.CSS_SELECTOR, "#run-list button")
    chosen.send_keys("")
    before = value("document.querySelector('#chart path').getAttribute('d')")
    with open(RUN + "/log.jsonl", "a") as log:
        for step in range(100, 110):
            print(json.dumps({"step": step, "loss": 1 / step, "seconds": step / 10, "skipped": 2}), file=log)
    with open(RUN + "/metrics.jsonl", "a") as metrics:
        for step, loss in ((105, 1e-3), (107, 2e-3)):
            print(json.dumps({"step": step, "val_loss": loss}), file=metrics)
    until(lambda: value("document.querySelector('#chart path').getAttribute('d')") != before, "the curve grows")
    until(lambda: "105: validation 0.001, the least so far" in element("run-facts").text, "what happened")
    events = element("run-facts").text
    assert "107: " not in events and "not finite: 2" in events, events
    assert "109" in element("run-facts").text and chosen.get_attribute("aria-pressed") == "true"

    # narrow, wide, dark: nothing reaches over the side
    for width in (400, 1280, 2560):
        for scheme in ("light", "dark"):
            page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500})
            page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
            for tab in ("make", "runs", "evaluation", "server"):
                element("tab-" + tab).send_keys(Keys.ENTER)
                assert value("document.documentElement.scrollWidth") <= width, (width, tab)
    errors = [line for line in page.get_log("browser") if line["level"] == "SEVERE"]
    assert not errors, errors
finally:
    page.quit()
