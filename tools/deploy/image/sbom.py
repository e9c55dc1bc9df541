"""What is in the image, as SPDX 2.3 in JSON: our binaries, the Debian packages, the crates that are linked in."""

import datetime
import hashlib
import json
import re
import tarfile

STATUS = ("var/lib/dpkg/status", "var/lib/dpkg/available")


def debian_packages(root_tar):
    """Fields of each package that was unpacked: from dpkg's database."""
    with tarfile.open(root_tar) as tar:
        texts = {member.name.removeprefix("./"): tar.extractfile(member).read().decode() for member in tar
                 if member.isfile() and member.name.removeprefix("./") in STATUS}
    packages = {}
    for paragraph in "\n\n".join(texts.values()).split("\n\n"):
        fields = dict(re.findall(r"^(Package|Version|Architecture|Maintainer|Source|Homepage): (.*)$", paragraph, re.M))
        if "Version" in fields:
            packages[fields["Package"]] = fields
    return [packages[name] for name in sorted(packages)]


def crates(lock):
    """Name and version of each crate of a Cargo.lock that comes from a registry."""
    return sorted(re.findall(r'name = "([^"]+)"\nversion = "([^"]+)"\nsource = ', lock.read_text()))


def identifier(*parts):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", "-".join(parts))


def package(name, version, kind, reference, supplier="NOASSERTION", **more):
    return {
        "SPDXID": identifier(kind, name, version),
        "name": name,
        "versionInfo": version,
        "supplier": supplier,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": reference}],
        **more,
    }


def document(version, epoch, root_tar, binaries, cargo_lock):
    ours = package("kvatlas", version, "kvatlas", f"pkg:generic/kvatlas@{version}", licenseDeclared="Apache-2.0")
    packages = [ours]
    debian = debian_packages(root_tar)
    assert debian, "dpkg's database is empty"
    for one in debian:
        reference = f"pkg:deb/debian/{one['Package']}@{one['Version']}?arch={one.get('Architecture', 'all')}&distro=debian-12"
        packages.append(package(one["Package"], one["Version"], "deb", reference, "Person: " + one.get("Maintainer", "unknown")))
    for name, crate_version in crates(cargo_lock):
        packages.append(package(name, crate_version, "crate", f"pkg:cargo/{name}@{crate_version}"))
    files = []
    for binary in sorted(binaries.iterdir()):
        files.append({
            "SPDXID": identifier("file", binary.name),
            "fileName": f"./usr/lib/kvatlas/{binary.name}",
            "checksums": [{"algorithm": algorithm.upper(), "checksumValue": hashlib.new(algorithm, binary.read_bytes()).hexdigest()}
                          for algorithm in ("sha1", "sha256")],
            "licenseConcluded": "NOASSERTION",
            "copyrightText": "NOASSERTION",
        })
    contained = [one["SPDXID"] for one in packages[1:]] + [one["SPDXID"] for one in files]
    unique = hashlib.sha256(json.dumps([packages, files], sort_keys=True).encode()).hexdigest()[:32]
    return (json.dumps({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"kvatlas-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/kvatlas-{version}-{unique}",
        "creationInfo": {"created": datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                         "creators": ["Tool: kvatlas-image-build"]},
        "packages": packages,
        "files": files,
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": ours["SPDXID"]}] +
                         [{"spdxElementId": ours["SPDXID"], "relationshipType": "CONTAINS", "relatedSpdxElement": one} for one in contained],
    }, sort_keys=True, indent=1) + "\n").encode()
