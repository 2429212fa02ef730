"""Tests tidy.py: each bad fixture must be reported, and the good tree must have no findings."""

import pathlib
import tempfile

GOOD = {
    "proto/CMakeLists.txt": "add_library(p a.cc b.cc)\n",
    "proto/a.cc": '#include "proto/a.h"\n\nnamespace hearth {\nint F() { return 1; }\n'
                  "std::vector<A::B> A::I(int x) const {\n  return {};\n}\n}\n",
    "proto/a.h": "// A.\nclass A {\n public:\n  int G() const { return 2; }\n"
                 "  struct B {\n    int x = 1;\n  };\n" + "  static int H();\n};\n"
                 "int Stray(int x);\nclass C {\n  void Stray();\n};\n",
    "proto/b.cc": "namespace {\nclass A {\n  int x[3] = {1, 2, 3};\n};\n}\n",
    "worker/text/CMakeLists.txt": "add_library(w w.cc)\n",
    "worker/text/w.cc": '#include <ATen/ATen.h>\n#include "proto/a.h"\n',
    "worker/text/w.h": "// Private to worker/: includes ATen.\n#include <ATen/Tensor.h>\n",
    "cache_store/base/CMakeLists.txt": "add_library(b b.cc stats.cc)\n",
    "cache_store/base/stats.cc": 'constexpr const char* kNames[] = {"hot_reads", "cold_reads"};\n',
    "cache_store/base/b.cc": '#include "cache_store/base/b.h"\n#include "proto/a.h"\n',
    "cache_store/base/b.h": "// B.\n",
    "cache_store/catalog/c.h": '#include "cache_store/base/b.h"\n',
    "cache_store/disk/d.h": '#include "cache_store/disk/files/f.h"\n#include <rocksdb/db.h>\n',
    "services/rpc/CMakeLists.txt": "add_executable(s s.cc)\n",
    "services/rpc/s.cc":
        '#include <grpcpp/grpcpp.h>\n// TODO(#4): more\n'
        'auto a = {{"hot_reads", 1}};  // a key of JSON\n'
        'auto b = E(n, " bytes; the limit is "), c = E(f, m, " bytes; the limit is ");\n'
        'auto d = E("the same " /* and */ "beginning is ", n);\n'
        'auto e = E("the same beginning of ", n);\n'
        'auto f = E("pass --config FILE, as said");\n',
    "tests/CMakeLists.txt": "hearth_test(t SOURCES a_test.cc)\nadd_test(COMMAND b_test.py)\n",
    "tests/a_test.cc": '#include "services/rpc/s.h"\nTEST(A, B) { const char* s = "sleep"; }\n',
    "tests/b_test.py": "print(1)\n",
}
LONG_BODY = "  x = 1;\n" * 80
# {name of the fixture: (path, content of the file, text that the finding must contain)}
BAD = {
    "a long line": ("proto/a.h", "//" + "x" * 99 + "\n", "101 columns"),
    "a long function": (
        "proto/a.cc", "namespace hearth {\nint A::F(int x) {\n" + LONG_BODY + "}\n}\n",
        "A::F has 82 lines"),
    "a long test": ("tests/a_test.cc", "TEST(A, B) {\n" + LONG_BODY + "}\n", "TEST has 82 lines"),
    "a long method": ("proto/a.h", "class A {\n void F() {\n" + LONG_BODY + "}\n};\n", "F has 82"),
    "a long Python function": ("tests/b_test.py", "def f():\n" + "    x = 1\n" * 80, "f has 81"),
    "worker sees the store": (
        "worker/text/w.cc", '#include "cache_store/base/t.h"\n', "may not see"),
    "store sees worker": (
        "cache_store/base/c.h", '#include "worker/engine/engine.h"\n', "may not see"),
    "a type twice": (
        "worker/text/w.h", "namespace hearth {\nstruct A {\n};\n}\n", "A is a type in"),
    "a class in two files": (
        "proto/b.cc", "namespace hearth {\nvoid A::G() {\n}\nint A::H() const {\n}\n}\n",
        "A is in 2 .cc files"),
    "a function that another's header declares": (
        "proto/b.cc", "namespace hearth {\nint Stray(int x) {\n  return x;\n}\n}\n",
        "Stray is declared in proto/a.h"),
    "a class that another's header declares": (
        "proto/b.cc", "namespace hearth {\nvoid C::Stray() {\n}\n}\n",
        "C is declared in proto/a.h"),
    "a room looks up": (
        "cache_store/base/b.h", '#include "cache_store/catalog/c.h"\n', "may not see"),
    "a room looks aside": (
        "cache_store/memory/m.h", '#include "cache_store/disk/d.h"\n', "may not see"),
    "a room looks inside": (
        "cache_store/store/s.h", '#include "cache_store/disk/files/f.h"\n', "may not see"),
    "files that look at their disk": (
        "cache_store/disk/files/f.h", '#include "cache_store/disk/d.h"\n', "may not see"),
    "a room that nobody named": (
        "cache_store/attic/x.h", '#include "cache_store/base/b.h"\n', "name the room"),
    "an include of a room that nobody named": (
        "services/rpc/s.cc", '#include "cache_store/attic/x.h"\n', "name the room"),
    "a file beside the rooms": ("cache_store/x.h", "// X.\n", "put it into one"),
    "RocksDB in the catalog": (
        "cache_store/catalog/c.h", "#include <rocksdb/db.h>\n", "only in cache_store/disk"),
    "proto looks up": ("proto/a.h", '#include "services/rpc/s.h"\n', "may not see"),
    "grpcpp in worker": ("worker/text/w.cc", "#include <grpcpp/grpcpp.h>\n", "only services/"),
    "generated code below": ("worker/text/w.cc", '#include "proto/inference.pb.h"\n', "generated"),
    "RocksDB elsewhere": ("proto/a.cc", "#include <rocksdb/db.h>\n", "cache_store/disk"),
    "CUDA elsewhere": ("services/rpc/s.cc", "#include <cuda_runtime.h>\n", "cuda_memory"),
    "torch elsewhere": ("services/rpc/s.cc", "#include <ATen/ATen.h>\n", "only in worker"),
    "torch in a public header": ("worker/text/w.h", "// W.\n#include <ATen/Tensor.h>\n", "private"),
    "absl/log": ("services/rpc/s.cc", "#include <absl/log/log.h>\n", "Abseil"),
    "sleep in a test": ("tests/a_test.cc", "void F() { absl::SleepFor(d); }\n", "fake clock"),
    "sleep in a Python test": ("tests/b_test.py", "time.sleep(1)\n", "fake clock"),
    "a wait by the wall clock": (
        "services/inference/blocking_stream.h", "auto t = absl::Now();\n", "SteadyClock"),
    "using namespace": ("proto/a.cc", "using namespace std;\n", "using namespace"),
    "TODO": ("proto/a.cc", "// TODO: later\n", "without an issue"),
    "environment": ("worker/text/w.cc", 'auto x = getenv("X");\n', "pass an option"),
    "a metric twice": (
        "services/rpc/m.cc", 'auto a = "hearth_store_x_bytes", b = "hearth_store_x_bytes";\n',
        "metric hearth_store_x_bytes is defined in services/rpc/m.cc:1, too"),
    "a counter's metric by hand": (
        "services/rpc/m.cc", 'auto a = "hearth_store_hot_reads_total";\n',
        "metric hearth_store_hot"),
    "a counter's name again": (
        "services/rpc/m.cc", 'n = stats.at("hot_reads");\n', "hot_reads is a counter's name"),
    "counters' names in a list": (
        "services/rpc/m.cc", 'A x[] = {"hot_reads", "cold_reads"};\n', "cold_reads is a counter's"),
    "a flag of a server twice": (
        "services/serving/flags.cc", 'AddText("listen", &a, "x");\nAddUint(\n"listen", &b, "y");\n',
        "flag --listen is defined in services/serving/flags.cc:1, too"),
    "a flag of two commands": (
        "services/hearthctl/h.cc",
        'c->add_flag("--dry", a, "x");\nc->add_option("--dry,-d", b, "y");\n',
        "flag --dry is defined"),
    "a flag that is none": (
        "services/rpc/m.cc", 'auto a = E("start it with --dri, please");\n', "--dri is no flag"),
    "a text twice": (
        "services/rpc/m.cc", 'auto a = E("there is no such thing");\nauto b = E("there is no "\n'
        '"such thing");\n', 'text "there is no such thing" is defined in services/rpc/m.cc:1, too'),
    "a text around a value twice": (
        "services/rpc/m.cc", 'auto a = E("layer number ", n + f(1), " is gone");\n'
        'auto b = E("layer number ", k, " is gone");\n', 'text "layer number * is gone" is'),
    "a part of two texts": (
        "services/rpc/m.cc", 'auto a = E(n, " is not a folder of this kind");\n'
        'auto b = E(m, " is not a folder of this kind", k);\n', "folder of this kind"),
    "forgotten source": ("proto/lost.cc", "int x;\n", "not compiled"),
    "forgotten test": ("tests/lost_test.cc", "int x;\n", "not compiled"),
    "forgotten Python test": ("tests/lost_test.py", "print(1)\n", "not run"),
    "a commented-out test": ("tests/CMakeLists.txt", "# a_test.cc b_test.py\n", "not compiled"),
}


def findings_of(check, tree):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in tree.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        return check(root)


def self_test(check):
    failures = []
    good = findings_of(check, GOOD)
    if good:
        failures.append(f"the good tree: {good}")
    for name, (path, text, expected) in BAD.items():
        found = findings_of(check, {**GOOD, path: text})
        if not any(expected in finding[2] for finding in found):
            failures.append(f"{name}: not reported, only {found}")
    crowd = {f"tests/x{i}.h": "// X.\n" for i in range(40)}
    found = findings_of(check, {**GOOD, **crowd})
    if not any("tests/ holds 42 files, the limit is 40" in finding[2] for finding in found):
        failures.append(f"a crowded folder: not reported, only {found}")
    found = findings_of(check, {**GOOD, "tests/tidy_rules.py": "\n"})
    if not any("pattern cache_store/memory/cuda_memory.cc matches no" in f[2] for f in found):
        failures.append(f"a pattern without a file: not reported, only {found}")
    for failure in failures:
        print(f"tidy --self-test: {failure}")
    print(f"tidy --self-test: {len(BAD) + 3} trees, {len(failures)} failures")
    return 1 if failures else 0
