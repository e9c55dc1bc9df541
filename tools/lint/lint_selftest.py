"""Can the lint fail? A clean tree gives no finding; each planted violation gives exactly its own."""

import os
import subprocess
import tempfile
import unittest

import lint

GUARDED = "#ifndef {0}\n#define {0}\n{1}\n#endif  // {0}\n"


def header(path, body=""):
    guard = "KVATLAS_" + path.upper().replace("/", "_").replace(".", "_") + "_"
    return GUARDED.format(guard, body)


def named(body, namespace="kvatlas"):
    return f"namespace {namespace} {{\n{body}\n}}  // namespace {namespace}\n"


CLEAN = {
    ".clang-format": "BasedOnStyle: Google\n",
    "README.md": "See [base](indexer/base/README.md#words), [web](https://example.org/home/x).\n",
    "frontend/README.md": "f\n",
    "frontend/main.cc": '#include "publisher/p.h"\n',
    "indexer/base/README.md": "# Words\n",
    "indexer/base/a.h": header("indexer/base/a.h", '\n#include <string>\n\n#include "absl/types/span.h"\n'),
    "indexer/base/w.cc": '#include "indexer/base/a.h"\n\nstd::string w;  // std::vector<int>\n',
    "indexer/base/a_test.cc": '#include "indexer/base/a.h"\n\n#include "gtest/gtest.h"\n',
    "indexer/index/README.md": "i\n",
    "indexer/index/i.cc": '#include "indexer/base/a.h"\n',
    "indexer/index/deep/d.cc": "int d;\n",
    "proto/README.md": "p\n",
    "proto/kvatlas/v1/x.proto": 'syntax = "proto3";\nimport "google/protobuf/timestamp.proto";\n',
    "publisher/README.md": "p\n",
    "publisher/p.h": header("publisher/p.h", '\n#include "proto/kvatlas/v1/x.pb.h"\n'),
    "tools/README.md": "t\n",
    "tools/t.cc": '#include "tests/u.h"\n',
    "tests/README.md": "t\n",
    "shown.md": "See [it](indexer/index/deep/d.cc):\n\n```c++\nint d;\n```\n",
    "tests/u.h": header("tests/u.h"),
    # Names that may stand twice: where the linker does not see them, or sees that they are others.
    "tests/twin.cc": named(
        "struct T {\n  struct In {};\n};\nint G(char c) { return c; }\nint T::Size() { return 0; }\n"
        "namespace {\nstruct Own {};\n}  // namespace\nstatic int H() { return 0; }\nenum class E;"),
    "tests/twin2.cc": named("struct T {};", "other") + named(
        "struct U {\n  struct In {};\n};\nint G(int c) { return c; }\nint U::Size() { return 0; }\n"
        "namespace {\nstruct Own {};\n}  // namespace\nstatic int H() { return 0; }\nstruct T;\n"
        "// struct T {\nconst char* t = \"struct T {\";\nenum class E : int {};"),
}

# The check that must speak, and the files that make it do so.
PLANTED = [
    ("format", {"indexer/base/b.cc": "int   b;\n"}),
    ("include", {"indexer/base/b.cc": '#include "indexer/index/i.h"\n'}),
    ("include", {"indexer/index/j.cc": '#include "indexer/stream/s.h"\n'}),
    ("include", {"indexer/stream/README.md": "", "indexer/stream/s.cc": '#include "proto/x.pb.h"\n'}),
    ("include", {"frontend/f.cc": '#include "hierarchy/h.h"\n'}),
    ("include", {"publisher/q.cc": '#include "tools/t.h"\n'}),
    ("include", {"proto/kvatlas/v1/y.proto": 'import "tools/z.proto";\n'}),
    ("include", {"indexer/base/b.cc": "#include <grpcpp/grpcpp.h>\n"}),
    ("include", {"indexer/base/b.cc": '#include "gtest/gtest.h"\n'}),
    ("include", {"indexer/index/j.cc": "#include <thread>\n"}),
    ("missing", {"indexer/base/b.h": header("indexer/base/b.h", "std::vector<int> Numbers();")}),
    ("missing", {"indexer/base/b.cc": "#include <string>\nabsl::StatusOr<int> Number();\n"}),
    ("include", {"elsewhere/README.md": "", "elsewhere/e.cc": "int e;\n"}),
    ("include", {"frontend/f.cc": '#include "indexer/nowhere/n.h"\n'}),
    ("guard", {"indexer/base/b.h": header("indexer/base/a.h")}),
    ("guard", {"indexer/base/b.h": "#pragma once\n"}),
    ("link", {"doc.md": "[gone](indexer/gone.md)\n"}),
    ("link", {"doc.md": "[outside](../x.md)\n"}),
    ("link", {"doc.md": "# One\n[gone](#two)\n"}),
    ("link", {"doc.md": "[gone](b.md#two)\n", "b.md": "# One\n"}),
    ("shown", {"doc.md": "See [it](indexer/index/deep/d.cc):\n\n```c++\nint c;\n```\n"}),
    ("readme", {"hierarchy/h.cc": "int h;\n"}),
    ("readme", {"indexer/coverage/c.cc": "int c;\n"}),
    ("machine_path", {"doc.md": "see /ho" + "me/user/x\n"}),
    ("machine_path", {"run": "cp ../sha" + "red/x .\n"}),
    ("open_end", {"indexer/base/b.cc": "// TO" + "DO: later\n"}),
    ("open_end", {"doc.md": "FIX" + "ME\n"}),
    ("person", {"doc.md": "no lock, since no" + "body else writes\n"}),
    ("person", {"indexer/base/b.cc": "// The reader: who" + "m it asks.\n"}),
    ("sleep", {"indexer/base/b_test.cc": "void F() { usleep(1); }\n"}),
    ("sleep", {"tests/s.cc": "#include <thread>\nvoid F() { std::this_thread::sleep_for(d); }\n"}),
    ("clock", {"indexer/index/j.cc": "#include <chrono>\nauto t = std::chrono::steady_clock::now();\n"}),
    ("length", {"indexer/base/b.cc": "int b;\n" * 801}),
    ("width", {"indexer/base/b.cc": "// " + "w" * 100 + "\nint b;\n"}),
    ("twin", {"tests/b.cc": named("struct T {};")}),
    ("twin", {"tests/b.cc": named("class T final : public B {};")}),
    ("twin", {"tests/b.cc": "#include <functional>\n\n" + named("template <typename A = std::less<int>>\nclass T {};")}),
    ("twin", {"tests/b.cc": named("enum class E { kOne };")}),
    ("twin", {"tests/b.cc": named("int G(char other) { return other; }")}),
    ("twin", {"tests/b.cc": named("struct In {};"), "tests/c.cc": named("struct In {};")}),
    ("twin", {"tests/b.h": header("tests/b.h", "\ninline constexpr int k = 1;\n"),
              "tests/c.h": header("tests/c.h", "\ninline constexpr int k[] = {2};\n")}),
]


def findings(files):
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            full = os.path.join(root, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)
        return lint.lint(root)[1]


class LintTest(unittest.TestCase):
    def test_clean_tree_has_no_finding(self):
        self.assertEqual(findings(CLEAN), [])

    def test_each_planted_violation_is_found_and_nothing_else(self):
        for check, files in PLANTED:
            with self.subTest(check=check, files=sorted(files)):
                found = findings({**CLEAN, **files})
                self.assertEqual([f[2] for f in found], [check], found)

    def test_ignored_files_are_not_read(self):
        with tempfile.TemporaryDirectory() as root:
            subprocess.run(["git", "init", "-q", root], check=True)
            for path, text in {".gitignore": "out\n", "out/x.h": "x\n", "note": "x\n"}.items():
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as file:
                    file.write(text)
            self.assertEqual(lint.Tree(root).files, [".gitignore", "note"])


if __name__ == "__main__":
    unittest.main()
