"""Schemas made to cost time or memory: each is refused or compiled quickly, and gives memory back.

Usage: hostile_schemas_test.py PROBE MODEL [--verbose]
"""

import json
import pathlib
import resource
import subprocess
import sys

# Processor time. The limits of schema_check.h allow 250 ms; a slow, busy machine may need four
# times as long. A schema without a limit needs seconds.
COMPILE_MS, MASK_MS = 1000, 100
MEMORY_BYTES = 64 << 20  # limit of the memory that a schema leaves in use, and of its peak
ENDED = "the probe ended: no memory, or no time"
TEXT = {"type": "string"}


def nested(depth, wrap, schema=None):
    schema = schema or TEXT
    for _ in range(depth):
        schema = wrap(schema)
    return schema


def properties(count, required=0, schema=None):
    return {"type": "object", "properties": {f"p{i}": schema or {} for i in range(count)},
            "required": [f"p{i}" for i in range(required)]}


def doubled(levels):
    """Returns a schema whose definitions each refer twice to the definition before."""
    defs = {"d0": TEXT}
    for i in range(1, levels):
        defs[f"d{i}"] = {"anyOf": [{"$ref": f"#/$defs/d{i - 1}"},
                                   {"type": "array", "items": {"$ref": f"#/$defs/d{i - 1}"}}]}
    return {"$defs": defs, "$ref": f"#/$defs/d{levels - 1}"}


def doubled_objects(levels, keyword):
    defs = {"d0": properties(2, 2, TEXT)}
    for i in range(1, levels):
        defs[f"d{i}"] = {keyword: [{"$ref": f"#/$defs/d{i - 1}"}, {"$ref": f"#/$defs/d{i - 1}"}]}
    return {"$defs": defs, "$ref": f"#/$defs/d{levels - 1}"}


def structures(add):
    """Adds schemas with many properties, branches, levels or references."""
    for count in (100, 400, 401, 1000, 2000, 20000):
        add(f"{count} optional properties", properties(count))
        add(f"{count} required properties", properties(count, count, TEXT))
    add("400 optional properties of strings", properties(400, 0, TEXT))
    add("400 optional properties of objects", properties(400, 0, properties(3)))
    for count in (16, 256, 257, 5000):
        add(f"{count} branches", {"anyOf": [{"const": f"c{i}"} for i in range(count)]})
        add(f"{count} branches of objects", {"anyOf": [properties(3, 2) for _ in range(count)]})
        add(f"{count} equal branches", {"anyOf": [TEXT] * count})
        add(f"{count} alternatives of oneOf", {"oneOf": [
            {"type": "object", "properties": {"k": {"const": i}}, "required": ["k"]}
            for i in range(count)]})
        add(f"{count} parts of allOf", {"allOf": [
            {"type": "object", "properties": {f"k{i}": TEXT}} for i in range(count)]})
    for depth in (20, 30, 31, 60, 1000, 100_000):
        add(f"items, depth {depth}", '{"items":' * depth + "{}" + "}" * depth)
    for depth in (8, 12, 16):
        add(f"anyOf doubled, depth {depth}",
            nested(depth, lambda schema: {"anyOf": [schema, {"type": "array", "items": schema}]})
            if depth < 12 else doubled(depth))
        add(f"references doubled, depth {depth}", doubled(depth))
        add(f"allOf of references, depth {depth}", doubled_objects(depth, "allOf"))
        add(f"anyOf of references, depth {depth}", doubled_objects(depth, "anyOf"))
    add("references doubled, depth 400", doubled(400))


def values(add):
    """Adds schemas with large numbers, lengths and patterns."""
    for number in (7, 9973, 10_000, 10_001, 999_983, 1e300, 1e-300, 0.01, 9973e-7):
        add(f"multipleOf {number}", {"type": "number", "multipleOf": number})
        add(f"integer multipleOf {number}", {"type": "integer", "multipleOf": number})
    add("multiples of two primes", {"allOf": [{"multipleOf": 9973}, {"multipleOf": 9967}],
                                    "type": "integer"})
    add("multiples of two fractions", {"allOf": [{"multipleOf": 0.9973}, {"multipleOf": 7}],
                                       "type": "number"})
    for low, high in ((0, 10**15), (-1e308, 1e308), (1e-300, 1), (123456789.123, 987654321.987),
                      (-9007199254740993, 9007199254740993)):
        add(f"number from {low} to {high}", {"type": "number", "minimum": low, "maximum": high})
        add(f"integer from {low} to {high}", {"type": "integer", "minimum": low, "maximum": high})
    for length in (1000, 100_000, 1_000_000, 10**12):
        add(f"maxLength {length}", {"type": "string", "maxLength": length})
        add(f"minLength {length}", {"type": "string", "minLength": length})
        add(f"minItems {length}", {"type": "array", "items": TEXT, "minItems": length})
        add(f"maxItems {length}", {"type": "array", "items": TEXT, "maxItems": length})
        add(f"maxProperties {length}", {"type": "object", "maxProperties": length})
        add(f"pattern and maxLength {length}",
            {"type": "string", "pattern": "^(a|b)*c", "maxLength": length})
    for pattern in ("^(a+)+$", "^(a|a)*$", "^(a{1,1000}){1,1000}$", "(a{1000}){1000}",
                    "^(.*a){50}$", "^[a-z]{1000}$", "^(([a-z]{1,100}){1,100}){1,100}$",
                    "(x+x+)+y", "^(?:(?:a?){100}){100}$", "[^\\u0000-\\uffff]{1,999}",
                    "^\\p{L}{1,1000}$", "^.{1000}.{1000}.{1000}$", "^(.|\\n){0,1000}z$",
                    "(?=a)b", "(?<!a)b", "(a)\\1", "^(a|ab|abc|abcd|abcde){0,999}$",
                    "^.*.*.*.*.*.*.*.*x.*.*.*.*$", "|" * 500, "(" * 250 + ")" * 250, "[" * 100):
        add(f"pattern {pattern[:40]}", {"type": "string", "pattern": pattern})


def texts(add):
    """Adds schemas with many patternProperties or enum values, long texts, and cycles."""
    for count in (16, 17, 300):
        add(f"{count} patternProperties",
            {"type": "object",
             "patternProperties": {f"^k{i}[a-z]{{1,9}}$": {} for i in range(count)}})
        add(f"{count} overlapping patternProperties",
            {"type": "object", "patternProperties": {f"k{i}": {} for i in range(count)}})
    add("64 patterns of 500 repetitions",
        properties(64, 64, {"type": "string", "pattern": "^([a-z]{1,500}x){1,500}$"}))
    for count in (1000, 1001):
        add(f"{count} enum values", {"enum": [f"value {i} {'x' * 20}" for i in range(count)]})
    add("enum of 33 KB", {"enum": ["x" * 33_000]})
    add("enum of nested arrays", {"enum": [json.loads("[" * 50 + "]" * 50)] * 100})
    add("a key 250,000 times", '{"a":{' + ",".join(f'"k{i}":0' for i in range(250_000)) + "}}")
    add("1,024 keys in 100 objects", {"x": [{f"k{i}": 0 for i in range(1000)}] * 100})
    add("description of 1 MB", {"description": "x" * (1 << 20)})
    add("self reference", {"$ref": "#"})
    add("two references", {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}},
                           "$ref": "#/$defs/a"})
    add("anyOf itself", {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]})
    add("allOf itself", {"allOf": [{"$ref": "#"}, TEXT]})
    add("recursive tree", {"type": "object", "properties": {
        name: {"$ref": "#"} for name in "abcdefgh"}})
    add("recursive lists", {"type": "array", "items": {"anyOf": [{"$ref": "#"}] * 20}})
    add("minProperties of optional ones", {**properties(20), "minProperties": 10})
    add("nothing", "")
    add("brackets", "[" * 1_000_000)
    add("enum of 1,000 nested arrays", {"enum": [json.loads("[" * 50 + "]" * 50)] * 19})


def chain(links, depth):
    """Returns a schema whose definitions each nest `depth` lists and refer to the next one."""
    defs = {f"d{links}": {}}
    for i in range(links):
        defs[f"d{i}"] = {"$ref": f"#/$defs/d{i + 1}"}
        for _ in range(depth):
            defs[f"d{i}"] = {"items": defs[f"d{i}"]}
    return {"$defs": defs, "$ref": "#/$defs/d0"}


def multiplied(count, branch):
    """Returns a schema with `count` branches that must also obey 7,000 values."""
    values = {"type": "object",
              "properties": {f"p{i}": {"enum": list(range(1000))} for i in range(7)}}
    return {"$defs": {"x": {"anyOf": [branch] * 256}, "values": values},
            "allOf": [{"anyOf": [{"$ref": "#/$defs/x"}] * count}, {"$ref": "#/$defs/values"}]}


def products(parts, branches, wrap):
    return {"allOf": [wrap({"anyOf": [properties(1, 0, {"const": f"{i} {j}"})
                                      for j in range(branches)]}) for i in range(parts)]}


def both_recursive(value):
    tree = {side: {"$ref": "#/$defs/b"} for side in ("left", "right")}
    valued = {side: {"$ref": "#/$defs/a"} for side in ("left", "right")}
    return {"$defs": {"a": {"properties": {**valued, "value": value}}, "b": {"properties": tree}},
            "allOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]}


def intersections(add):
    """Adds schemas that nest by references, and schemas that the library intersects."""
    for links, depth in ((5, 40), (30, 50), (60, 50), (120, 1), (1000, 1)):
        add(f"{links} references, each in {depth} lists", chain(links, depth))
    for count in (1, 2, 4, 64):
        add(f"{count} x 256 objects and 7,000 values", multiplied(count, {"type": "object"}))
        add(f"{count} x 256 nulls and 7,000 values", multiplied(count, {"type": "null"}))
    for parts, branches in ((2, 16), (2, 40), (2, 64), (3, 6), (3, 16), (4, 10), (5, 5)):
        add(f"{parts} parts of {branches} branches", products(parts, branches, lambda one: one))
        add(f"{parts} properties of {branches} branches",
            products(parts, branches, lambda one: {"properties": {"a": one}}))
    for count in (1, 200, 1000):
        add(f"two recursive schemas, {count} values", both_recursive({"enum": list(range(count))}))
    for count in (15, 19, 25):
        add(f"two parts of {count} branches without type", {"allOf": [
            {"anyOf": [{"properties": {f"{part}{i}_{j}": {} for j in range(3)}}
                       for i in range(count)]} for part in "ab"]})
    for count, inner in ((20, 50), (50, 50), (200, 400)):
        add(f"{count} properties that obey {inner} properties", {"allOf": [
            properties(count), {"additionalProperties": properties(inner, 0, TEXT)}]})


def forced(add):
    """Adds schemas that force long texts into every answer."""
    for count in (60, 65, 10_000):
        many = {"type": "array", "items": {"const": "a" * 1000}, "minItems": count}
        add(f"{count} forced values", many)
        add(f"{count} forced values after a choice", {"anyOf": [{"type": "null"}, many]})
    for count in (100, 250, 300):
        text = {"type": "string", "pattern": f"^(a{{{count}}}){{{count}}}$"}
        add(f"a pattern of {count} x {count} letters", text)
        add(f"64 patterns of {count} x {count} letters", properties(64, 64, text))


def closed(count, required=0, **more):
    return {**properties(count, required, {"type": "null"}), "additionalProperties": False, **more}


def choices(add):
    """Adds objects that must have one optional property: the library writes out each choice."""
    for count in (44, 45, 100, 400):
        for limit in ("minProperties", "maxProperties"):
            add(f"{count} optional properties, {limit} 1", closed(count, **{limit: 1}))
            add(f"{count} optional properties and another schema with {limit} 1",
                {"allOf": [closed(count), {"type": "object", limit: 1}]})
        add(f"{count} optional properties of a property that another schema counts",
            {"allOf": [{"properties": {"x": closed(count)}},
                       {"properties": {"x": {"minProperties": 1}}}]})
        add(f"100 times {count} optional properties, minProperties 1",
            {"anyOf": [closed(count, minProperties=1)] * 100})
    for count, required in ((1000, 600), (460, 60), (944, 900)):
        for limit in ("minProperties", "maxProperties"):
            add(f"{count} properties, {required} required, {limit} one more",
                closed(count, required, **{limit: required + 1}))


def patterns(add):
    """Adds schemas with many patterns, and strings that must obey several patterns or formats."""
    unicode_classes = "^(\\p{{L}}{{{}}}|\\p{{N}}{{37}}|\\w{{41}})*$".format
    makers = {
        "lengths that must divide": lambda i: f"^(.{{{97 + 4 * i}}})*$",
        "a letter at a place from the end": lambda i: f"^.*{chr(97 + i)}.{{{100 + 37 * i}}}$",
        "letters in order": lambda i: f"{chr(97 + i)}.{{0,60}}{chr(98 + i)}.{{0,60}}z",
        "classes of Unicode": lambda i: unicode_classes(50 + i),
        "many alternatives": lambda i: "|".join(f"{chr(97 + j)}.{{{j + i}}}z" for j in range(26))}
    for name, make in makers.items():
        for count in (1, 2, 3, 4, 5, 8):
            strings = [{"type": "string", "pattern": make(i)} for i in range(count)]
            add(f"{count} patterns on one string: {name}", {"allOf": strings})
            add(f"{count} patterns on each of many strings: {name}",
                {"properties": {f"s{i}": {"allOf": strings} for i in range(64 // count)}})
    classes = "^(" + "\\p{L}|" * 20
    add("64 patterns of 20 classes of Unicode", {"properties": {
        f"s{i}": {"type": "string", "pattern": f"{classes}a{{{i + 1}}})*$"} for i in range(64)}})
    add("spaces in a repetition", {"type": "string", "pattern": "^a{ 50000 }$"})
    add("digits apart in a repetition", {"type": "string", "pattern": "(?x)^a{5 0 0 0 0}$"})
    add("a backslash at the end", {"type": "string", "pattern": "^a\\"})
    for name in ("uri", "email", "date-time"):
        text = {"type": "string", "format": name}
        for count in (13, 26, 60):
            add(f"{count} and {count} formats {name}",
                {"allOf": [{"anyOf": [text] * count}, {"anyOf": [text] * count}]})
        for count in (1, 2, 12):
            add(f"{250 * count} formats {name}", {"anyOf": [{"anyOf": [text] * 250}] * count})
        add(f"1,000 values of the format {name}",
            {"enum": [f"v{i:06}" for i in range(1000)], "format": name})
    add("1,000 values of a pattern",
        {"enum": [f"v{i:06}" for i in range(1000)], "pattern": "^(.{3})*$"})
    add("patternProperties and 1,000 required names", {
        "type": "object", "required": [f"a{i}x" for i in range(1000)],
        "patternProperties": {f"^{chr(97 + i)}\\p{{L}}{{1,{50 + i}}}$": TEXT for i in range(16)}})


def comparisons(add):
    """Adds schemas whose values the library compares with other values, and large oneOf."""
    for count in (30, 51, 54, 180):
        for name, values_of in (("numbers", list), ("texts", lambda all: [f"v{i}" for i in all])):
            both = [{"enum": values_of(range(count))}, {"enum": values_of(range(1, count + 1))}]
            add(f"{count} x {count} {name}", {"allOf": both})
            add(f"{count} x {count} {name} of a property",
                {"allOf": [{"properties": {"a": one}} for one in both]})
    for count, values_each in ((15, 500), (15, 900), (100, 60)):
        add(f"oneOf {count} enums of {values_each}",
            {"oneOf": [{"enum": [f"{i}{j}" for j in range(values_each)]} for i in range(count)]})
    for count in (60, 120, 250):
        add(f"oneOf {count} objects with many required names", {"oneOf": [
            {"type": "object", "properties": {"z": {"const": i}},
             "required": [*(f"k{i}_{j}" for j in range(5000 // count)), "z"]}
            for i in range(count)]})


def places(add):
    """Adds long paths, spellings of references, and schemas that references compile again."""
    long = "x" * 100_000
    branches = {f"k{i}": {"anyOf": [{}] * 250} for i in range(15)}
    add("a long name above 4,000 schemas", {"properties": {long: {"properties": branches}}})
    add("a long name above a wrong schema", {"properties": {long: {"type": long}}})
    add("a long reference", {"$ref": f"#/{long}"})
    add("a long key twice", f'{{"{long}": 1, "{long}": 2}}')
    add("a long required name without a value",
        {"type": "object", "properties": {long[:50_000]: False}, "required": [long[:50_000]]})
    for count in (25, 100, 1000):
        lists = {"d0": {"const": "x"}}
        chained = {"d0": TEXT}
        for i in range(1, count):
            before = {"$ref": f"#/$defs/d{i - 1}"}
            lists[f"d{i}"] = {"type": "array", "prefixItems": [before, before], "minItems": 2}
            chained[f"d{i}"] = {**before, "properties": {f"x{i}_{j}": TEXT for j in range(2)}}
        for name, defs in (("lists", lists), ("merged objects", chained)):
            add(f"{count} {name} that refer to the one before",
                {"$defs": defs, "$ref": f"#/$defs/d{count - 1}"})
    name = "$" * 12
    spellings = ["".join("%24" if n >> bit & 1 else "$" for bit in range(12)) for n in range(256)]
    add("256 spellings of a reference", {
        "$defs": {name: {"anyOf": [{"properties": {f"a{i}": {}}} for i in range(200)]}},
        "anyOf": [{"$ref": f"#/$defs/{one}"} for one in spellings]})
    inner = {"anyOf": [{"$ref": "#/$defs/a" + "/items" * i} for i in range(1, 28)] +
                      [properties(300, 0, TEXT)]}
    add("references to each level of 28 lists", {
        "$defs": {"a": nested(28, lambda schema: {"type": "array", "items": schema}, inner)},
        "$ref": "#/$defs/a"})
    add("80 objects in a circle", {"$defs": {
        f"d{i}": {**properties(20, 20, TEXT),
                  "additionalProperties": {"anyOf": [{"$ref": f"#/$defs/d{(i + 1) % 80}"}, {}]}}
        for i in range(80)}, "$ref": "#/$defs/d0"})
    add("a wrong oneOf after many schemas", {"anyOf": [
        *({"type": "object", "properties": {f"{i}": {"minimum": i} for i in range(80)}}
          for _ in range(15)), {"oneOf": [TEXT, {"maxLength": 3}]}]})


def counted(add):
    """Adds schemas with counts of items in many alternatives that one value must obey."""
    for count in (5, 15, 40):
        both = [{"anyOf": [{"type": "array", "items": TEXT, "maxItems": 900_000 + i}
                           for i in range(count)]}] * 2
        add(f"{count} x {count} lists with maxItems", {"allOf": both})
        add(f"{count} lists with maxItems and another maxItems",
            {"type": "array", "maxItems": 800_000, **both[0]})


def weights(add):
    """Adds many schemas of the kinds that compile slowly."""
    kinds = {"texts": TEXT, "any values": {}, "numbers": {"type": "number", "minimum": 0.5},
             "numbers without type": {"minimum": 7}, "objects without type": {"properties": {}},
             "lists": {"type": "array", "items": TEXT, "minItems": 7, "maxItems": 900_000},
             "objects": {"type": "object", "properties": {"x": TEXT}},
             "counted objects": {"type": "object", "minProperties": 1, "maxProperties": 900_000}}
    for name, schema in kinds.items():
        for groups, count in ((2, 240), (8, 240), (20, 240)):
            whole = {"type": "object", "properties": {
                f"{i}": {"type": "object", "properties": {f"{j}": schema for j in range(count)}}
                for i in range(groups)}}
            add(f"{groups * count} {name}", whole)
            whole["properties"]["again"] = {"$ref": "#"}
            add(f"{groups * count} {name}, twice", {**whole})


def schemas():
    """{name: text}."""
    found = {}

    def add(name, schema):
        found[name] = schema if isinstance(schema, str) else json.dumps(schema)

    for add_all in (structures, values, texts, intersections, forced, choices, patterns,
                    comparisons, places, counted, weights):
        add_all(add)
    return found


def rss(process, field="VmRSS:"):
    text = pathlib.Path(f"/proc/{process.pid}/status").read_text(encoding="ascii")
    return int(text.partition(field)[2].split()[0]) << 10


def limit_process():
    """A schema that is not refused in time ends the probe, not the machine."""
    resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
    resource.setrlimit(resource.RLIMIT_CPU, (200, 200))


def main():
    probe, model = sys.argv[1:3]
    failures = []
    with subprocess.Popen([probe, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True, encoding="utf-8", preexec_fn=limit_process) as process:

        def ask(schema):
            request = {"schema": schema, "lenient": False, "texts": [], "walk": 50}
            process.stdin.write(json.dumps(request, ensure_ascii=False) + "\n")
            process.stdin.flush()
            return json.loads(process.stdout.readline() or json.dumps({"error": ENDED}))

        ask('{"type": "object"}')
        before = rss(process)
        pathlib.Path(f"/proc/{process.pid}/clear_refs").write_text("5", encoding="ascii")
        worst = {"ms": 0, "mask_ms": 0}
        for name, schema in schemas().items():
            answer = ask(schema)
            for kind in worst:
                worst[kind] = max(worst[kind], answer.get(kind, 0))
            said = answer.get("error") or answer.get("limit") or "compiled"
            if "--verbose" in sys.argv and said != ENDED:
                print(f"{answer.get('ms', -1):8.1f} {answer.get('mask_ms', 0):8.1f} "
                      f"{(rss(process) - before) >> 20:5} {name}: {said[:90]}", flush=True)
            if said == ENDED:
                sys.exit(f"{name}: {said}")
            if answer.get("ms", 1e9) > COMPILE_MS or answer.get("mask_ms", 0) > MASK_MS:
                failures.append(f"{name}: {answer}")
        kept = rss(process) - before
        if kept > MEMORY_BYTES:
            failures.append(f"the process keeps {kept >> 20} MiB")
        peak = rss(process, "VmHWM:") - before
        if peak > MEMORY_BYTES:
            failures.append(f"the process needs {peak >> 20} MiB at a time")
        print(f"{len(schemas())} schemas: compiling {worst['ms']:.0f} ms at most, a mask "
              f"{worst['mask_ms']:.0f} ms, {kept >> 20} MiB kept, {peak >> 20} MiB at a time")
        process.stdin.close()
    print("\n".join(failures))
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
