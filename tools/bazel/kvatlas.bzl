"""The one door for build settings: what every C++ target of this repository shares.

    load("//tools/bazel:kvatlas.bzl", "kvatlas_test", "kvatlas_unit")

`deps` of all of them name libraries in short: "//indexer/base:hash,ids" is "//indexer/base:hash" and "//indexer/base:ids",
":contents,hash" is two of the same package, and "absl,grpc++", without a slash or a colon, are the system's libraries
@debian//:absl and @debian//:grpc++ (tools/bazel/debian.BUILD). `bazel query` shows them in full.

kvatlas_unit(name, deps, test_deps, visibility, ...): a library of NAME.h and NAME.cc, and its test NAME_test of NAME_test.cc,
    each file if it is there. What a kvatlas_library takes is the library's (srcs and hdrs too, where it has other files);
    the same with test_ in front is the test's, as in test_size and test_tags. The test depends on the library and `test_deps`.

        kvatlas_unit(
            name = "shard_map",
            visibility = ["//visibility:public"],
            deps = [":hash,ids", "absl"],
            test_deps = [":ids", "absl"],
        )

kvatlas_library(name, srcs, hdrs, deps, visibility, ...): a cc_library with our warnings as errors and C++20, where files or
    tests have other names than those of a kvatlas_unit. Includes start at the root of the repository:
    #include "indexer/base/hash.h". Private to its package unless `visibility` says otherwise.
    `linkstatic = True` keeps it an archive under --config=dev too: where a shared library libNAME.so would take the
    name of a product, or where a program is moved away from its shared libraries.

kvatlas_test(name, srcs = [NAME.cc], deps, size = "small", gtest = True, ...): a cc_test; GoogleTest, GoogleMock, their
    main function, `Await` and `TestSeed` come by themselves (`gtest = False` for a test with a main function of its own).
    Every test has one tag of three, by default "unit": "unit" has no sockets and no processes, "service" has real
    sockets, a Redis or one process, "cluster" has several processes. tags = ["no_sanitizer"] keeps it out of the
    sanitizer stages of tools/test; those with "threads" or "service" run under ThreadSanitizer too, the others are of one
    thread; tags = ["release"] runs it with what g++ makes, optimized, too; tags = ["manual"] out of everything. Data files lie under the test's working
    directory by their path from the root.

kvatlas_script_test(name, srcs, tags, ...): an sh_test, tagged like a kvatlas_test.

kvatlas_binary(name, srcs, deps, ...): a cc_binary, and a test NAME_help_test that it starts and answers --help, unless
    `answers_help = False`. `precompiled = False` where a system header does not stand what others include before it. With
    `linkshared = True` a shared library for others, which holds all of its dependencies of this
    repository in every configuration.

kvatlas_benchmark(name, srcs = [NAME.cc], deps, ...): a cc_binary with Google Benchmark; it is built with everything,
    so that it cannot rot, and run by hand. Its source ends in BENCHMARK_MAIN().

kvatlas_proto(name, srcs, deps = [], grpc = True, visibility, root = "."): .proto files as a C++ library, here or in any
    other package. Imports are written from the root: import "proto/kvatlas/v1/types.proto"; so are includes:
    #include "proto/kvatlas/v1/types.pb.h" and, with grpc, "proto/kvatlas/v1/leaf.grpc.pb.h".
    `deps` are the kvatlas_proto targets of the imported files; google/protobuf/*.proto need none. Where imports are written from
    another folder, as in files of others, that is `root`, and `includes` says so to the compiler.

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
    # g++ 12 sees uninitialized strings in moves of a std::variant that holds none; and behind a precompiled header it forgets which
    # functions are the system's, and warns of what it inlines of std::string's.
    "//conditions:default": [
        "-Wno-array-bounds",
        "-Wno-maybe-uninitialized",
        "-Wno-restrict",
        "-Wno-stringop-overflow",
        "-Wno-stringop-overread",
    ],
}) + select({
    # Any server of the last fifteen years: population count in one instruction.
    "//tools/bazel:is_x86_64": ["-march=x86-64-v2"],
    "//conditions:default": [],
})

# Random tests of these take minutes without optimization, and their sources are few: optimized under --config=dev, too, and
# their tests everywhere.
_OPTIMIZED = ["indexer/base", "indexer/index"]

_LEVEL_OF_OPTIMIZED = select({
    "//tools/bazel:is_dev": ["-O1"],
    "//conditions:default": [],
})

# Compiling a test takes longer than running it: the library under test is optimized, what only tests it is not.
_LEVEL_OF_TESTS = ["-O0"]

# The precompiled headers, by name: what each is compiled with. A source's `copts` begin with the same.
PRECOMPILED = {
    "precompiled": _COPTS,
    "precompiled_optimized": _COPTS + _LEVEL_OF_OPTIMIZED,
    "precompiled_optimized_test": _COPTS + _LEVEL_OF_OPTIMIZED,
    "precompiled_test": _COPTS + _LEVEL_OF_TESTS,
}

def _is_optimized():
    package = native.package_name() + "/"
    return bool([folder for folder in _OPTIMIZED if package.startswith(folder + "/")])

# The name of the precompiled header for sources of this package.
def _precompiled(is_test = False):
    return "precompiled" + ("_optimized" if _is_optimized() else "") + ("_test" if is_test else "")

# A target with copts of its own gets none, which might not fit.
def _precompiled_copts(name, is_used, own):
    return PRECOMPILED[name] + own + (["-include", "$(BINDIR)/tools/bazel/%s.h" % name] if is_used and not own else [])

def _precompiled_deps(name, is_used, own):
    return ["//tools/bazel:" + name] if is_used and not own else []

# Checked under clang: a target includes only what its own deps declare.
_FEATURES = ["layering_check"]

# --config=dev links shared libraries, so that a changed source is linked in little time.
_LINKSTATIC = select({
    "//tools/bazel:is_dev": False,
    "//conditions:default": True,
})

# The labels that `deps` name in short: see the top.
def _labels(deps):
    labels = []
    for dep in deps:
        package, colon, names = dep.rpartition(":")
        if not colon and not dep.startswith("//"):
            package = "@debian//"
        if dep.startswith("//") and not colon:
            labels.append(dep)
        else:
            labels += [package + ":" + target for target in names.split(",")]
    return labels

def kvatlas_library(name, srcs = [], hdrs = [], deps = [], copts = [], features = [], linkstatic = _LINKSTATIC, **kwargs):
    header = _precompiled()
    native.cc_library(
        name = name,
        srcs = srcs,
        hdrs = hdrs,
        copts = _precompiled_copts(header, True, copts),
        features = _FEATURES + features,
        linkstatic = linkstatic,
        deps = _labels(deps) + _precompiled_deps(header, True, copts),
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
        answers_help = True,
        precompiled = True,
        **kwargs):
    if answers_help and not linkshared and "manual" not in kwargs.get("tags", []):
        kvatlas_script_test(
            name = name + "_help_test",
            size = "small",
            srcs = ["//tools/bazel:help_test.sh"],
            args = ["$(rootpath :%s)" % name],
            data = [":" + name, "//tools/bazel:tsan.supp"],
        )
    header = _precompiled()
    native.cc_binary(
        name = name,
        srcs = srcs,
        copts = _precompiled_copts(header, precompiled, copts),
        features = _FEATURES + features,
        linkshared = linkshared,
        # A library for others stands alone in every configuration.
        linkstatic = True if linkshared else linkstatic,
        deps = _labels(deps) + _precompiled_deps(header, precompiled, copts),
        **kwargs
    )

def kvatlas_benchmark(name, srcs = None, deps = [], **kwargs):
    kvatlas_binary(
        name = name,
        srcs = [name + ".cc"] if srcs == None else srcs,
        testonly = True,
        deps = deps + ["benchmark"],
        **kwargs
    )

# What a test needs: nothing but its own threads and files; real sockets, a Redis or one process; several processes.
_KINDS = ["unit", "service", "cluster"]

# Dependencies that open sockets or start processes: a test of theirs is no unit.
_NOT_OF_UNITS = [
    "//frontend/gateway/http:socket_test_util",
    "//tools/testing/servers:zmq_test_engine",
    "//indexer/leaf:leaf",
    "//indexer/net:grpc_channel",
    "//indexer/net:grpc_server",
    "//tools/testing/servers:redis_test_server",
    "//tools/testing/cluster:cluster",
    "//tools/testing/cluster:process",
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

# How a test waits, and where it has its draws from.
_OF_EVERY_TEST = ["//indexer/base:await", "//indexer/base:test_seed"]

def kvatlas_test(
        name,
        srcs = None,
        deps = [],
        size = "small",
        gtest = True,
        copts = [],
        features = [],
        data = [],
        tags = [],
        **kwargs):
    header = _precompiled(is_test = True)
    deps = _labels(deps)
    native.cc_test(
        name = name,
        srcs = [name + ".cc"] if srcs == None else srcs,
        size = size,
        copts = _precompiled_copts(header, True, copts),
        features = _FEATURES + features,
        data = data + ["//tools/bazel:tsan.supp"],
        linkstatic = _LINKSTATIC,
        tags = _tags_with_kind(name, tags, deps),
        deps = deps + _precompiled_deps(header, True, copts) + [dep for dep in _OF_EVERY_TEST if dep not in deps] + (["@debian//:gtest_main"] if gtest else []),
        **kwargs
    )

def kvatlas_unit(name, srcs = None, hdrs = None, deps = [], test_deps = [], **kwargs):
    of_test = {key[len("test_"):]: value for key, value in kwargs.items() if key.startswith("test_")}
    of_library = {key: value for key, value in kwargs.items() if not key.startswith("test_")}
    kvatlas_library(
        name = name,
        srcs = native.glob([name + ".cc"]) if srcs == None else srcs,
        hdrs = native.glob([name + ".h"]) if hdrs == None else hdrs,
        deps = deps,
        **of_library
    )
    test_srcs = native.glob([name + "_test.cc"])
    if test_srcs:
        kvatlas_test(
            name = name + "_test",
            srcs = test_srcs,
            deps = [":" + name] + test_deps,
            **of_test
        )
    elif test_deps or of_test:
        fail("%s has no %s_test.cc" % (name, name))

def kvatlas_script_test(name, tags = [], **kwargs):
    native.sh_test(
        name = name,
        tags = _tags_with_kind(name, tags, []),
        **kwargs
    )

def kvatlas_proto(name, srcs, deps = [], grpc = True, visibility = None, root = ".", **kwargs):
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

    command = ["/usr/bin/protoc -I%s --cpp_out=$(GENDIR)/%s" % (root, root)]
    if grpc:
        command.append("--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=$(GENDIR)/%s" % root)
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
