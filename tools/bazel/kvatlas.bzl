"""The one door for build settings: what every C++ target of this repository shares.

    load("//tools/bazel:kvatlas.bzl", "kvatlas_library", "kvatlas_test")

kvatlas_library(name, srcs, hdrs, deps, visibility, ...): a cc_library with our warnings as errors and C++20.
    Includes start at the root of the repository: #include "indexer/base/hash.h". Private to its package
    unless `visibility` says otherwise. System libraries are @debian//:NAME (tools/bazel/debian.BUILD).
    `linkstatic = True` keeps it an archive under --config=dev too: where a shared library libNAME.so would take the
    name of a product, or where a program is moved away from its shared libraries.

        kvatlas_library(
            name = "hash",
            srcs = ["hash.cc"],
            hdrs = ["hash.h"],
            visibility = ["//visibility:public"],
            deps = ["@debian//:absl", "@debian//:xxhash"],
        )

kvatlas_test(name, srcs, deps, size = "small", gtest = True, ...): a cc_test; GoogleTest, GoogleMock and their
    main function come by themselves (`gtest = False` for a test with a main function of its own).
    Every test has one tag of three, by default "unit": "unit" has no sockets and no processes, "service" has real
    sockets, a Redis or one process, "cluster" has several processes. tags = ["no_sanitizer"] keeps it out of the
    sanitizer stages of tools/test; tags = ["manual"] out of everything. Data files lie under the test's working
    directory by their path from the root.

        kvatlas_test(
            name = "hash_test",
            srcs = ["hash_test.cc"],
            deps = [":hash"],
        )

kvatlas_script_test(name, srcs, tags, ...): an sh_test, tagged like a kvatlas_test.

kvatlas_binary(name, srcs, deps, ...): a cc_binary. With `linkshared = True` a shared library for others, which holds all
    of its dependencies of this repository in every configuration.

kvatlas_benchmark(name, srcs, deps, ...): a cc_binary with Google Benchmark; it is built with everything,
    so that it cannot rot, and run by hand. Its source ends in BENCHMARK_MAIN().

kvatlas_proto(name, srcs, deps = [], grpc = True, visibility): .proto files as a C++ library, here or in any
    other package. Imports are written from the root: import "proto/kvatlas/v1/types.proto"; so are includes:
    #include "proto/kvatlas/v1/types.pb.h" and, with grpc, "proto/kvatlas/v1/leaf.grpc.pb.h".
    `deps` are the kvatlas_proto targets of the imported files; google/protobuf/*.proto need none.

        kvatlas_proto(
            name = "leaf_proto",
            srcs = ["kvatlas/v1/leaf.proto"],
            visibility = ["//visibility:public"],
            deps = [":types_proto"],
        )
"""

# The language: also for generated code.
_LANGUAGE = ["-std=c++20"]

_COPTS = _LANGUAGE + [
    "-Wall",
    "-Wextra",
    "-Werror",
] + select({
    "//tools/bazel:is_clang": [
        "-Wthread-safety",
        "-Werror=thread-safety",
        # libstdc++ 12's std::stable_sort uses what C++20 deprecates, and clang blames the caller.
        "-Wno-deprecated-declarations",
    ],
    # g++ 12 sees uninitialized strings in moves of a std::variant that holds none.
    "//conditions:default": ["-Wno-maybe-uninitialized"],
}) + select({
    # Any server of the last fifteen years: population count in one instruction.
    "//tools/bazel:is_x86_64": ["-march=x86-64-v2"],
    "//conditions:default": [],
})

# Checked under clang: a target includes only what its own deps declare.
_FEATURES = ["layering_check"]

# --config=dev links shared libraries, so that a changed source is linked in little time.
_LINKSTATIC = select({
    "//tools/bazel:is_dev": False,
    "//conditions:default": True,
})

def kvatlas_library(name, srcs = [], hdrs = [], deps = [], copts = [], features = [], linkstatic = _LINKSTATIC, **kwargs):
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        copts = _COPTS + copts,
        features = _FEATURES + features,
        linkstatic = linkstatic,
        deps = deps,
        **kwargs
    )

def kvatlas_binary(
        name,
        srcs = [],
        deps = [],
        copts = [],
        features = [],
        linkshared = False,
        linkstatic = _LINKSTATIC,
        **kwargs):
    native.cc_binary(
        name = name,
        srcs = srcs,
        copts = _COPTS + copts,
        features = _FEATURES + features,
        linkshared = linkshared,
        # A library for others stands alone in every configuration.
        linkstatic = True if linkshared else linkstatic,
        deps = deps,
        **kwargs
    )

def kvatlas_benchmark(name, srcs = [], deps = [], **kwargs):
    kvatlas_binary(
        name = name,
        srcs = srcs,
        testonly = True,
        deps = deps + ["@debian//:benchmark"],
        **kwargs
    )

# What a test needs: nothing but its own threads and files; real sockets, a Redis or one process; several processes.
_KINDS = ["unit", "service", "cluster"]

# Dependencies that open sockets or start processes: a test of theirs is no unit.
_NOT_OF_UNITS = [
    "//frontend/http:socket_test_util",
    "//indexer/engines:zmq_test_engine",
    "//indexer/leaf:leaf",
    "//indexer/service:grpc_channel",
    "//indexer/service:grpc_server",
    "//indexer/service:redis_test_server",
    "//tools/cluster:cluster",
    "//tools/cluster:process",
]

def _absolute(label):
    if label.startswith(":"):
        return "//%s%s" % (native.package_name(), label)
    return label if ":" in label else label + ":" + label.split("/")[-1]

# The tags of a test with its one kind: unit, unless they name another.
def _tags_with_kind(name, tags, deps):
    kinds = [tag for tag in tags if tag in _KINDS]
    if len(kinds) > 1:
        fail("%s has tags %s: one of them" % (name, kinds))
    if not kinds or kinds == ["unit"]:
        for dep in deps:
            if _absolute(dep) in _NOT_OF_UNITS:
                fail("%s needs tags = [\"service\"] or [\"cluster\"]: it depends on %s" % (name, dep))
    return tags if kinds else tags + ["unit"]

def kvatlas_test(
        name,
        srcs = [],
        deps = [],
        size = "small",
        gtest = True,
        copts = [],
        features = [],
        data = [],
        tags = [],
        **kwargs):
    native.cc_test(
        name = name,
        srcs = srcs,
        size = size,
        copts = _COPTS + copts,
        features = _FEATURES + features,
        data = data + ["//tools/bazel:tsan.supp"],
        linkstatic = _LINKSTATIC,
        tags = _tags_with_kind(name, tags, deps),
        deps = deps + (["@debian//:gtest_main"] if gtest else []),
        **kwargs
    )

def kvatlas_script_test(name, tags = [], **kwargs):
    native.sh_test(
        name = name,
        tags = _tags_with_kind(name, tags, []),
        **kwargs
    )

def kvatlas_proto(name, srcs, deps = [], grpc = True, visibility = None, **kwargs):
    outs_hdrs = []
    outs_srcs = []
    for src in srcs:
        stem = src[:-len(".proto")] if src.endswith(".proto") else fail("%s is not a .proto file" % src)
        outs_hdrs.append(stem + ".pb.h")
        outs_srcs.append(stem + ".pb.cc")
        if grpc:
            outs_hdrs.append(stem + ".grpc.pb.h")
            outs_srcs.append(stem + ".grpc.pb.cc")

    # The sources together with what they import, so that a change of either is seen.
    native.filegroup(
        name = name + "_files",
        srcs = srcs + [dep + "_files" for dep in deps],
        visibility = visibility,
    )

    command = ["/usr/bin/protoc -I. --cpp_out=$(GENDIR)"]
    if grpc:
        command.append("--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=$(GENDIR)")
    command += ["$(location %s)" % src for src in srcs]
    native.genrule(
        name = name + "_cpp",
        srcs = srcs + [dep + "_files" for dep in deps],
        outs = outs_hdrs + outs_srcs,
        cmd = " ".join(command),
        message = "Generating C++ for",
    )

    native.cc_library(
        name = name,
        srcs = outs_srcs,
        hdrs = outs_hdrs,
        copts = _LANGUAGE + ["-w"],
        linkstatic = _LINKSTATIC,
        visibility = visibility,
        deps = deps + (["@debian//:grpc++"] if grpc else ["@debian//:protobuf"]),
        **kwargs
    )
