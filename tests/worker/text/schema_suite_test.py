"""Runs the JSON-Schema-Test-Suite, draft 2020-12 with ten formats, against GrammarEngine.

The refused schemas, the valid values that grammars do not accept, and the invalid values that they
accept must equal the golden file. Values are written like answers: ", " and ": " between values.

Usage: schema_suite_test.py PROBE MODEL SUITE GOLDEN [--write]
"""

import json
import pathlib
import subprocess
import sys

FORMATS = ("date", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "time", "uri",
           "uuid")


def groups(suite):
    """Yields (name, schema, tests) for each group of tests."""
    folder = suite / "json" / "tests" / "draft2020-12"
    files = sorted(folder.glob("*.json"))
    files += [folder / "optional" / "format" / f"{name}.json" for name in FORMATS]
    for file in files:
        for group in json.loads(file.read_text(encoding="utf-8")):
            yield f"{file.stem}: {group['description']}", group["schema"], group["tests"]


def results(probe, model, suite):
    found = {"refused": [], "valid not taken": [], "invalid taken": []}
    counts = {"schemas": 0, "cases": 0}
    with subprocess.Popen([probe, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True, encoding="utf-8") as process:
        for name, schema, tests in groups(suite):
            texts = [json.dumps(test["data"], ensure_ascii=False) for test in tests]
            request = {"schema": json.dumps(schema), "lenient": False, "texts": texts}
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline())
            counts["schemas"] += 1
            counts["cases"] += len(tests)
            if "error" in answer:
                found["refused"].append(f"{name}: {answer['error'].partition('; got')[0]}")
                continue
            for test, taken in zip(tests, answer["valid"]):
                if test["valid"] != taken:
                    kind = "valid not taken" if test["valid"] else "invalid taken"
                    found[kind].append(f"{name}: {test['description']}")
        process.stdin.close()
    return found, counts


def main():
    probe, model, suite, golden = sys.argv[1:5]
    if not pathlib.Path(suite).exists():
        sys.exit(f"{suite} is missing: ./hearth test fetches it")
    found, counts = results(probe, model, pathlib.Path(suite))
    text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
    if sys.argv[5:] == ["--write"]:
        pathlib.Path(golden).write_text(text, encoding="utf-8")
    wanted = json.loads(pathlib.Path(golden).read_text(encoding="utf-8"))
    for kind, names in found.items():
        for name in sorted(set(names) ^ set(wanted[kind])):
            print(f"{kind}: {'new' if name in names else 'no longer'}: {name}")
    print({**counts, **{kind: len(names) for kind, names in found.items()}})
    sys.exit(found != wanted)


if __name__ == "__main__":
    main()
