"""A page in a real browser that stays open: what its elements say, as it changes.

    with Page(url) as page:
        page.wait_for("live", "live")

Speaks Chromium's DevTools protocol over its pipe: JSON ended by a zero byte, no port, no library.
"""

import base64
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

BROWSERS = ("chromium-headless-shell", "chromium")
SKIPPED = 77
PICTURES = os.environ.get("HEARTH_PAGE_PICTURES")  # a folder for them

# Of virtual machines that are busy; a page that shows what it should answers within seconds.
PATIENCE_MS = 60000

# Resolves when the element's text is as wanted, rejects with what it was instead.
WAIT_FOR = """new Promise((found, failed) => {
  const text = () => document.getElementById(%s)?.textContent ?? "(no such element)";
  const look = () => { if (text().startsWith(%s)) found(text()); };
  new MutationObserver(look).observe(
      document, {subtree: true, childList: true, characterData: true});
  setTimeout(() => failed(new Error(text())), %d);
  look();
})"""


def browser():
    return next(filter(None, map(shutil.which, BROWSERS)), None)


def skip_without_browser():
    """Ends this program as ctest shows one that was skipped."""
    if browser() is None:
        print("skipped, there is no browser: apt-get install chromium-headless-shell")
        sys.exit(SKIPPED)


class Page:
    """Thread safety: none."""

    def __init__(self, url):
        # Processes of the browser may write to it a little longer than the one that is waited for.
        self._profile = tempfile.TemporaryDirectory(prefix="hearth-browser-",
                                                    ignore_cleanup_errors=True)
        self._calls = 0
        self._unread = b""
        commands, self._write = _pipe()
        self._read, answers = _pipe()
        self._browser = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", browser(),
             "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             f"--user-data-dir={self._profile.name}", "about:blank"],
            pass_fds=(commands, answers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        try:
            target = self._call("Target.createTarget", url=url)["targetId"]
            self._session = self._call("Target.attachToTarget", targetId=target,
                                       flatten=True)["sessionId"]
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self):
        os.close(self._write)  # which ends the browser, and those that it started
        try:
            self._browser.wait(20)
        except subprocess.TimeoutExpired:
            self._browser.kill()
            self._browser.wait()
        os.close(self._read)
        self._profile.cleanup()

    def wait_for(self, element, beginning):
        """The element's text, once it begins like this."""
        expression = WAIT_FOR % (json.dumps(element), json.dumps(beginning), PATIENCE_MS)
        answer = None
        while answer is None:  # what is asked before the page has come is lost with what was there
            answer = self._call("Runtime.evaluate", session=self._session, expression=expression,
                                awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            said = answer["exceptionDetails"]["exception"].get("description", "")
            raise AssertionError(f"{element}: not \"{beginning}\" but {said.splitlines()[0]}")
        return answer["result"]["value"]

    def value(self, expression):
        """Of JavaScript in the page."""
        answer = self._call("Runtime.evaluate", session=self._session, expression=expression,
                            returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def sizes(self, name):
        """Shows a wide and a narrow window, in light and dark, of which none may be too small for
        the page. Yields width and whether it is dark."""
        for width in (1280, 400):
            for dark in (False, True):
                self._size(width, 900, dark)
                beyond = self.value("document.documentElement.scrollWidth - "
                                    "document.documentElement.clientWidth")
                if beyond != 0:
                    raise AssertionError(f"{beyond} px beyond a window of {width} px")
                if PICTURES:
                    self._picture(pathlib.Path(PICTURES) / f"{name}-{width}-{dark}.png")
                yield width, dark

    def _size(self, width, height, dark):
        """Of the window, and which colours its owner likes."""
        self._call("Emulation.setDeviceMetricsOverride", session=self._session, width=width,
                   height=height, deviceScaleFactor=1, mobile=False)
        self._call("Emulation.setEmulatedMedia", session=self._session, features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def _picture(self, path):
        image = self._call("Page.captureScreenshot", session=self._session,
                           captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(image))

    def _call(self, method, session=None, **parameters):
        self._calls += 1
        message = {"id": self._calls, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") != self._calls:
                continue  # an event
            said = answer.get("error", {}).get("message", "")
            if "context was destroyed" in said or "target navigated" in said:
                return None
            if "error" in answer:
                raise AssertionError(f"{method}: {answer['error']}")
            return answer["result"]

    def _next(self):
        while b"\0" not in self._unread:
            more = os.read(self._read, 1 << 16)
            if not more:
                raise AssertionError("the browser ended")
            self._unread += more
        message, self._unread = self._unread.split(b"\0", 1)
        return json.loads(message)


def _pipe():
    """Read end and write end, out of the way of the numbers that the browser uses."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return moved


__all__ = ["Page", "browser", "skip_without_browser"]
