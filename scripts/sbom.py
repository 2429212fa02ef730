"""Writes the bill of materials of a container image as CycloneDX JSON.

Lists the Debian packages that dpkg-query reports in the image, the Python packages, and the
libraries that no package manager installed: their versions are those that the build pinned.

Usage: sbom.py IMAGE FILE
"""

import argparse
import pathlib
import re
import subprocess

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

SCRIPTS = pathlib.Path(__file__).resolve().parent
# Prints lines of words: the kind, the name, the version.
QUERY = r"""
dpkg-query --show --showformat 'deb ${Package} ${Version} ${Architecture}\n'
for file in /opt/hearth/lib/python/*.dist-info/METADATA \
    /opt/hearth/lib/python3*/site-packages/*.dist-info/METADATA; do
  [[ ! -f $file ]] || echo pypi $(sed -n 's/^Name: //p;/^$/q' "$file") \
    $(sed -n 's/^Version: //p;/^$/q' "$file")
done
[[ ! -d /opt/hearth/lib/torch ]] || echo library torch
[[ ! -f /opt/hearth/lib/libllguidance.so ]] || echo library llguidance
"""
PINS = {"torch": "torch-cpu.txt", "llguidance": "llguidance.txt"}


def pinned(name):
    """Returns the version of a library in the list that the build installed it from."""
    return re.search(rf"^{name}==([\w.+]+)", (SCRIPTS / PINS[name]).read_text(), re.M)[1]


def component(kind, name, version="", architecture=""):
    if kind == "deb":
        url = PackageURL("deb", "debian", name, version,
                         {"arch": architecture, "distro": "debian-12"})
    else:
        version = version or pinned(name)
        url = PackageURL("pypi", None, name.lower().replace("_", "-"), version)
    return Component(type=ComponentType.LIBRARY, name=name, version=version, purl=url,
                     bom_ref=str(url))


def inside(image, script):
    return subprocess.run(["docker", "run", "--rm", "--entrypoint", "bash", image, "-c", script],
                          check=True, capture_output=True, text=True).stdout


def label(image, name):
    return subprocess.run(
        ["docker", "image", "inspect", "--format",
         f'{{{{index .Config.Labels "org.opencontainers.image.{name}"}}}}', image],
        check=True, capture_output=True, text=True).stdout.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("image")
    parser.add_argument("file", type=pathlib.Path)
    args = parser.parse_args()
    image = Component(type=ComponentType.CONTAINER, name=label(args.image, "title"),
                      version=label(args.image, "version"))
    parts = [component(*line.split()) for line in inside(args.image, QUERY).splitlines()]
    bom = Bom(components=parts)
    bom.metadata.component = image
    bom.register_dependency(image, parts)
    args.file.write_text(JsonV1Dot6(bom).output_as_string(indent=2) + "\n")


if __name__ == "__main__":
    main()
