"""The image's parts without packages and network: bytes of a layer and a layout, the SPDX document, what is kept of a package."""

import json
import pathlib
import tarfile
import tempfile
import unittest

import debian
import oci
import sbom


def entry(data=None, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo("named-elsewhere")
    info.type, info.linkname, info.mtime = kind, link, 12345
    return info, data


class LayoutTest(unittest.TestCase):
    ENTRIES = {"usr/bin/a": entry(b"a"), "etc/z": entry(b"z"), "a-link": entry(kind=tarfile.LNKTYPE, link="./usr/bin/a")}

    def test_the_same_entries_in_another_order_have_the_same_digest(self):
        layers = [oci.layer(entries, 1000) for entries in (self.ENTRIES, dict(reversed(self.ENTRIES.items())))]
        self.assertEqual(layers[0], layers[1])
        self.assertNotEqual(layers[0][1], oci.layer({**self.ENTRIES, "etc/z": entry(b"y")}, 1000)[1])

    def test_a_layer_has_its_folders_and_its_links_last(self):
        with tempfile.TemporaryFile() as file:
            file.write(oci.layer(self.ENTRIES, 1000)[0])
            file.seek(0)
            with tarfile.open(fileobj=file) as tar:
                members = tar.getmembers()
        self.assertEqual([one.name for one in members], ["etc", "etc/z", "usr", "usr/bin", "usr/bin/a", "a-link"])
        self.assertEqual({one.mtime for one in members}, {1000})
        self.assertEqual(members[-1].linkname, "usr/bin/a")

    def test_a_layout_names_what_it_has(self):
        with tempfile.TemporaryDirectory() as scratch:
            folder = pathlib.Path(scratch)
            digest, total = oci.write_layout(folder, [oci.layer(self.ENTRIES, 1000)], 1000, "1.2.3", {"User": "65532"})
            described = json.loads((folder / "index.json").read_text())["manifests"][0]
            self.assertEqual(described["digest"], digest)
            blobs = folder / "blobs/sha256"
            self.assertEqual(total, sum(blob.stat().st_size for blob in blobs.iterdir()))
            manifest = json.loads((blobs / digest.removeprefix("sha256:")).read_text())
            for one in [manifest["config"], *manifest["layers"]]:
                self.assertEqual((blobs / one["digest"].removeprefix("sha256:")).stat().st_size, one["size"])


class PackagesTest(unittest.TestCase):
    def test_libraries_and_licences_are_kept_and_programs_are_not(self):
        for path in ["usr/lib/x86_64-linux-gnu/libssl.so.3", "usr/lib64/ld-linux-x86-64.so.2", "usr/share/doc/libssl3/copyright",
                     "usr/share/doc/libstdc++6", "usr/lib/os-release", "etc/debian_version"]:
            self.assertTrue(debian.KEPT.fullmatch(path), path)
        for path in ["usr/bin/openssl", "usr/sbin/ldconfig", "usr/share/doc/libssl3/changelog.gz", "usr/lib/x86_64-linux-gnu/gconv/BIG5.so",
                     "etc/profile", "usr/lib/tmpfiles.d/a.conf"]:
            self.assertFalse(debian.KEPT.fullmatch(path), path)

    def test_a_licence_may_lie_in_another_package(self):
        linked = debian.Package("libstdc++6", "", {"usr/share/doc/libstdc++6": entry(kind=tarfile.SYMTYPE, link="gcc-12-base")})
        self.assertEqual(linked.licence_is_in(), "gcc-12-base")
        self.assertEqual(debian.Package("libc6", "", {}).licence_is_in(), "libc6")


class DocumentTest(unittest.TestCase):
    def test_it_names_binaries_packages_and_what_is_linked_in_once(self):
        with tempfile.TemporaryDirectory() as scratch:
            binaries = pathlib.Path(scratch) / "binaries"
            binaries.mkdir()
            (binaries / "kvatlas-leaf").write_bytes(b"\x7fELF")
            lock = pathlib.Path(scratch) / "Cargo.lock"
            lock.write_text('[[package]]\nname = "ours"\nversion = "0.1.0"\n\n[[package]]\nname = "serde"\nversion = "1.0.2"\nsource = "registry"\n')
            header = pathlib.Path(scratch) / "hiredis.h"
            header.write_text("#define HIREDIS_MAJOR 1\n#define HIREDIS_MINOR 5\n#define HIREDIS_PATCH 0\n#define HIREDIS_SONAME 1.5.0\n")
            control = "Package: libzmq5\nVersion: 4.3.4-6\nArchitecture: amd64\nSource: zeromq3\n"
            document = json.loads(sbom.document("1.2.3", 1000, [debian.Package("libzmq5", control, {})], binaries, lock, header))
        self.assertEqual([one["name"] for one in document["packages"]], ["kvatlas", "libzmq5", "serde", "hiredis"])
        self.assertEqual([one["fileName"] for one in document["files"]], ["./usr/lib/kvatlas/kvatlas-leaf"])
        self.assertIn("pkg:generic/hiredis@1.5.0", json.dumps(document))
        self.assertIn("pkg:deb/debian/libzmq5@4.3.4-6?arch=amd64", json.dumps(document))
        known = {one["SPDXID"] for one in document["packages"] + document["files"]} | {"SPDXRef-DOCUMENT"}
        self.assertEqual(len(known), 6)
        self.assertLessEqual({one["relatedSpdxElement"] for one in document["relationships"]}, known)
        self.assertEqual({one["relationshipType"] for one in document["relationships"]}, {"DESCRIBES", "CONTAINS", "DEPENDS_ON", "STATIC_LINK"})


if __name__ == "__main__":
    unittest.main()
