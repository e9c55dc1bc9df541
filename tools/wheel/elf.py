"""What a shared library needs, shows and demands, read from the file itself; and one change that patchelf cannot make."""

import struct
from dataclasses import dataclass, field

_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_NEEDED, _DT_STRTAB, _DT_SYMTAB, _DT_SONAME, _DT_RPATH, _DT_RUNPATH, _DT_GNU_HASH = 1, 5, 6, 14, 15, 29, 0x6FFFFEF5
_DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFFE, 0x6FFFFFFF
_SHT_DYNSYM = 11
_STB_WEAK, _STB_GNU_UNIQUE = 2, 10


@dataclass
class Elf:
    needed: list = field(default_factory=list)
    soname: str = ""
    runpath: str = ""
    versions: dict = field(default_factory=dict)  # library: the versions of its symbols that are demanded


def _headers(data, offset_at, size_at, count_at, form):
    start, = struct.unpack_from("<Q", data, offset_at)
    size, = struct.unpack_from("<H", data, size_at)
    count, = struct.unpack_from("<H", data, count_at)
    return [struct.unpack_from(form, data, start + i * size) for i in range(count)]


def _check(data, path):
    if data[:6] != b"\x7fELF\x02\x01":
        raise ValueError(f"{path}: not a 64-bit little-endian ELF file")


def read(path):
    with open(path, "rb") as file:
        data = file.read()
    _check(data, path)
    segments = _headers(data, 32, 54, 56, "<IIQQQQQQ")  # type, flags, offset, address, _, bytes in file, …
    loads = [s for s in segments if s[0] == _PT_LOAD]

    def at(address):
        for _, _, offset, start, _, size, _, _ in loads:
            if start <= address < start + size:
                return offset + address - start
        raise ValueError(f"{path}: address {address:#x} is in no segment")

    tags = []
    for kind, _, offset, _, _, size, _, _ in segments:
        if kind == _PT_DYNAMIC:
            tags = list(struct.iter_unpack("<QQ", data[offset:offset + size]))
    values = dict(tags)
    strings = at(values[_DT_STRTAB])

    def text(offset):
        return data[strings + offset:data.index(b"\0", strings + offset)].decode()

    elf = Elf(needed=[text(value) for tag, value in tags if tag == _DT_NEEDED])
    elf.soname = text(values[_DT_SONAME]) if _DT_SONAME in values else ""
    for tag in (_DT_RPATH, _DT_RUNPATH):
        if tag in values:
            elf.runpath = text(values[tag])
    if _DT_VERNEED in values:
        entry = at(values[_DT_VERNEED])
        for _ in range(values[_DT_VERNEEDNUM]):
            _, count, file, aux, following = struct.unpack_from("<HHIII", data, entry)
            names, aux_at = [], entry + aux
            for _ in range(count):
                _, _, _, name, next_aux = struct.unpack_from("<IHHII", data, aux_at)
                names.append(text(name))
                aux_at += next_aux
            elf.versions.setdefault(text(file), []).extend(names)
            entry += following
    return elf


def make_unique_symbols_weak(path):
    """STB_GNU_UNIQUE symbols (statics of inline functions and templates) are one for the whole process, RTLD_LOCAL or not:
    those of another gRPC in the process would be taken for ours. As weak ones they stay within our libraries. Returns how
    many there were."""
    with open(path, "r+b") as file:
        data = bytearray(file.read())
        _check(data, path)
        changed = 0
        for section in _headers(data, 40, 58, 60, "<IIQQQQIIQQ"):  # name, type, flags, address, offset, size, …, entry
            if section[1] != _SHT_DYNSYM:
                continue
            for symbol in range(section[4], section[4] + section[5], section[9]):
                info = data[symbol + 4]
                if info >> 4 == _STB_GNU_UNIQUE:
                    data[symbol + 4] = _STB_WEAK << 4 | info & 15
                    changed += 1
        file.seek(0)
        file.write(data)
    return changed
