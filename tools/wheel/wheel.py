"""Makes a wheel of a Python package and the libraries that it loads or the programs that it runs, for every system whose glibc has what
these demand.

The libraries, programs and every shared library that they need, but for glibc's own and the C++ runtime, are copied into the package's folder
lib. Those that are needed get names of their own (NAME-HASH.so), so that no library that the process has already loaded is taken for
one of them, and all find each other by $ORIGIN.

    wheel.main(wheel.Package(name="kvatlas-publisher", folder=HERE, …), __doc__)
"""

import argparse
import base64
import ctypes
import dataclasses
import hashlib
import re
import shutil
import subprocess
import tempfile
import zipfile
from pathlib import Path

import elf

ROOT = Path(__file__).resolve().parent.parent.parent
# Taken from the machine: glibc, which cannot be brought along, and the C++ runtime, which must not be: a process has one, and
# an engine's other libraries (PyTorch) need theirs. Every system with this glibc has it, as manylinux_2_36 demands.
OUTSIDE = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libresolv.so.2",
           "ld-linux-x86-64.so.2", "libstdc++.so.6", "libgcc_s.so.1"}
# What a system with glibc 2.36 has at least.
NEWEST = {"GLIBC": (2, 36), "GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}
# By the C++ runtime's newest version that is demanded, the glibc of the oldest system that has it, as auditwheel's policies say.
GLIBC_OF_GLIBCXX = [((3, 4, 29), (2, 34)), ((3, 4, 30), (2, 35))]
OLDEST = (2, 28)
# Of all files in the wheel, so that the same sources give the same bytes.
STAMP = (2020, 1, 1, 0, 0, 0)


@dataclasses.dataclass
class Package:
    name: str  # as pip calls it; the module's has an underscore
    folder: Path  # where the module's folder and README.md are
    summary: str
    library: str  # in the wheel: libkvatlas_publisher.so.1, or a program
    version_function: str  # of the library: what the wheel's version is; a program is asked by --version
    target: str  # Bazel's, of the library
    entry_points: str = ""
    more: dict = dataclasses.field(default_factory=dict)  # {name in the wheel: Bazel's target} of libraries that it opens, of programs
    extras: tuple = ()  # packages of the same version that go with it, and the names of these extras

    @property
    def module(self):
        return self.name.replace("-", "_")


def is_program(file):
    return ".so" not in file.name


def version(package, library):
    if not package.version_function:
        return run(library, "--version").split()[1]
    asked = getattr(ctypes.CDLL(str(library)), package.version_function)
    asked.restype = ctypes.c_char_p
    return asked().decode()


def run(*command):
    return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout


def closure(library):
    """{name as needed: file} of everything that the library loads and that is not from outside."""
    found = {}
    for line in run("ldd", library).splitlines():
        match = re.match(r"\s*(\S+) => (\S+)", line)
        if match and match[1] not in OUTSIDE:
            if not match[2].startswith("/"):
                raise SystemExit(f"build_wheel: {match[1]} is missing ({line.strip()})")
            found[match[1]] = Path(match[2]).resolve()
    return found


def own_name(package, name, file):
    """libgrpc.so.29 -> libgrpc-0a1b2c3d.so.29; another one for each package, whose Protobuf must be its own."""
    stem, _, rest = name.partition(".so")
    digest = hashlib.sha256(package.name.encode() + file.read_bytes()).hexdigest()
    return f"{stem}-{digest[:8]}.so{rest}"


def bundle(package, libraries, folder):
    """Copies {name in the wheel: library} and what these need; returns the files whose licences go along."""
    folder.mkdir()
    wanted = {}
    for library in libraries.values():
        wanted.update(closure(library))
    names = {name: own_name(package, name, file) for name, file in wanted.items()}
    for source, name in [(library, name) for name, library in libraries.items()] + [(wanted[n], names[n]) for n in wanted]:
        target = folder / name
        shutil.copyfile(source, target)
        target.chmod(0o755)
        run("strip", "--strip-unneeded", target)
        needed = [n for n in elf.read(target).needed if n in names]
        # One kind of change a call: of several kinds at once, Debian's patchelf mixes up the strings.
        if not is_program(target):
            run("patchelf", "--set-soname", name, target)
        run("patchelf", "--set-rpath", "$ORIGIN", target)
        if needed:
            run("patchelf", *(part for old in needed for part in ("--replace-needed", old, names[old])), target)
        elf.make_unique_symbols_weak(target)
    return sorted(wanted.values())


def check(folder):
    """Nothing from outside but what OUTSIDE names, in no newer version than NEWEST."""
    inside = {file.name for file in folder.iterdir()}
    for file in sorted(folder.iterdir()):
        found = elf.read(file)
        strange = (set(found.needed) | set(found.versions)) - inside - OUTSIDE
        if strange or found.runpath != "$ORIGIN":
            raise SystemExit(f"build_wheel: {file.name} needs {sorted(strange)} by {found.runpath!r}")
        for library, versions in found.versions.items():
            for demanded in versions if library in OUTSIDE else ():
                name, _, number = demanded.rpartition("_")
                numbers = tuple(int(part) for part in number.split(".") if part.isdigit())
                if numbers and name in NEWEST and numbers > NEWEST[name]:
                    raise SystemExit(f"build_wheel: {file.name} needs {demanded} of {library}")


def tag(folder):
    """Of the oldest system that has what the files demand: by what is called from glibc and the C++ runtime."""
    needed = OLDEST
    for file in folder.iterdir():
        for library, versions in elf.read(file).versions.items():
            for demanded in versions if library in OUTSIDE else ():
                name, _, number = demanded.rpartition("_")
                numbers = tuple(int(part) for part in number.split(".") if part.isdigit())
                if name == "GLIBC":
                    needed = max(needed, numbers[:2])
                elif name == "GLIBCXX":
                    needed = max([needed] + [glibc for since, glibc in GLIBC_OF_GLIBCXX if numbers >= since])
    return "py3-none-manylinux_%d_%d_x86_64" % needed


def licences(files):
    """{package: text of its copyright file} of the Debian packages that the files are from."""
    owners = set()
    files = [file for file in files if file.parts[1] in ("usr", "lib", "lib64")]
    for line in run("dpkg-query", "-S", *(f"*/{file.name}" for file in files)).splitlines():
        packages, _, path = line.partition(": ")
        if Path(path.strip()).resolve() in files:
            owners.update(name.split(":")[0] for name in packages.split(", "))
    texts = {}
    for owner in sorted(owners):
        path = Path("/usr/share/doc") / owner / "copyright"
        if path.exists():
            texts[owner] = path.read_bytes()
    return texts


def metadata(package, number):
    return "\n".join([
        "Metadata-Version: 2.1", f"Name: {package.name}", f"Version: {number}", f"Summary: {package.summary}",
        "License: Apache-2.0", "Requires-Python: >=3.9", "Description-Content-Type: text/markdown",
        *(line for extra in package.extras for line in
          (f"Provides-Extra: {extra}", f'Requires-Dist: kvatlas-{extra}=={number}; extra == "{extra}"')), "",
        (package.folder / "README.md").read_text(encoding="utf-8")])


def contents(package, libraries, number, work):
    """{path in the wheel: (bytes, mode)}, the folder of its metadata, its tag."""
    folder = work / "lib"
    bundled = bundle(package, libraries, folder)
    check(folder)
    of_system = tag(folder)
    files = {}
    for source in sorted((package.folder / package.module).glob("*.py")):
        files[f"{package.module}/{source.name}"] = (source.read_bytes(), 0o644)
    for source in sorted(folder.iterdir()):
        files[f"{package.module}/lib/{source.name}"] = (source.read_bytes(), 0o755)
    info = f"{package.module}-{number}.dist-info"
    files[f"{info}/METADATA"] = (metadata(package, number).encode(), 0o644)
    wheel = f"Wheel-Version: 1.0\nGenerator: kvatlas build_wheel\nRoot-Is-Purelib: false\nTag: {of_system}\n"
    files[f"{info}/WHEEL"] = (wheel.encode(), 0o644)
    if package.entry_points:
        files[f"{info}/entry_points.txt"] = (package.entry_points.encode(), 0o644)
    files[f"{info}/licenses/LICENSE"] = ((ROOT / "LICENSE").read_bytes(), 0o644)
    files[f"{info}/licenses/hiredis.copyright"] = ((ROOT / "tools/bazel/hiredis/unpacked/hiredis/COPYING").read_bytes(), 0o644)
    for owner, text in licences(bundled).items():
        files[f"{info}/licenses/{owner}.copyright"] = (text, 0o644)
    return files, info, of_system


def write(path, files, info):
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        def add(name, data, mode):
            entry = zipfile.ZipInfo(name, STAMP)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)

        for name, (data, mode) in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}")
            add(name, data, mode)
        record += [f"{info}/RECORD,,", ""]
        add(f"{info}/RECORD", "\n".join(record).encode(), 0o644)


def build(package, libraries, out):
    number = version(package, libraries[package.library])
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        files, info, of_system = contents(package, libraries, number, Path(work))
    path = out / f"{package.module}-{number}-{of_system}.whl"
    write(path, files, info)
    return path


def built(target):
    return ROOT / "bazel-bin" / target.removeprefix("//").replace(":", "/")


def main(package, about):
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("dist"))
    parser.add_argument("--library", type=Path, help=f"an already built {package.target}")
    parser.add_argument("--more", type=Path, action="append", default=[],
                        help="already built libraries that it opens, beside --library")
    arguments = parser.parse_args()
    targets = {package.library: package.target, **package.more}
    if arguments.library is None:
        subprocess.run([ROOT / "tools/install"], check=True)
        commit = run(ROOT / "tools/deploy/commit").strip()
        subprocess.run(["bazel", "build", "-c", "opt", f"--define=commit={commit}", *targets.values()], cwd=ROOT, check=True)
        libraries = {name: built(target) for name, target in targets.items()}
    else:
        more = {file.name: file for file in arguments.more}
        libraries = {package.library: arguments.library,
                     **{name: more[name] for name in package.more if name in more}}
    libraries = {name: file.resolve() for name, file in libraries.items()}
    print(build(package, libraries, arguments.out))
