"""What the tests of images share: commands, and why they cannot run."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
MODEL = ROOT / "models" / "gemma-3-270m.gguf"
CLIENT = "hearth-test-client:dev"
SERVERS = "hearth-test-servers:dev"


def run(*command, text="", check=True, timeout=600):
    """Runs a command and returns its standard output."""
    done = subprocess.run([str(word) for word in command], input=text, capture_output=True,
                          text=True, timeout=timeout)
    if check and done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))}: status {done.returncode}\n"
                             f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def build(tag):
    """Builds one of the images of this folder."""
    name = tag.removeprefix("hearth-test-").removesuffix(":dev")
    here = ROOT / "tests" / "images"
    run("docker", "build", "--quiet", "--tag", tag, "--file", here / f"{name}.Dockerfile", here)


def missing():
    """Returns why the tests cannot run; "" if they can."""
    if not MODEL.exists():
        return f"there is no {MODEL}; run ./hearth setup"
    for command in (("docker", "version"), ("docker", "compose", "version")):
        try:
            if subprocess.run(command, capture_output=True).returncode:
                return f"`{' '.join(command)}` fails: no container engine"
        except FileNotFoundError:
            return "docker is not installed"
    for name in ("hearth-store", "hearth-worker", "hearthctl"):
        command = ("docker", "image", "inspect", f"{name}:dev")
        if subprocess.run(command, capture_output=True).returncode:
            return f"there is no image {name}:dev; run scripts/images.sh build"
    return ""
