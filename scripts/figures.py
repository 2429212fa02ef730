"""Shared by the measurements of worker and store: common flags, and the JSON file of results."""

import argparse
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def flags(doc, model="gemma-3-270m.gguf"):
    """Returns an argument parser with --model (default: models/`model`), --bin and --json; `doc` is
    its help text."""
    parser = argparse.ArgumentParser(description=doc,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models" / model))
    parser.add_argument("--bin", default=str(ROOT / "build/bin"))
    parser.add_argument("--json", help="file to write all figures to")
    return parser


def write(args, figures):
    """Writes the figures to the file of --json, if given."""
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=1))
