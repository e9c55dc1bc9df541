"""What is in the image, as SPDX 2.3 in JSON: our binaries, the Debian packages, the crates and the C library that are linked in."""

import datetime
import hashlib
import json
import re


def crates(lock):
    """Name and version of each crate of a Cargo.lock that comes from a registry."""
    return sorted(re.findall(r'name = "([^"]+)"\nversion = "([^"]+)"\nsource = ', lock.read_text()))


def hiredis(header):
    """The version that its header says."""
    numbers = re.findall(r"#define HIREDIS_(?:MAJOR|MINOR|PATCH) (\d+)", header.read_text())
    return ".".join(numbers)


def identifier(*parts):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", "-".join(parts))


def package(name, version, kind, reference, **more):
    return {
        "SPDXID": identifier(kind, name, version),
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": reference}],
        **more,
    }


def debian_package(one):
    reference = f"pkg:deb/debian/{one.name}@{one.field('Version')}?arch={one.field('Architecture')}"
    source = (one.field("Source") or one.name).split()[0]
    more = {"homepage": homepage} if (homepage := one.field("Homepage")) else {}
    return package(one.name, one.field("Version"), "deb", reference, supplier="Organization: Debian",
                   sourceInfo=f"built from Debian's source package {source}", **more)


def binary_file(binary):
    data = binary.read_bytes()
    return {
        "SPDXID": identifier("file", binary.name),
        "fileName": f"./usr/lib/kvatlas/{binary.name}",
        "fileTypes": ["BINARY"],
        "checksums": [{"algorithm": name.upper(), "checksumValue": hashlib.new(name, data).hexdigest()} for name in ("sha1", "sha256")],
        "licenseConcluded": "NOASSERTION",
        "licenseInfoInFiles": ["NOASSERTION"],
        "copyrightText": "NOASSERTION",
    }


def document(version, epoch, debian_packages, binaries, cargo_lock, hiredis_header):
    """As bytes. The document's namespace is a digest of what it says."""
    files = [binary_file(binary) for binary in sorted(binaries.iterdir())]
    sha1s = "".join(sorted(file["checksums"][0]["checksumValue"] for file in files))
    ours = package("kvatlas", version, "kvatlas", f"pkg:generic/kvatlas@{version}", licenseDeclared="Apache-2.0", filesAnalyzed=True,
                   licenseInfoFromFiles=["NOASSERTION"], hasFiles=[file["SPDXID"] for file in files],
                   packageVerificationCode={"packageVerificationCodeValue": hashlib.sha1(sha1s.encode()).hexdigest()})
    debian = [debian_package(one) for one in debian_packages]
    linked = [package(name, crate_version, "crate", f"pkg:cargo/{name}@{crate_version}") for name, crate_version in crates(cargo_lock)]
    in_c = hiredis(hiredis_header)
    linked.append(package("hiredis", in_c, "c", f"pkg:generic/hiredis@{in_c}", licenseDeclared="BSD-3-Clause"))
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", ours)]
    relations += [(ours["SPDXID"], "CONTAINS", file) for file in files]
    relations += [(ours["SPDXID"], "DEPENDS_ON", one) for one in debian]
    relations += [(ours["SPDXID"], "STATIC_LINK", one) for one in linked]
    packages = [ours, *debian, *linked]
    unique = hashlib.sha256(json.dumps([packages, files], sort_keys=True).encode()).hexdigest()[:32]
    created = datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return (json.dumps({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"kvatlas-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/kvatlas-{version}-{unique}",
        "creationInfo": {"created": created, "creators": ["Tool: kvatlas-image-build"]},
        "packages": packages,
        "files": files,
        "relationships": [{"spdxElementId": of, "relationshipType": kind, "relatedSpdxElement": one["SPDXID"]}
                          for of, kind, one in relations],
    }, sort_keys=True, indent=1) + "\n").encode()
