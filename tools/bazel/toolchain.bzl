"""The two compilers, stated rather than detected: Bazel's own detection reads CC and PATH of the caller."""

load("@bazel_tools//tools/cpp:unix_cc_toolchain_config.bzl", "cc_toolchain_config")

# Bazel's name of the processor, and the libraries' folder of Debian for it.
_CPUS = {
    "aarch64": "aarch64-linux-gnu",
    "k8": "x86_64-linux-gnu",
}

def debian_toolchain(name, compiler, driver, module_map = None):
    """Declares the toolchain suite //tools/bazel:NAME.

    Args:
      name: of the suite, for --crosstool_top.
      compiler: "gcc" or "clang".
      driver: the compiler's path; it links too.
      module_map: for layering_check, clang only.
    """
    native.filegroup(name = name + "_no_files")
    for cpu, triple in _CPUS.items():
        native.cc_toolchain(
            name = "%s_%s" % (name, cpu),
            all_files = ":%s_no_files" % name,
            ar_files = ":%s_no_files" % name,
            as_files = ":%s_no_files" % name,
            compiler_files = ":%s_no_files" % name,
            dwp_files = ":%s_no_files" % name,
            linker_files = ":%s_no_files" % name,
            module_map = module_map,
            objcopy_files = ":%s_no_files" % name,
            strip_files = ":%s_no_files" % name,
            supports_param_files = True,
            toolchain_config = ":%s_%s_config" % (name, cpu),
            toolchain_identifier = "%s_%s" % (name, cpu),
        )
        cc_toolchain_config(
            name = "%s_%s_config" % (name, cpu),
            abi_libc_version = "local",
            abi_version = "local",
            compile_flags = ["-fstack-protector", "-fno-omit-frame-pointer"],
            compiler = compiler,
            cpu = cpu,
            cxx_builtin_include_directories = [
                "/usr/include",
                "/usr/lib/gcc/%s" % triple,
                "/usr/lib/llvm-19",
                "/usr/local/include",
            ],
            cxx_flags = ["-std=c++20"],
            host_system_name = "local",
            link_flags = ["-Wl,-z,relro,-z,now", "-B/usr/bin"],
            link_libs = ["-lstdc++", "-lm"],
            opt_compile_flags = [
                "-g1",
                "-O2",
                "-DNDEBUG",
                "-ffunction-sections",
                "-fdata-sections",
            ],
            opt_link_flags = ["-Wl,--gc-sections"],
            dbg_compile_flags = ["-g"],
            target_libc = "local",
            target_system_name = "local",
            tool_paths = {
                "ar": "/usr/bin/ar",
                "cpp": driver,
                "dwp": "/usr/bin/dwp",
                "gcc": driver,
                "gcov": "/usr/bin/gcov-12",
                "ld": "/usr/bin/ld",
                "llvm-cov": "/usr/bin/llvm-cov-19",
                "nm": "/usr/bin/nm",
                "objcopy": "/usr/bin/objcopy",
                "objdump": "/usr/bin/objdump",
                "strip": "/usr/bin/strip",
            },
            toolchain_identifier = "%s_%s" % (name, cpu),
            # No time and date in objects: equal inputs give equal outputs.
            unfiltered_compile_flags = [
                "-no-canonical-prefixes",
                "-Wno-builtin-macro-redefined",
                "-D__DATE__=\"redacted\"",
                "-D__TIMESTAMP__=\"redacted\"",
                "-D__TIME__=\"redacted\"",
            ],
        )
    native.cc_toolchain_suite(
        name = name,
        toolchains = {cpu: ":%s_%s" % (name, cpu) for cpu in _CPUS},
    )
