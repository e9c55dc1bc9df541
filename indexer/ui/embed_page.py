#!/usr/bin/env python3
"""Writes the C++ source that holds the files of the page: embed_page.py ROOT FILE... > ui_files.cc

ROOT is the folder that the paths start at, as a part of each FILE's path.
"""

import hashlib
import sys

# A literal has at most 65,536 characters in every compiler.
PIECE = 12000


def literal(data):
    pieces = [data[i : i + PIECE] for i in range(0, len(data), PIECE)] or [b""]
    return "\n    ".join('"%s"' % "".join(escaped(byte) for byte in piece) for piece in pieces)


def escaped(byte):
    if byte == 10:
        return "\\n"
    if byte in b'"\\':
        return "\\" + chr(byte)
    if byte == ord("?") or byte < 32 or byte > 126:  # '?' starts trigraphs
        return "\\%03o" % byte
    return chr(byte)


def main():
    root, names = sys.argv[1].rstrip("/") + "/", sys.argv[2:]
    files = []
    for name in names:
        with open(name, "rb") as file:
            files.append((name[name.index(root) + len(root) :], file.read()))
    files.sort()
    version = hashlib.sha256()
    for path, data in files:
        version.update(path.encode() + b"\0%d\0" % len(data) + data)
    print('#include "indexer/ui/ui_files.h"\n\nnamespace kvatlas {\nnamespace {\n')
    for i, (_, data) in enumerate(files):
        print("constexpr char kFile%d[] =\n    %s;\n" % (i, literal(data)))
    print("constexpr UiFile kFiles[] = {")
    for i, (path, data) in enumerate(files):
        print('    {"%s", {kFile%d, %d}},' % (path, i, len(data)))
    print("};\n\n}  // namespace\n")
    print("std::span<const UiFile> UiFiles() { return kFiles; }")
    print('std::string_view UiVersion() { return "%s"; }\n' % version.hexdigest()[:16])
    print("}  // namespace kvatlas")


if __name__ == "__main__":
    main()
