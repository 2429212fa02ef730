#!/usr/bin/env python3
"""Downloads a Gemma 3 model from the Hugging Face Hub or from a URL, and verifies its SHA-256.

MODEL is one of
  gemma-3-270m-it, gemma-3-1b-it, gemma-3-4b-it, gemma-3-12b-it, gemma-3-27b-it:
                             an instruct model with quantization-aware training (Q4_0)
  OWNER/REPOSITORY/FILE.gguf: a file on the hub
  OWNER/REPOSITORY:           a folder for transformers and GPUs: weights, configuration, tokenizer
  http(s)://HOST/FILE.gguf:   a file on a web server; needs --sha256

HF_ENDPOINT names a mirror of the hub, HF_TOKEN an access token for gated repositories. An
interrupted download is resumed. A file appears under its name only when it is complete; the files
of a folder appear one by one, and other files there stay.
"""

import argparse
import contextlib
import dataclasses
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import urllib.parse

import httpx2
import huggingface_hub as hub
from huggingface_hub import constants, errors, file_download
from huggingface_hub.utils import build_hf_headers

QAT = "bartowski/google_gemma-3-{0}-it-qat-GGUF/google_gemma-3-{0}-it-qat-Q4_0.gguf"
MODELS = {f"gemma-3-{size}-it": QAT.format(size) for size in ("1b", "4b", "12b", "27b")}
MODELS["gemma-3-270m-it"] = "ggml-org/gemma-3-270m-it-qat-GGUF/gemma-3-270m-it-qat-Q4_0.gguf"
GEMMA_TERMS = "https://ai.google.dev/gemma/terms"
CHECKPOINT_FILE = re.compile(r"[\w.-]+\.(safetensors|json|jinja)|tokenizer\.model")
SHA1_DIGITS = 40
RANGE_NOT_SATISFIABLE = 416
DIGEST = re.compile("([0-9a-f]{40}|[0-9a-f]{64})")
HEARTH = pathlib.Path(__file__).resolve().parent.parent / "hearth"


@dataclasses.dataclass
class Source:
    """A file to download. `digest` is its SHA-256, or its git SHA-1 if the hub has it in git.
    `size` is None if unknown."""
    url: str
    digest: str
    size: int | None = None
    headers: dict = dataclasses.field(default_factory=dict)


def say(text):
    print(text, flush=True)


def megabytes(count):
    return f"{count / 1e6:,.0f} MB"


def without_query(url):
    """Removes the part of a URL that may contain a secret."""
    return url.partition("?")[0]


def licence_of(info):
    card = info.card_data or {}
    name = card.get("license_name") or card.get("license")
    link = card.get("license_link") or (GEMMA_TERMS if name == "gemma" else "")
    if not name:
        return f"not named by the repository; Gemma's terms are at {GEMMA_TERMS}"
    return f"{name}, {link}" if link else name


def find_on_hub(model):
    """Asks the hub for the size and digest of each file, and prints the size and the licence.
    Returns {file name: Source}."""
    owner, name, *file = model.split("/", 2)
    repository = f"{owner}/{name}"
    info = hub.HfApi().model_info(repository, files_metadata=True)
    found = {one.rfilename: one for one in info.siblings or []}
    wanted = file or [one for one in sorted(found) if CHECKPOINT_FILE.fullmatch(one)]
    has_weights = any(one.endswith(".safetensors") for one in wanted)
    if file and file[0] not in found or not file and not has_weights:
        files = ", ".join(sorted(one for one in found if one.endswith(".gguf"))) or "none"
        raise SystemExit(f"{repository} has no file {file[0] if file else '*.safetensors'}; its "
                         f"GGUF files: {files}")
    sources = {}
    for one in wanted:
        lfs = found[one].lfs
        digest, size = (lfs.sha256, lfs.size) if lfs else (found[one].blob_id, found[one].size)
        if size is None or not DIGEST.fullmatch(digest or ""):
            raise SystemExit(f"{repository}/{one}: {constants.ENDPOINT} reports no size and digest "
                             "of this file; download it by URL with --sha256")
        sources[one] = Source(hub.hf_hub_url(repository, one, revision=info.sha), digest, size,
                              build_hf_headers())
    say(f"{model}\n  licence: {licence_of(info)}\n"
        f"  size: {megabytes(sum(one.size for one in sources.values()))}")
    return sources


def digest_of(path, like):
    """Returns the SHA-256 of a file, or its git SHA-1 if `like` is one; None if there is no
    file."""
    if not path.exists():
        return None
    digest = hashlib.sha256()
    if len(like) == SHA1_DIGITS:
        digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: digest).hexdigest()


def download(source, part, have):
    """Appends the file's bytes after the first `have` to `part`."""
    with open(part, "ab") as file:
        file_download.http_get(source.url, file, resume_size=have, headers=source.headers,
                               expected_size=source.size, displayed_filename=part.name)


def fetch(source, part):
    """Downloads the rest of the file to `part`, and verifies the whole file."""
    have = part.stat().st_size if part.exists() else 0
    if source.size is not None:
        if have > source.size:
            part.unlink()
            have = 0
        free = shutil.disk_usage(part.parent).free
        if free < source.size - have:
            raise SystemExit(f"{part.parent}: {megabytes(source.size - have)} must be free; "
                             f"got {megabytes(free)}")
    # Without a known size, a part can be complete already; a server refuses to resume it.
    if not have or digest_of(part, source.digest) != source.digest:
        if have:
            say(f"  resuming after {megabytes(have)}")
        try:
            download(source, part, have)
        except errors.HfHubHTTPError as error:
            if not have or error.response.status_code != RANGE_NOT_SATISFIABLE:
                raise
            part.unlink()  # has other bytes than the file, and at least as many
            download(source, part, 0)
        got = digest_of(part, source.digest)
        if got != source.digest:
            part.unlink()
            raise SystemExit(f"{without_query(source.url)}: digest must be {source.digest}; got "
                             f"{got}; the download was deleted: try again, or check the source")
    part.chmod(0o644)  # readable for all users, because a container runs as another user


@contextlib.contextmanager
def locked(path):
    """Lets one process at a time download to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("  waiting: another process downloads this model")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def provide(source, out, replace):
    """Makes `out` the wanted file: keeps it if its digest is right, else downloads it."""
    have = digest_of(out, source.digest)
    if have != source.digest:
        if have and not replace:
            raise SystemExit(f"{out} is another file, digest {have}; pass --replace to replace it,"
                             " or another --out")
        out.parent.mkdir(parents=True, exist_ok=True)
        part = out.with_name(f".{out.name}.{source.digest[:16]}.part")
        fetch(source, part)
        part.replace(out)
    say(f"{out} is complete, digest {source.digest}")


def provide_all(model, sha256, out, replace):
    """Makes `out` the file `model`, or the folder with the files of the repository `model`."""
    if "://" in model or sha256 and digest_of(out, sha256) == sha256:
        return provide(Source(model, sha256), out, replace)
    sources = find_on_hub(model)
    for name, source in sources.items():
        if sha256 not in (None, source.digest):
            raise SystemExit(f"{model}: SHA-256 must be {sha256}, says --sha256; "
                             f"the hub has a file with {source.digest}")
        provide(source, out / name if is_repository(model) else out, replace)


def explained(error, model):
    """Returns the message for an error of the hub or of the network."""
    repository = "/".join(model.split("/")[:2])
    page = f"{constants.ENDPOINT}/{repository}"
    status = error.response.status_code if isinstance(error, errors.HfHubHTTPError) else None
    if isinstance(error, errors.GatedRepoError):
        return (f"{repository} is gated: accept its licence at {page}, then set HF_TOKEN to a read "
                f"token of your account ({constants.ENDPOINT}/settings/tokens)")
    if "://" not in model and status in (401, 403, 404):
        return (f"{page}: HTTP {status}; check HF_TOKEN and the repository's name, and accept its "
                "licence on that page if it asks for it")
    if isinstance(error, OSError) and error.errno:
        return str(error)
    reason = f"HTTP {status}" if status else str(error) or type(error).__name__
    return f"{without_query(model)}: {reason}; run the same command again to resume"


def is_repository(model):
    return model.count("/") == 1


def read_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", metavar="MODEL", help="a name, a file on the hub, or a URL")
    parser.add_argument("--out", default="./", metavar="PATH",
                        help="the file or folder to write; if it ends with / or is a folder, the "
                             "folder to write a file in (default: ./)")
    parser.add_argument("--sha256", type=str.lower, metavar="HEX",
                        help="the SHA-256 that the file must have; default: what the hub reports")
    parser.add_argument("--replace", action="store_true",
                        help="replace a file with another SHA-256")
    args = parser.parse_args()
    name = f"{args.model}.gguf" if args.model in MODELS else os.path.basename(
        urllib.parse.urlsplit(args.model).path)
    args.model = MODELS.get(args.model, args.model)
    args.sha256 = args.sha256 or None
    if args.sha256 and (is_repository(args.model) or not re.fullmatch("[0-9a-f]{64}", args.sha256)):
        parser.error(f"--sha256 must be 64 hexadecimal digits, for one file; got {args.sha256}")
    if re.match("https?://", args.model):
        if not args.sha256:
            parser.error(f"{without_query(args.model)}: a URL needs --sha256")
    elif not re.fullmatch(r"[\w.-]+/[\w.-]+(/.+\.gguf)?", args.model):
        parser.error(f"MODEL must be one of {', '.join(sorted(MODELS))}; or OWNER/REPOSITORY; or "
                     f"OWNER/REPOSITORY/FILE.gguf; or a URL; got {args.model}")
    out = pathlib.Path(args.out)
    if args.out.endswith("/") or not out.name or not is_repository(args.model) and out.is_dir():
        if not name:
            parser.error(f"{without_query(args.model)} ends without a file name; pass --out FILE")
        out /= name
    return args, out


def main():
    args, out = read_arguments()
    hub.utils.logging.set_verbosity_error()  # its warnings print URLs with their secrets
    try:
        with locked(out):
            provide_all(args.model, args.sha256, out, args.replace)
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        raise SystemExit(explained(error, args.model)) from None
    if HEARTH.is_file():
        here = pathlib.Path.cwd()
        path = out.resolve()
        path = path.relative_to(here) if path.is_relative_to(here) else path
        say(f"Start it: ./hearth demo --model {path}\n"
            f"      or: build/bin/hearth-worker --model {path} --http-listen 127.0.0.1:8000")


if __name__ == "__main__":
    main()
