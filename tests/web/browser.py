"""A browser driven over the WebDriver protocol with Python's standard library alone."""
import base64
import json
import shutil
import socket
import subprocess
import time
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


def missing():
    """What this machine lacks to run a browser; empty: nothing."""
    wanted = [name for name in ("chromium", "chromedriver") if not shutil.which(name)]
    return " and ".join(wanted)


class Browser:
    def __init__(self, width=1280, height=1000, dark=False, language="en"):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.driver = subprocess.Popen(["chromedriver", f"--port={port}", "--log-level=SEVERE"], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
        self.base = f"http://127.0.0.1:{port}"
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                     f"--window-size={width},{height}", f"--lang={language}"]
        if dark:
            arguments.append("--force-dark-mode")
        wanted = {"browserName": "chrome", "goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = self.first_answer({"capabilities": {"alwaysMatch": wanted}})
        self.session = "/session/" + answer["sessionId"]
        # The window's inner width is what a page sees; below 500 pixels Chromium takes it from the emulation alone.
        self.call("POST", self.session + "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride", "params": {
            "width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}})

    def first_answer(self, wanted):
        """A machine that does something else takes its time until the driver listens and the browser is up."""
        end = time.time() + 120
        while True:
            try:
                return self.call("POST", "/session", wanted)
            except OSError:
                if time.time() > end or self.driver.poll() is not None:
                    raise
                time.sleep(0.1)

    def call(self, method, path, body=None):
        data = json.dumps(body).encode() if body is not None else None
        request = urllib.request.Request(self.base + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=180) as response:
                return json.loads(response.read())["value"]
        except urllib.error.HTTPError as error:
            raise AssertionError(json.loads(error.read())["value"]["message"]) from None

    def open(self, address):
        self.call("POST", self.session + "/url", {"url": address})

    def script(self, text, *arguments):
        return self.call("POST", self.session + "/execute/sync", {"script": text, "args": list(arguments)})

    def wait(self, condition, seconds=90, what=""):
        """Until the JavaScript expression is true; its value."""
        end = time.time() + seconds
        while time.time() < end:
            value = self.script(f"return {condition}")
            if value:
                return value
            time.sleep(0.05)
        raise AssertionError(f"{what or condition}: not within {seconds} s; the page shows {self.script('return document.body.innerText')[:500]!r}")

    def element(self, selector):
        return self.call("POST", self.session + "/element", {"using": "css selector", "value": selector})[ELEMENT]

    def click(self, selector):
        self.call("POST", f"{self.session}/element/{self.element(selector)}/click", {})

    def type(self, selector, text):
        """Over what a field holds. Selected, not cleared: clearing counts as a change, and the page draws itself anew."""
        self.script("document.querySelector(arguments[0]).select()", selector)
        self.call("POST", f"{self.session}/element/{self.element(selector)}/value", {"text": text})

    def press(self, keys):
        """Keys to whatever has the focus."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.call("POST", self.session + "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def choose(self, selector, value):
        self.script("const s = document.querySelector(arguments[0]); s.value = arguments[1]; s.dispatchEvent(new Event('change', {bubbles: true}));", selector, value)

    def text(self, selector):
        return self.script("return document.querySelector(arguments[0])?.innerText ?? null", selector)

    def picture(self, path):
        with open(path, "wb") as file:
            file.write(base64.b64decode(self.call("GET", self.session + "/screenshot")))

    def complaints(self):
        """What the page wrote to the console as errors since the last call."""
        return [entry["message"] for entry in self.call("POST", self.session + "/se/log", {"type": "browser"})
                if entry["level"] == "SEVERE"]

    def close(self):
        try:
            self.call("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait()
