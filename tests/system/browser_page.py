"""An open page in a real browser: waits for texts of elements, and evaluates JavaScript.

    with Page(url) as page:
        page.wait_for("live", "live")

Uses Chromium's DevTools protocol over a pipe: JSON messages that end with a zero byte; no port, no
library.
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
PICTURES = os.environ.get("HEARTH_PAGE_PICTURES")  # folder for screenshots

# Long enough for busy virtual machines; normally the page shows the text within seconds.
PATIENCE_MS = 180000

# A promise that resolves when the element's text begins as wanted; after the timeout it rejects
# with the text.
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
    """Ends the test as skipped if there is no browser."""
    if browser() is None:
        print("skipped, there is no browser: apt-get install chromium-headless-shell")
        sys.exit(SKIPPED)


class Page:
    """A page in its own browser process. Thread safety: none."""

    def __init__(self, url):
        # Child processes of the browser may write here after the browser process has ended.
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
        os.close(self._write)  # a closed pipe ends the browser and its child processes
        try:
            self._browser.wait(20)
        except subprocess.TimeoutExpired:
            self._browser.kill()
            self._browser.wait()
        os.close(self._read)
        self._profile.cleanup()

    def wait_for(self, element, beginning):
        """Waits until the element's text begins with `beginning`; returns the text."""
        expression = WAIT_FOR % (json.dumps(element), json.dumps(beginning), PATIENCE_MS)
        answer = None
        while answer is None:  # no answer: the page was reloaded; evaluate in the new page
            answer = self._call("Runtime.evaluate", session=self._session, expression=expression,
                                awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            said = answer["exceptionDetails"]["exception"].get("description", "")
            raise AssertionError(f"{element}: not \"{beginning}\" but {said.splitlines()[0]}")
        return answer["result"]["value"]

    def value(self, expression):
        """Evaluates JavaScript in the page; returns its value."""
        answer = self._call("Runtime.evaluate", session=self._session, expression=expression,
                            returnByValue=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def sizes(self, name):
        """Shows the page in a wide and a narrow window, light and dark, and checks that it fits.
        Yields (width, is dark)."""
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
        """Sets the window's size and the preferred colour scheme."""
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
    """Returns the read and write end of a pipe, with descriptors of at least 10: the browser uses 3
    and 4."""
    ends = os.pipe()
    moved = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return moved


__all__ = ["Page", "browser", "skip_without_browser"]
