"""The repositories of the workspace, all of them local: what Debian ships, and small stand-ins."""

def _written_repository_impl(ctx):
    for path, content in ctx.attr.files.items():
        ctx.file(path, content, executable = False)

# A repository whose few files are written here.
_written_repository = repository_rule(
    implementation = _written_repository_impl,
    attrs = {"files": attr.string_dict(mandatory = True)},
)

# A module map of every header in the system's include folders, which layering_check lets everybody include.
# Bazel lists them again whenever its server starts, so that a package installed since then is seen.
def _system_headers_impl(ctx):
    found = ctx.execute(["find", "-L"] + ctx.attr.folders + ["-type", "f"])
    lines = ["  textual header \"%s\"" % path for path in sorted(found.stdout.splitlines())]
    ctx.file("module.modulemap", "\n".join(["module \"crosstool\" [system] {"] + lines + ["}", ""]))
    ctx.file("BUILD", "exports_files([\"module.modulemap\"])\n")

_system_headers = repository_rule(
    implementation = _system_headers_impl,
    attrs = {"folders": attr.string_list(mandatory = True)},
    local = True,
)

# hiredis as tools/install has put it into the checkout: another version than sdist.txt names is never built in silence.
def _hiredis_impl(ctx):
    wanted = ctx.path(Label("//tools/bazel/hiredis:sdist.txt"))
    unpacked = wanted.dirname.get_child("unpacked")
    there = unpacked.get_child("sdist.txt")
    if not there.exists or ctx.read(there) != ctx.read(wanted):
        fail("hiredis is not here, or another version of it: run tools/install first.")
    ctx.symlink(unpacked.get_child("hiredis"), "hiredis")
    ctx.symlink(Label("//tools/bazel/hiredis:hiredis.BUILD"), "BUILD")

_hiredis = repository_rule(
    implementation = _hiredis_impl,
    local = True,
)

# What Bazel 4.2.3's own BUILD files load from rules_cc: the native rules under their names.
_CC_RULES = [
    "cc_binary",
    "cc_import",
    "cc_library",
    "cc_proto_library",
    "cc_test",
    "cc_toolchain",
    "cc_toolchain_suite",
    "fdo_prefetch_hints",
    "fdo_profile",
    "objc_import",
    "objc_library",
]

def offline_repositories():
    """Declares every external repository that Bazel may ask for, before it asks for a download."""

    # The system's libraries: one target per library, headers found in /usr/include.
    native.new_local_repository(
        name = "debian",
        build_file = "//tools/bazel:debian.BUILD",
        path = "/usr",
    )

    _system_headers(
        name = "system_headers",
        folders = [
            "/usr/include",
            "/usr/lib/gcc",
            "/usr/lib/llvm-19/lib/clang/19/include",
        ],
    )

    # Redis' client in C; Debian's is too old.
    _hiredis(name = "hiredis")

    # Debian's packages of Bazel's own rules.
    native.local_repository(name = "platforms", path = "/usr/share/bazel/tools/platforms")
    native.local_repository(name = "bazel_skylib", path = "/usr/share/bazel/tools/skylib")
    native.local_repository(name = "rules_java", path = "/usr/share/bazel/rules/java")
    native.local_repository(name = "rules_proto", path = "/usr/share/bazel/rules/proto")

    # Debian's rules_cc is too new for its Bazel; forwarding to the native rules is all that is needed.
    _written_repository(
        name = "rules_cc",
        files = {
            "BUILD": "",
            "cc/BUILD": "exports_files([\"defs.bzl\"])\n",
            "cc/defs.bzl": "".join([
                "{rule} = native.{rule}\n".format(rule = rule)
                for rule in _CC_RULES
            ]),
        },
    )

    # Every test depends on the coverage tools, even without a request for coverage.
    _written_repository(
        name = "remote_coverage_tools",
        files = {"BUILD": """
package(default_visibility = ["//visibility:public"])
filegroup(name = "coverage_report_generator")
filegroup(name = "lcov_merger")
filegroup(name = "all_lcov_merger_lib")
"""},
    )
