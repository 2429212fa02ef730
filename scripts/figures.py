"""Shared by the measurements of a worker and a store: the first flags, the file of figures."""

import argparse
import json
import pathlib

ROOT = pathlib.Path(__file__).resolve().parent.parent


def flags(doc, model="gemma-3-270m.gguf"):
    """A parser with --model, by default that of models/, --bin and --json, whose help is `doc`."""
    parser = argparse.ArgumentParser(description=doc,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(ROOT / "models" / model))
    parser.add_argument("--bin", default=str(ROOT / "build/bin"))
    parser.add_argument("--json", help="file to write all figures to")
    return parser


def write(args, figures):
    """To the file of --json, if there is one."""
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(figures, indent=1))
