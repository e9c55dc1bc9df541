"""The two compilers, stated rather than detected: Bazel's own detection reads CC and PATH of the caller."""

load("@bazel_tools//tools/build_defs/cc:action_names.bzl", "ACTION_NAMES")
load(
    "@bazel_tools//tools/cpp:cc_toolchain_config_lib.bzl",
    "feature",
    "feature_set",
    "flag_group",
    "flag_set",
    "tool_path",
    "variable_with_value",
    "with_feature_set",
)

# Bazel's name of the processor, and Debian's.
_CPUS = {
    "aarch64": "aarch64-linux-gnu",
    "k8": "x86_64-linux-gnu",
}

_COMPILE_C_AND_CPP = [
    ACTION_NAMES.c_compile,
    ACTION_NAMES.cpp_compile,
    ACTION_NAMES.cpp_header_parsing,
]

_COMPILE = _COMPILE_C_AND_CPP + [
    ACTION_NAMES.assemble,
    ACTION_NAMES.preprocess_assemble,
]

_LINK = [
    ACTION_NAMES.cpp_link_executable,
    ACTION_NAMES.cpp_link_dynamic_library,
    ACTION_NAMES.cpp_link_nodeps_dynamic_library,
]

_LINK_SHARED = [
    ACTION_NAMES.cpp_link_dynamic_library,
    ACTION_NAMES.cpp_link_nodeps_dynamic_library,
]

def _flags(actions, flags, mode = None):
    return flag_set(
        actions = actions,
        flag_groups = [flag_group(flags = flags)],
        with_features = [with_feature_set(features = [mode])] if mode else [],
    )

# layering_check: a target includes only headers of its own direct dependencies. Bazel writes a module map
# per target, and clang refuses an include that the map does not allow.
def _layering_check_features():
    return [
        feature(name = "module_maps", enabled = True),
        # Without it each map names the maps of its dependencies; clang then lists those among the files it
        # read, and Bazel refuses them as undeclared.
        feature(name = "module_map_without_extern_module", enabled = True),
        feature(
            name = "use_module_maps",
            flag_sets = [_flags(_COMPILE_C_AND_CPP, [
                "-fmodule-name=%{module_name}",
                "-fmodule-map-file=%{module_map_file}",
            ])],
            requires = [feature_set(features = ["module_maps"])],
        ),
        feature(
            name = "layering_check",
            flag_sets = [flag_set(
                actions = _COMPILE_C_AND_CPP,
                flag_groups = [
                    flag_group(flags = [
                        "-fmodules-strict-decluse",
                        "-Wprivate-header",
                    ]),
                    flag_group(
                        flags = ["-fmodule-map-file=%{dependent_module_map_files}"],
                        iterate_over = "dependent_module_map_files",
                    ),
                ],
            )],
            implies = ["use_module_maps"],
        ),
    ]

# Interface libraries: linking against a shared library reads its dynamic symbols (tools/bazel/interface_library), not its code,
# so that a changed function links one library again and nothing that depends on it. Bazel's link_dynamic_library.sh runs both
# steps and takes their names as its first arguments. Bazel puts its own flags before a toolchain's; stating these features here
# puts them behind the names, in the order of this list.
def _interface_library_features(driver):
    each = "libraries_to_link"
    return [
        feature(name = "supports_interface_shared_libraries", enabled = True),
        _link_feature("build_interface_libraries", [
            "%{generate_interface_library}",
            "tools/bazel/interface_library",
            "%{interface_library_input_path}",
            "%{interface_library_output_path}",
        ], needs = "generate_interface_library", actions = _LINK_SHARED),
        _link_feature("dynamic_library_linker_tool", [driver], needs = "generate_interface_library", actions = _LINK_SHARED),
        _link_feature("shared_flag", ["-shared"], actions = _LINK_SHARED),
        _link_feature("output_execpath_flags", ["-o", "%{output_execpath}"], needs = "output_execpath"),
        _link_feature(
            "runtime_library_search_directories",
            ["-Wl,-rpath,$ORIGIN/%{runtime_library_search_directories}"],
            each = "runtime_library_search_directories",
        ),
        _link_feature("library_search_directories", ["-L%{library_search_directories}"], each = "library_search_directories"),
        feature(
            name = "libraries_to_link",
            enabled = True,
            flag_sets = [flag_set(actions = _LINK, flag_groups = [flag_group(
                iterate_over = each,
                expand_if_available = each,
                flag_groups = [flag_group(
                    flags = ["-Wl,-whole-archive"],
                    expand_if_true = each + ".is_whole_archive",
                )] + [
                    flag_group(
                        flags = [flag],
                        expand_if_equal = variable_with_value(name = each + ".type", value = kind),
                    )
                    for kind, flag in [
                        ("object_file", "%{libraries_to_link.name}"),
                        ("interface_library", "%{libraries_to_link.name}"),
                        ("static_library", "%{libraries_to_link.name}"),
                        ("dynamic_library", "-l%{libraries_to_link.name}"),
                        ("versioned_dynamic_library", "-l:%{libraries_to_link.name}"),
                    ]
                ] + [flag_group(
                    flags = ["-Wl,-no-whole-archive"],
                    expand_if_true = each + ".is_whole_archive",
                )],
            )])],
        ),
        _link_feature("force_pic_flags", ["-pie"], needs = "force_pic", actions = [ACTION_NAMES.cpp_link_executable]),
        _link_feature("user_link_flags", ["%{user_link_flags}"], each = "user_link_flags"),
        _link_feature("strip_debug_symbols", ["-Wl,-S"], needs = "strip_debug_symbols"),
    ]

# A feature that adds flags when linking: if Bazel has the variable `needs`; once for each element of the variable `each`.
def _link_feature(name, flags, needs = None, each = None, actions = _LINK):
    return feature(
        name = name,
        enabled = True,
        flag_sets = [flag_set(actions = actions, flag_groups = [flag_group(
            flags = flags,
            iterate_over = each,
            expand_if_available = needs or each,
        )])],
    )

def _config_impl(ctx):
    triple = _CPUS[ctx.attr.cpu]
    features = (_interface_library_features(ctx.attr.driver) if ctx.attr.compiler == "clang" else []) + [
        feature(name = "opt"),
        feature(name = "dbg"),
        feature(name = "fastbuild"),
        feature(name = "supports_pic", enabled = True),
        feature(name = "supports_dynamic_linker", enabled = True),
        # What every file is compiled with, before the flags of the target and of the command line.
        feature(
            name = "default_compile_flags",
            enabled = True,
            flag_sets = [
                _flags(_COMPILE, ["-fstack-protector", "-fno-omit-frame-pointer"]),
                _flags(_COMPILE, ["-O2", "-g1", "-DNDEBUG", "-ffunction-sections", "-fdata-sections"], "opt"),
                _flags(_COMPILE, ["-g"], "dbg"),
            ],
        ),
        feature(
            name = "default_link_flags",
            enabled = True,
            flag_sets = [
                _flags(_LINK, ["-Wl,-z,relro,-z,now", "-lstdc++", "-lm"]),
                _flags(_LINK, ["-Wl,--gc-sections"], "opt"),
            ],
        ),
        # No time and date in objects: equal inputs give equal outputs.
        feature(
            name = "deterministic_compile_flags",
            enabled = True,
            flag_sets = [_flags(_COMPILE, [
                "-no-canonical-prefixes",
                "-Wno-builtin-macro-redefined",
                "-D__DATE__=\"redacted\"",
                "-D__TIMESTAMP__=\"redacted\"",
                "-D__TIME__=\"redacted\"",
            ])],
        ),
    ]
    if ctx.attr.compiler == "clang":
        features += _layering_check_features()
    tools = {
        "ar": "/usr/bin/ar",
        "cpp": ctx.attr.driver,
        "gcc": ctx.attr.driver,
        "gcov": "/usr/bin/gcov-12",
        "ld": "/usr/bin/ld",
        "nm": "/usr/bin/nm",
        "objcopy": "/usr/bin/objcopy",
        "objdump": "/usr/bin/objdump",
        "strip": "/usr/bin/strip",
    }
    return cc_common.create_cc_toolchain_config_info(
        ctx = ctx,
        abi_libc_version = "local",
        abi_version = "local",
        compiler = ctx.attr.compiler,
        cxx_builtin_include_directories = [
            "/usr/include",
            "/usr/lib/clang/19",
            "/usr/lib/gcc/%s" % triple,
            "/usr/lib/llvm-19",
            "/usr/local/include",
        ],
        features = features,
        host_system_name = "local",
        target_cpu = ctx.attr.cpu,
        target_libc = "local",
        target_system_name = "local",
        tool_paths = [tool_path(name = name, path = path) for name, path in tools.items()],
        toolchain_identifier = ctx.label.name,
    )

_config = rule(
    implementation = _config_impl,
    attrs = {
        "compiler": attr.string(mandatory = True),
        "cpu": attr.string(mandatory = True),
        "driver": attr.string(mandatory = True),
    },
    provides = [CcToolchainConfigInfo],
)

def debian_toolchain(name, compiler, driver, module_map = None, linker_files = None):
    """Declares the toolchain suite //tools/bazel:NAME.

    Args:
      name: of the suite, for --crosstool_top.
      compiler: "gcc" or "clang".
      driver: the compiler's path; it links too.
      module_map: what everybody may include, for layering_check; clang only.
      linker_files: what linking runs, if that is not of the system: interface_library; clang only.
    """
    no_files = name + "_no_files"
    native.filegroup(name = no_files)
    for cpu in _CPUS:
        _config(
            name = "%s_%s_config" % (name, cpu),
            compiler = compiler,
            cpu = cpu,
            driver = driver,
        )
        native.cc_toolchain(
            name = "%s_%s" % (name, cpu),
            all_files = no_files,
            ar_files = no_files,
            as_files = no_files,
            compiler_files = no_files,
            dwp_files = no_files,
            linker_files = linker_files if linker_files else no_files,
            module_map = module_map,
            objcopy_files = no_files,
            strip_files = no_files,
            supports_param_files = True,
            toolchain_config = "%s_%s_config" % (name, cpu),
        )
    native.cc_toolchain_suite(
        name = name,
        toolchains = {cpu: "%s_%s" % (name, cpu) for cpu in _CPUS},
    )
