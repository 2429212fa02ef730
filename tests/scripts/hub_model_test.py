"""Tests scripts/hub_model.py with a server that speaks the protocol of the Hugging Face Hub, and
with a second server, because the hub's files come from another host.

Run as: python hub_model_test.py. Without huggingface_hub the exit code is 77, which ctest shows as
skipped.
"""

import contextlib
import hashlib
import http.server
import importlib.util
import io
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

if importlib.util.find_spec("huggingface_hub") is None:
    print("skipped, huggingface_hub is not installed: scripts/requirements-hub.txt")
    sys.exit(77)

REPOSITORY, FILE = "ggml-org/gemma-3-270m-it-qat-GGUF", "gemma-3-270m-it-qat-Q4_0.gguf"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_reader"
CONTENT = b"GGUF" + bytes(range(256)) * 4096  # 1 MiB
SHA256 = hashlib.sha256(CONTENT).hexdigest()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, status, headers=(), body=b""):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **dict(headers)}.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self):
        self.do_GET()


class Hub(Handler):
    def do_GET(self):
        state = self.server.state
        state.tokens.append(self.headers.get("Authorization"))
        refused = {"X-Error-Code": "GatedRepo"} if state.is_gated else {}
        path = self.path.partition("?")[0]
        if path == f"/api/models/{REPOSITORY}":
            state.asked += 1
            lfs = {"sha256": SHA256, "size": len(CONTENT), "pointerSize": 134}
            files = [{"rfilename": FILE, "size": len(CONTENT), "lfs": lfs if state.lfs else None},
                     {"rfilename": "README.md", "size": 10}]
            for name, text in state.checkpoint.items():
                blob = hashlib.sha1(b"blob %d\0" % len(text) + text).hexdigest()
                files.append({"rfilename": name, "size": len(text), "blobId": blob})
            info = {"id": REPOSITORY, "sha": COMMIT, "siblings": files, "gated": state.is_gated,
                    "cardData": {"license": "gemma"}}
            self.reply(200, {"Content-Type": "application/json"}, json.dumps(info).encode())
        elif path.split("/")[-1] in state.checkpoint:
            self.reply(200, body=state.checkpoint[path.split("/")[-1]])
        elif path != f"/{REPOSITORY}/resolve/{COMMIT}/{FILE}":
            self.reply(404, {"X-Error-Code": "RepoNotFound"})
        elif state.is_gated and not self.headers.get("Authorization"):
            self.reply(401, refused)
        elif state.is_gated:
            self.reply(403, refused)
        else:
            self.reply(302, {"Location": f"{state.files_url}/blob", "X-Linked-Etag": f'"{SHA256}"',
                             "X-Linked-Size": len(CONTENT), "X-Repo-Commit": COMMIT})


class Files(Handler):
    def do_GET(self):
        state = self.server.state
        state.open.wait()
        asked = self.headers.get("Range")
        state.ranges.append(asked)
        state.leaked += [value for value in [self.headers.get("Authorization")] if value]
        if state.failing:
            return self.reply(state.failing.pop(0))
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and state.resumes else 0
        if start >= len(state.content):
            return self.reply(416)
        body = state.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        if start:
            total = len(state.content)
            self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
        self.end_headers()
        cut = state.cuts.pop(0) if state.cuts else len(body)
        self.wfile.write(body[:cut])
        self.close_connection = cut < len(body)


class State:
    """Settings of the servers, and the requests that they saw."""

    def __init__(self, files_url):
        self.files_url = files_url
        self.content = CONTENT
        self.is_gated, self.lfs, self.resumes = False, True, True
        self.checkpoint = {}  # {name of a file in git: content}
        self.cuts = []  # for each request: number of bytes after which the connection is closed
        self.failing = []  # for each request: the error status to send
        self.asked, self.tokens, self.leaked, self.ranges = 0, [], [], []
        self.open = threading.Event()
        self.open.set()


def started(handler):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


HUB, FILES = started(Hub), started(Files)
HUB_URL = f"http://127.0.0.1:{HUB.server_port}"
# Read when huggingface_hub is imported.
os.environ["HF_ENDPOINT"] = HUB_URL
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "scripts"))

import hub_model  # noqa: E402


class HubModelTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.out = self.folder / "model.gguf"
        self.url = f"http://localhost:{FILES.server_port}/files/model.gguf?secret=1"
        self.state = HUB.state = FILES.state = State(f"http://localhost:{FILES.server_port}")

    def run_it(self, *words, token=None):
        """Returns (exit status or message, standard output)."""
        out, ended = io.StringIO(), 0
        home = {"HF_TOKEN": token} if token else {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1"}
        with mock.patch.dict(os.environ, home), mock.patch("sys.argv", ["hub_model.py", *words]), \
                contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            try:
                hub_model.main()
            except SystemExit as end:
                ended = end.code
        return ended, out.getvalue()

    def fetch(self, *words, **options):
        return self.run_it("gemma-3-270m-it", "--out", str(self.out), *words, **options)

    def assert_complete(self, ended):
        self.assertEqual(ended, 0)
        self.assertEqual(self.out.read_bytes(), CONTENT)
        self.assertEqual(sorted(one.name for one in self.folder.iterdir()),
                         [".model.gguf.lock", "model.gguf"])

    def test_named_model_is_downloaded(self):
        ended, said = self.fetch(token=TOKEN)
        self.assert_complete(ended)
        self.assertRegex(said, r"licence: gemma, https://ai\.google\.dev/gemma/terms\n"
                               r"  size: 1 MB\n(.*\n)*.*is complete, digest " + SHA256)
        self.assertIn(f"hearth-worker --model {self.out}", said)
        self.assertEqual(self.out.stat().st_mode & 0o777, 0o644)
        self.assertEqual(set(self.state.tokens), {f"Bearer {TOKEN}"})
        self.assertEqual(self.state.leaked, [])  # another host gets no token

    def test_folder_keeps_models_name(self):
        ended, _ = self.run_it("gemma-3-270m-it", "--out", f"{self.folder}/new/")
        self.assertEqual(ended, 0)
        file = self.folder / "new/gemma-3-270m-it.gguf"
        self.assertEqual(file.read_bytes(), CONTENT)
        file.unlink()
        with contextlib.chdir(file.parent):
            self.assertEqual(self.run_it("gemma-3-270m-it", "--out", ".")[0], 0)
        self.assertEqual(file.read_bytes(), CONTENT)

    def test_repository_is_downloaded_as_folder(self):
        ended, _ = self.run_it(REPOSITORY, "--out", f"{self.folder}/", "--sha256", "")
        self.assertEqual(ended, f"{REPOSITORY} has no file *.safetensors; its GGUF files: {FILE}")
        self.state.checkpoint = {"config.json": b"{}", "model.safetensors": b"weights"}
        ended, said = self.run_it(REPOSITORY, "--out", f"{self.folder}/")
        self.assertEqual(ended, 0, said)
        folder = self.folder / REPOSITORY.split("/")[1]
        self.assertEqual({one.name: one.read_bytes() for one in folder.iterdir()},
                         self.state.checkpoint)

    def test_lost_connection_is_resumed(self):
        self.state.cuts = [350_000]
        with mock.patch("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100_000):
            ended, _ = self.fetch()
        self.assert_complete(ended)
        self.assertEqual(self.state.ranges, [None, "bytes=300000-"])

    def test_failed_download_is_resumed_by_next_run(self):
        self.state.cuts, self.state.failing = [], [503]
        part = self.folder / f".model.gguf.{SHA256[:16]}.part"
        part.write_bytes(CONTENT[:400_000])
        ended, _ = self.fetch()
        self.assertRegex(ended, "HTTP 503; run the same command again to resume")
        self.assertEqual(part.stat().st_size, 400_000)
        ended, said = self.fetch()
        self.assert_complete(ended)
        self.assertIn("resuming after 0 MB", said)
        self.assertEqual(self.state.ranges, ["bytes=400000-"] * 2)

    def test_server_without_ranges_sends_all(self):
        self.state.resumes = False
        (self.folder / f".model.gguf.{SHA256[:16]}.part").write_bytes(b"x" * 1000)
        self.assert_complete(self.fetch()[0])

    def test_wrong_bytes_are_refused(self):
        self.state.content = CONTENT[:-1] + b"\0"
        ended, _ = self.fetch()
        self.assertRegex(ended, f"digest must be {SHA256}; got [0-9a-f]{{64}}; the download was "
                                "deleted")
        self.assertEqual([one.name for one in self.folder.iterdir()], [".model.gguf.lock"])

    def test_gated_model_names_its_licence_page(self):
        self.state.is_gated = True
        for token in (None, TOKEN):
            ended, _ = self.fetch(token=token)
            self.assertIn(f"accept its licence at {HUB_URL}/{REPOSITORY}", ended)
            self.assertIn("set HF_TOKEN", ended)
        self.assertFalse(self.out.exists())

    def test_unknown_file_or_repository_is_refused(self):
        ended, _ = self.run_it(f"{REPOSITORY}/gone.gguf", "--out", str(self.out))
        self.assertEqual(ended, f"{REPOSITORY} has no file gone.gguf; its GGUF files: {FILE}")
        ended, _ = self.run_it("nobody/gone/model.gguf", "--out", str(self.out))
        self.assertIn(f"{HUB_URL}/nobody/gone", ended)
        self.state.lfs = False
        self.assertIn("reports no size and digest", self.fetch()[0])

    def test_complete_file_needs_no_download(self):
        self.out.write_bytes(CONTENT)
        self.assertEqual(self.fetch()[0], 0)
        self.assertEqual((self.state.asked, self.state.ranges), (1, []))
        self.assertEqual(self.fetch("--sha256", SHA256.upper())[0], 0)
        self.assertEqual(self.state.asked, 1)  # the known digest is enough

    def test_other_file_needs_replace(self):
        self.out.write_bytes(b"mine")
        ended, _ = self.fetch()
        self.assertIn("is another file", ended)
        self.assertEqual(self.out.read_bytes(), b"mine")
        self.assert_complete(self.fetch("--replace")[0])

    def test_other_digest_of_hub_is_refused(self):
        ended, _ = self.fetch("--sha256", "0" * 64)
        self.assertIn(f"the hub has a file with {SHA256}", ended)
        self.assertEqual(self.state.ranges, [])

    def test_url_is_downloaded_and_resumed(self):
        words = (self.url, "--sha256", SHA256, "--out", str(self.out))
        part = self.folder / f".model.gguf.{SHA256[:16]}.part"
        part.write_bytes(CONTENT[:1000])
        ended, said = self.run_it(*words, token=TOKEN)
        self.assert_complete(ended)
        self.assertNotIn("secret", said)
        self.assertEqual((self.state.ranges, self.state.leaked), (["bytes=1000-"], []))
        self.out.rename(part)  # killed between the last byte and the new name
        self.assert_complete(self.run_it(*words)[0])
        self.assertEqual(len(self.state.ranges), 1)
        part.write_bytes(b"\0" * len(CONTENT))  # no range of the file is left
        self.out.unlink()
        self.assert_complete(self.run_it(*words)[0])
        self.state.content = b"other"
        ended, _ = self.run_it(*words[:-1], str(self.folder / "other.gguf"))
        self.assertIn("digest must be", ended)
        self.assertNotIn("secret", ended)

    def test_bad_arguments_are_refused(self):
        for words, message in (((self.url,), "a URL needs --sha256"),
                               ((self.url, "--sha256", "12"), "must be 64 hexadecimal digits"),
                               (("gemma-3-2b-it",), "MODEL must be one of gemma-3-12b-it, ")):
            ended, said = self.run_it(*words)
            self.assertEqual(ended, 2)
            self.assertIn(message, said)

    def test_hearth_help_lists_every_model(self):
        listed = subprocess.run([hub_model.HEARTH, "help", "model"], check=True, text=True,
                                capture_output=True).stdout
        self.assertEqual(set(re.findall(r"gemma-3-\w+-it", listed)), set(hub_model.MODELS))

    def test_missing_server_and_full_disk_are_reported(self):
        with mock.patch("shutil.disk_usage", return_value=mock.Mock(free=1000)):
            self.assertIn("1 MB must be free; got 0 MB", self.fetch()[0])
        self.state.files_url = "http://127.0.0.1:1"
        with mock.patch("huggingface_hub.file_download.time"):
            self.assertIn("run the same command again to resume", self.fetch()[0])

    def test_second_process_waits_for_first(self):
        self.state.open.clear()
        ends = []
        with mock.patch("hub_model.say") as said:
            waits = threading.Event()
            said.side_effect = lambda text: waits.set() if "waiting" in text else None
            run = mock.patch("sys.argv", ["hub_model.py", "gemma-3-270m-it", "--out",
                                          str(self.out)])
            with run:
                both = [threading.Thread(target=lambda: ends.append(hub_model.main()))
                        for _ in range(2)]
                for one in both:
                    one.start()
                self.assertTrue(waits.wait(100))
                self.state.open.set()
                for one in both:
                    one.join(100)
        self.assertEqual(ends, [None, None])
        self.assert_complete(0)
        self.assertEqual(len(self.state.ranges), 1)


if __name__ == "__main__":
    unittest.main()
