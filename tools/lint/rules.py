"""The repository's rules as data: the folders, which may include which, and what a folder must not touch."""

# Which folder may include which: a folder includes itself and any folder of a lower row, never another of its own
# row. The first row is the highest. A main (main.cc, *_main.cc) belongs to the highest row wherever it lies.
ROWS = [
    # Free among themselves. Tests, wherever they lie, may include TESTING.
    ["tools", "tests", "frontend/serve"],
    ["publisher", "hierarchy", "frontend", "indexer/leaf"],
    ["indexer/compat"],
    ["indexer/checkpoint"],
    ["indexer/engine_directory"],
    ["indexer/transport", "indexer/kv_events", "indexer/coverage", "indexer/discovery", "indexer/ui"],
    ["indexer/registry"],
    ["indexer/process"],
    ["indexer/telemetry/tracing"],
    ["indexer/net", "indexer/stream", "indexer/index", "proto"],
    ["indexer/security"],
    ["indexer/telemetry"],
    ["indexer/base"],
]

# Mock engines, clusters, servers and simulators for tests.
TESTING = "tools/testing"


# What a folder may use beyond ours and the C++ library, as prefixes of the included path; a folder that is
# not named may use any library. Tests and benchmarks may use TEST_LIBRARIES besides.
LIBRARIES = {
    "indexer/base": ["absl/", "xxhash.h"],
    "indexer/index": ["absl/", "xxhash.h"],
    "indexer/stream": ["absl/", "xxhash.h"],
}
TEST_LIBRARIES = ["gtest/", "gmock/", "benchmark/"]

# System headers that any folder may use: processor intrinsics, memory of the system's own, a yield.
SYSTEM_HEADERS = ["immintrin.h", "x86intrin.h", "arm_neon.h", "sys/mman.h", "sys/socket.h", "sched.h", "netdb.h", "arpa/inet.h", "netinet/in.h"]

# Pure folders: no I/O, no threads of their own, no wall clock (their tests may use threads).
PURE = ["indexer/index", "indexer/stream"]
PURE_FORBIDDEN_HEADERS = ["thread", "fstream", "filesystem", "iostream", "cstdio"]

LINES_MAX = 800
COLUMNS_MAX = 100

# Headers that a compiler reads first of all, by its command line.
WITHOUT_GUARD = ["tools/bazel/precompiled.h", "tools/bazel/precompiled_test.h"]

# Endings of files that hold code.
CODE = (".h", ".cc", ".py", ".proto", ".c")
CPP = (".h", ".cc")

# Texts that are kept as they were written: releases of the past, recordings, data, code of others.
AS_WRITTEN = ("CHANGELOG.md", "LICENSE", "frontend/prompt/text/testdata/", "indexer/leaf/testdata/",
              "tests/interop/recordings/", "indexer/ui/page/vendor/", "tests/page/vendor/",
              "proto/opentelemetry/proto/", "proto/opentelemetry/LICENSE")
