"""precompiled_header(name, header, copts): a header that is compiled once, for sources that are compiled with
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
    ctx.actions.symlink(output = text, target_file = ctx.file.header)
    arguments = ctx.actions.args()
    arguments.add_all(flags)
    arguments.add_all(["-iquote", "."])
    if is_clang:
        # Templates are instantiated here and not in every source; headers are told apart by their size, not by the time at which
        # a cache wrote them. Sources that layering_check looks at take only what was compiled under the same rule.
        arguments.add_all(["-fpch-instantiate-templates", "-Xclang", "-fno-pch-timestamp"])
        arguments.add_all(["-fmodule-name=" + ctx.label.name, "-fmodules-strict-decluse"])
    arguments.add_all(["-x", "c++-header", ctx.file.header, "-o", compiled])
    ctx.actions.run(
        executable = cc_common.get_tool_for_action(
            feature_configuration = features,
            action_name = ACTION_NAMES.cpp_compile,
        ),
        arguments = [arguments],
        env = cc_common.get_environment_variables(
            feature_configuration = features,
            action_name = ACTION_NAMES.cpp_compile,
            variables = variables,
        ),
        inputs = depset([ctx.file.header] + ctx.files.includes, transitive = [toolchain.all_files]),
        outputs = [compiled],
        mnemonic = "PrecompiledHeader",
        progress_message = "Precompiling " + ctx.file.header.short_path,
    )
    return [
        DefaultInfo(files = depset([text, compiled])),
        CcInfo(compilation_context = cc_common.create_compilation_context(
            headers = depset([text, compiled, ctx.file.header] + ctx.files.includes),
        )),
    ]

precompiled_header = rule(
    implementation = _precompiled_header_impl,
    attrs = {
        "copts": attr.string_list(),
        "header": attr.label(allow_single_file = [".h"], mandatory = True),
        "includes": attr.label_list(allow_files = [".h"], doc = "of this repository, that the header includes"),
        "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
    },
    fragments = ["cpp"],
    provides = [CcInfo],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)
