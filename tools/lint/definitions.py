"""What a C++ file defines for the linker: types, functions and inline variables at the scope of a namespace.

A reading by tokens, not a parser: it follows braces, and looks at what stands before each and before a semicolon.
Nothing inside an unnamed namespace is told, nor what is static, nor what lies inside a class or a function.
"""

import re

TOKEN = re.compile(r"""
    (?P<skip> //[^\n]* | /\*.*?\*/ | ^[ \t]*\#(?:[^\n\\]|\\.)* )
  | (?P<text> R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)" | "(?:[^"\\\n]|\\.)*" | (?<![0-9A-Fa-f])'(?:[^'\\\n]|\\.)+' )
  | (?P<stop> [{};] )
""", re.VERBOSE | re.MULTILINE | re.DOTALL)
NAMESPACE = re.compile(r'(?:inline )?namespace ?([\w:]*)|extern ""')
TYPE = re.compile(r"(?:class|struct|union|enum(?: class| struct)?) (?:(?:alignas ?\(.*?\)|[A-Z_]{4,}(?:\(.*?\))?) )*"
                  r"([\w:]+(?: ?<.*?>)?)(?: final)?(?: ?:(?!:).*)?")
# A return type, a name, parameters, and what may follow them.
FUNCTION = re.compile(r"([\w:<>,*& ]+?[\s*&>])(\w+) ?\((.*?)\)(?: const| noexcept| ->.*| requires.*)*")
VARIABLE = re.compile(r"(?:constexpr )?inline [^=(]*?(\w+) ?(?:\[.*?\])?(?: ?=.*)?")


def without_template(head):
    """`head` after `template <...>`."""
    while head.startswith("template"):
        depth = 0
        for at in range(len("template"), len(head)):
            depth += {"<": 1, ">": -1}.get(head[at], 0)
            if depth == 0 and head[at] == ">":
                break
        head = head[at + 1:].strip()
    return head


def types_of(parameters):
    """The parameters without their names and defaults."""
    found, depth, parameter = [], 0, ""
    for letter in parameters + ",":
        depth += {"<": 1, "(": 1, ">": -1, ")": -1}.get(letter, 0)
        if letter != "," or depth:
            parameter += letter
            continue
        parameter = parameter.split("=")[0].strip()
        found.append(re.sub(r"(?<!^)(?<![\w:])\w+$", "", parameter).strip())
        parameter = ""
    return ", ".join(found)


def defined(words, stop):
    """The name of what the words before `stop` define, or None."""
    variable = VARIABLE.fullmatch(words)
    if variable:
        return variable[1]
    if stop != "{":
        return None
    of_type = TYPE.fullmatch(words)
    if of_type:
        return of_type[1].replace(" ", "")
    function = FUNCTION.fullmatch(words)
    if function and not re.search(r"\b(?:static|operator|main)\b", words) and "=" not in function[1]:
        return f"{function[2]}({types_of(function[3])})"
    return None


def definitions(text):
    """(line, full name) of each; that of a function has its parameters' types."""
    scopes = []  # per open brace: the namespace's name, or None for any other
    head, head_at, at = "", 0, 0
    for token in TOKEN.finditer(text):
        between = text[at:token.start()]
        if not head.strip():
            head_at = at + len(between) - len(between.lstrip())
        head += between
        at = token.end()
        if not token["stop"]:
            head += " " if token["skip"] is not None else '""'
            continue
        words = without_template(re.sub(r"\[\[.*?\]\]", "", " ".join(head.split())))
        head = ""
        namespace = NAMESPACE.fullmatch(words)
        if not namespace and None not in scopes:
            name = defined(words, token["stop"])
            if name:
                yield text.count("\n", 0, head_at) + 1, "::".join([*filter(None, scopes), name])
        if token["stop"] == "{":
            # An unnamed one closes like a class: what it holds is not told.
            scopes.append((namespace[1] or ("" if words.startswith("extern") else None)) if namespace else None)
        elif token["stop"] == "}" and scopes:
            scopes.pop()
