"""Which headers of the C++ library and of Abseil does a file need, and has it? Sources are compiled behind a precompiled header
(tools/bazel/precompiled.h), so that the compiler does not miss what they forget to include; this does.

A name asks for its header. A file has what it includes, and what the repository's headers that it includes have. Text alone is
read: a name in a comment or a string does not count, one behind a macro or an alias is not seen.
"""

import re

# header: the names of it that our sources use, as a regular expression behind `std::` or `absl::`.
STD = {
    "algorithm": r"(?:ranges::)?(?:sort|stable_sort|partial_sort|nth_element|find_if|find_if_not|any_of|all_of|none_of|count_if|clamp|"
                 r"lower_bound|upper_bound|equal_range|binary_search|copy_if|fill_n|remove_if|reverse|rotate|shuffle|unique|merge|"
                 r"min_element|max_element|set_intersection|set_difference|set_union|is_sorted|transform)\s*\(",
    "array": r"array\s*<",
    "atomic": r"(?:atomic\s*<|atomic_flag|atomic_bool|atomic_thread_fence|memory_order)",
    "bit": r"(?:popcount|countr_zero|countl_zero|bit_width|bit_ceil|bit_floor|bit_cast|rotl|rotr|has_single_bit|endian)\b",
    "charconv": r"(?:from_chars|to_chars|chars_format)\b",
    "chrono": r"chrono::",
    "cmath": r"(?:sqrt|log2|log10|exp2|isfinite|isnan|isinf|lround|llround|fabs|floor|ceil)\s*\(",
    "condition_variable": r"condition_variable",
    "deque": r"deque\s*<",
    "filesystem": r"filesystem\b",
    "fstream": r"(?:ifstream|ofstream|fstream)\b",
    "functional": r"(?:function\s*<|hash\s*<|greater\b|less\s*<|equal_to\b|invoke\b|bind_front\b)",
    "iterator": r"(?:back_inserter|istreambuf_iterator|make_move_iterator|inserter|distance|advance)\b",
    "limits": r"numeric_limits\s*<",
    "list": r"list\s*<",
    "map": r"(?:multi)?map\s*<",
    "memory": r"(?:unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared|enable_shared_from_this|allocator)\b",
    "mutex": r"(?:mutex|lock_guard|unique_lock|scoped_lock|once_flag|call_once)\b",
    "numeric": r"(?:accumulate|iota|partial_sum|exclusive_scan|reduce|gcd)\s*\(",
    "optional": r"(?:optional\s*<|nullopt\b|make_optional\b)",
    "random": r"(?:mt19937|mt19937_64|random_device|(?:uniform|normal|exponential|discrete|bernoulli|lognormal)\w*_distribution)\b",
    "set": r"(?:multi)?set\s*<",
    "span": r"(?:span\s*[<(]|as_bytes\s*\()",
    "sstream": r"(?:o|i)?stringstream\b",
    "string": r"(?:string\b(?!_view)|to_string\s*\(|getline\s*\(|stoi\s*\()",
    "string_view": r"string_view\b",
    "thread": r"(?:jthread|thread\b|this_thread::)",
    "tuple": r"(?:tuple\s*<|tie\s*\(|make_tuple\s*\()",
    "unordered_map": r"unordered_map\s*<",
    "unordered_set": r"unordered_set\s*<",
    "variant": r"(?:variant\s*<|visit\s*\(|get_if\s*<|holds_alternative\s*<|monostate\b)",
    "vector": r"vector\s*<",
}
ABSL = {
    "absl/container/flat_hash_map.h": r"flat_hash_map\s*<",
    "absl/container/flat_hash_set.h": r"flat_hash_set\s*<",
    "absl/status/status.h": r"(?:Status\b|\w+Error\s*\(|OkStatus\s*\(|StatusCode)",
    "absl/status/statusor.h": r"StatusOr\s*<",
    "absl/strings/numbers.h": r"(?:SimpleAto\w+)\s*\(",
    "absl/strings/str_cat.h": r"(?:StrCat|StrAppend)\s*\(",
    "absl/strings/str_join.h": r"StrJoin\s*\(",
    "absl/strings/str_split.h": r"(?:StrSplit|ByChar|ByString|SkipEmpty)\s*\(",
}

# What a header promises to have, or what has it by the language: a stream is of strings, a container has its iterators.
BRINGS = {
    "string": ["string_view", "iterator"],
    "vector": ["iterator"],
    "map": ["tuple", "iterator"],
    "set": ["iterator"],
    "deque": ["iterator"],
    "array": ["iterator"],
    "span": ["iterator"],
    "string_view": ["iterator"],
    "sstream": ["string"],
    "fstream": ["string"],
    "iostream": ["string"],
    "filesystem": ["string", "chrono"],
    "thread": ["chrono"],
    "mutex": ["chrono"],
    "condition_variable": ["mutex", "chrono"],
    "unordered_map": ["tuple", "functional"],
    "unordered_set": ["functional"],
    "absl/status/status.h": ["string", "functional"],
    "absl/status/statusor.h": ["absl/status/status.h"],
    "absl/strings/str_cat.h": ["string"],
    "absl/strings/str_join.h": ["string"],
    "absl/strings/str_split.h": ["vector"],
    "absl/container/flat_hash_map.h": ["functional"],
    "absl/container/flat_hash_set.h": ["functional"],
}
# Of others' libraries, by the beginning of a path: their interfaces are made of these.
BRINGS_OF_LIBRARIES = {
    "absl/": ["string", "string_view"],
    "gtest/": ["string", "memory", "ostream", "sstream", "vector", "tuple", "set", "limits"],
    "gmock/": ["gtest/gtest.h", "functional", "map", "algorithm"],
    "grpcpp/": ["string", "memory", "vector", "functional", "map", "mutex"],
    "google/protobuf/": ["string", "map", "memory", "vector"],
    "boost/": ["string", "memory", "functional", "chrono"],
    "nlohmann/": ["string", "map", "vector", "memory", "functional"],
    "msgpack": ["string", "vector", "map", "memory"],
    "prometheus/": ["string", "map", "memory", "vector"],
    "benchmark/": ["string", "vector"],
    "simdjson": ["string", "string_view", "optional", "vector"],
    "CLI/": ["string", "vector", "functional", "memory", "map", "optional"],
    "toml++/": ["string", "vector", "optional", "memory", "map", "string_view"],
}

_INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.MULTILINE)
_COMMENT_OR_STRING = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.DOTALL)
_NEEDS = [(header, re.compile(r"\bstd::" + names)) for header, names in STD.items()] + \
    [(header, re.compile(r"\babsl::" + names)) for header, names in ABSL.items()]


class Includes:
    """What the files of a tree include. `text(path)` is a file's text, `paths` all of them."""

    def __init__(self, paths, text):
        self._paths = set(paths)
        self._text = text
        self._of_header = {}

    def _system(self, header, into):
        if header in into:
            return
        into.add(header)
        brought = list(BRINGS.get(header, []))
        for beginning, headers in BRINGS_OF_LIBRARIES.items():
            if header.startswith(beginning):
                brought += headers
        for other in brought:
            self._system(other, into)

    def _all(self, path):
        """The system headers that `path` has."""
        if path in self._of_header:
            return self._of_header[path]
        found = self._of_header[path] = set()  # a cycle ends here
        for header in _INCLUDE.findall(self._text(path)):
            if header in self._paths:
                found |= self._all(header)
            elif header.endswith((".pb.h",)):
                self._system("google/protobuf/message.h", found)
                if header.endswith(".grpc.pb.h"):
                    self._system("grpcpp/grpcpp.h", found)
            else:
                self._system(header, found)
        return found

    def missing(self, path):
        """(line, name, header) of each header that `path` needs and has not."""
        had = self._all(path)
        text = _COMMENT_OR_STRING.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), self._text(path))
        for header, names in _NEEDS:
            if header in had:
                continue
            found = names.search(text)
            if found:
                yield text.count("\n", 0, found.start()) + 1, found[0].rstrip("<( \t"), header
