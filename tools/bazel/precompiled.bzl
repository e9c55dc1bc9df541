"""precompiled_header(name, headers, copts): headers that are compiled once, as one, for sources that are compiled with
`-include` of it (kvatlas.bzl).

Reading system headers is most of a compilation's time. A precompiled header serves only sources with the same flags, so there is
one for each set of them, and the toolchain's flags are asked for, not repeated. g++ takes a header that does not fit as text, in
silence; clang refuses it.
"""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

def _precompiled_header_impl(ctx):
    toolchain = find_cpp_toolchain(ctx)
    features = cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = toolchain,
        requested_features = ctx.features,
        # It has no module map.
        unsupported_features = ctx.disabled_features + ["module_maps", "use_module_maps", "layering_check"],
    )
    variables = cc_common.create_compile_variables(
        feature_configuration = features,
        cc_toolchain = toolchain,
        user_compile_flags = ctx.fragments.cpp.copts + ctx.fragments.cpp.cxxopts + ctx.attr.copts,
        use_pic = True,
    )
    flags = cc_common.get_memory_inefficient_command_line(
        feature_configuration = features,
        action_name = ACTION_NAMES.cpp_compile,
        variables = variables,
    )
    is_clang = toolchain.compiler == "clang"

    # A source includes the text, and the compiler takes what lies beside it.
    text = ctx.actions.declare_file(ctx.label.name + ".h")
    compiled = ctx.actions.declare_file(ctx.label.name + (".h.pch" if is_clang else ".h.gch"))
    headers = ctx.files.headers
    ctx.actions.run_shell(
        command = "cat %s > %s" % (" ".join([header.path for header in headers]), text.path),
        inputs = headers,
        outputs = [text],
        mnemonic = "PrecompiledHeaderText",
    )
    if is_clang:
        # Templates are instantiated here and not in every source; headers are told apart by their size, not by the time at which
        # a cache wrote them. Sources that layering_check looks at take only what was compiled under the same rule.
        flags = flags + ["-fpch-instantiate-templates", "-Xclang", "-fno-pch-timestamp"]
        flags += ["-fmodule-name=" + ctx.label.name, "-fmodules-strict-decluse"]
    compiler = cc_common.get_tool_for_action(
        feature_configuration = features,
        action_name = ACTION_NAMES.cpp_compile,
    )

    # clang reads standard input: it writes down where each file lay, and looks for it there, in the folder of a checkout that may be
    # gone when another one takes this from a cache. g++ looks for none, and takes no standard input.
    ctx.actions.run_shell(
        command = 'exec "$@" < %s' % text.path if is_clang else 'exec "$@"',
        arguments = [compiler] + flags + ["-x", "c++-header", "-" if is_clang else text.path, "-o", compiled.path],
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = ACTION_NAMES.cpp_compile,
            variables = variables,
        ),
        inputs = depset([text], transitive = [toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "PrecompiledHeader",
        progress_message = "Precompiling %s.h" % ctx.label.name,
    )
    return [
        DefaultInfo(files = depset([text, compiled])),
        CcInfo(compilation_context = cc_common.create_compilation_context(
            headers = depset([text, compiled]),
        )),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "copts": attr.string_list(),
        "headers": attr.label_list(allow_files = [".h"], doc = "one after the other", mandatory = True),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    provides = [CcInfo],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
