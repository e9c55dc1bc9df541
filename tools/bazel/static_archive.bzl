"""static_archive(name, dep): one archive of all objects of a C++ target and of everything below it in this repository,
NAME.a; and the link options of the system libraries that they need, in the order in which they were asked for, NAME.flags. Its
runfiles have all headers of this repository that they include, too.

Bazel makes an archive per target; a program that links without Bazel wants one.
"""

def _with_states_whole(flags):
    """Joins what stands between a --push-state and its --pop-state into one option.

    pkg-config drops what it has seen before, one half of a pair too.
    """
    joined = []
    for flag in flags:
        is_open = joined and joined[-1].startswith("-Wl,--push-state") and not joined[-1].endswith(",--pop-state")
        if is_open and flag.startswith("-l"):
            joined[-1] += "," + flag
        elif is_open and flag == "-Wl,--pop-state":
            joined[-1] += ",--pop-state"
        else:
            joined.append(flag)
    return joined

def _static_archive_impl(ctx):
    inputs = ctx.attr.dep[CcInfo].linking_context.linker_inputs.to_list()
    archives, flags = [], []
    for linker_input in inputs:
        flags += [flag for flag in linker_input.user_link_flags]
        for library in linker_input.libraries:
            archive = library.pic_static_library or library.static_library
            if archive and archive not in archives:
                archives.append(archive)
    script = ctx.actions.declare_file(ctx.label.name + ".mri")
    merged = ctx.actions.declare_file(ctx.label.name + ".a")
    ctx.actions.write(script, "\n".join(
        ["create " + merged.path] +
        ["addlib " + archive.path for archive in archives] +
        ["save", "end", ""],
    ))
    ctx.actions.run_shell(
        inputs = archives + [script],
        outputs = [merged],
        # Plugins would read the bitcode that Rust's objects have beside their code, and complain that it is too new.
        command = "rm -f '%s' && /usr/bin/ar --plugin=/dev/null -M < '%s' && /usr/bin/ranlib --plugin=/dev/null -D '%s'" %
                  (merged.path, script.path, merged.path),
        mnemonic = "StaticArchive",
        progress_message = "Merging " + merged.short_path,
    )
    options = ctx.actions.declare_file(ctx.label.name + ".flags")
    ctx.actions.write(options, " ".join(_with_states_whole(flags)) + "\n")
    made = [merged, options]
    headers = [
        header
        for header in ctx.attr.dep[CcInfo].compilation_context.headers.to_list()
        if header.is_source and not header.short_path.startswith("../")
    ]
    return [DefaultInfo(files = depset(made), runfiles = ctx.runfiles(files = made + headers))]

static_archive = rule(
    implementation = _static_archive_impl,
    attrs = {"dep": attr.label(mandatory = True, providers = [CcInfo])},
)
