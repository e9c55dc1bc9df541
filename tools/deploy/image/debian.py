"""Debian packages as parts of an image: which ones binaries need, and what of each goes into the layer."""

import dataclasses
import os
import re
import subprocess
import sys
import tarfile

# Of a package an image has its libraries, its licence and the release's name: nothing that runs.
KEPT = re.compile(r"(usr/lib(64)?/([^/]+/)?[^/]+\.so(\.[^/]*)?|(usr/lib|etc)/os-release|etc/debian_version"
                  r"|usr/share/doc/[^/]+(/copyright)?|usr/share/common-licenses/[^/]+)")
CERTIFICATE = re.compile(r"usr/share/ca-certificates/.*\.crt")
BUNDLE = "etc/ssl/certs/ca-certificates.crt"


@dataclasses.dataclass
class Package:
    name: str
    control: str   # its control file
    files: dict    # path, below /usr where Debian merges into it: (TarInfo, bytes or None)

    def field(self, name):
        found = re.search(rf"^{name}: (.*)$", self.control, re.M)
        return found.group(1) if found else None

    def licence_is_in(self):
        """The package that this one's licence lies in: by policy a link of its folder of documents names it."""
        entry = self.files.get(f"usr/share/doc/{self.name}")
        return entry[0].linkname.split("/")[0] if entry and entry[0].issym() else self.name


def packages_of(binaries):
    """Names of the packages that the libraries of these binaries come from."""
    libraries = set()
    for file in binaries:
        listed = subprocess.run(["ldd", file], check=True, capture_output=True, text=True).stdout
        libraries |= set(re.findall(r"=> (/\S+)", listed))
    return {package_of(library) for library in libraries}


def package_of(library):
    # dpkg knows a file by the path that its package has, before or after the merge into /usr.
    for path in (library, os.path.realpath(library), "/usr" + library, library.removeprefix("/usr")):
        said = subprocess.run(["dpkg", "-S", path], capture_output=True, text=True)
        if said.returncode == 0:
            return said.stdout.split(":")[0]
    sys.exit(f"{library} is of no Debian package: the image is made of packages alone")


def download(names, folder):
    """The packages and those that their licences lie in, by name."""
    folder.mkdir()
    packages = {}
    while missing := sorted((set(names) | {one.licence_is_in() for one in packages.values()}) - set(packages)):
        subprocess.run(["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *missing], check=True, cwd=folder)
        for file in folder.glob("*.deb"):
            one = read(file)
            packages[one.name] = one
            file.unlink()
        if lost := set(missing) - set(packages):
            sys.exit(f"apt-get download brought no {' '.join(sorted(lost))}")
    return [packages[name] for name in sorted(packages)]


def read(file):
    control = subprocess.run(["dpkg-deb", "--field", file], check=True, capture_output=True, text=True).stdout
    files = {}
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", file], stdout=subprocess.PIPE) as unpacked:
        with tarfile.open(fileobj=unpacked.stdout, mode="r|") as tar:
            for member in tar:
                path = re.sub(r"^(bin|lib|lib64|sbin)/", r"usr/\1/", member.name.removeprefix("./").strip("/"))
                if not member.isdir() and (KEPT.fullmatch(path) or CERTIFICATE.fullmatch(path)):
                    files[path] = (member, tar.extractfile(member).read() if member.isfile() else None)
    if unpacked.returncode != 0:
        sys.exit(f"dpkg-deb could not read {file}")
    return Package(re.search(r"^Package: (\S+)$", control, re.M).group(1), control, files)


def entries(packages):
    """What the packages give to the layer: path to (TarInfo, bytes or None). Scanners find the packages in var/lib/dpkg/status.d."""
    found = {}
    certificates = {}
    for one in packages:
        for path, entry in one.files.items():
            (certificates if CERTIFICATE.fullmatch(path) else found)[path] = entry
        found[f"var/lib/dpkg/status.d/{one.name}"] = (tarfile.TarInfo(), one.control.encode())
    if not certificates:
        sys.exit("package ca-certificates has no certificates")
    bundle = b"".join(data.rstrip(b"\n") + b"\n" for _, (_, data) in sorted(certificates.items()))
    found[BUNDLE] = (tarfile.TarInfo(), bundle)
    return found
