"""Stand-ins for what an engine imports and its cache never uses: torch, CUDA, models, kernels.

The schedulers and block pools of inference engines are plain Python, but importing them imports everything
else. `install()` adds a finder behind Python's own: a module that no other finder has becomes a stub whose
attributes are inert classes. What the code under test really computes with must therefore be installed; a
stub that is used for more than an annotation, a base class, a decorator or a registry does nothing.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import types


# Names of stubs that were called, at import or later: for who wonders whether one mattered.
CALLED = set()


class _InertMeta(type):
    """Classes that can be subscripted, called, compared, iterated (empty) and asked for any attribute."""

    def __getattr__(cls, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        value = _inert(name)
        setattr(cls, name, value)
        return value

    def __getitem__(cls, item):
        return cls

    def __iter__(cls):
        return iter(())

    def __or__(cls, other):
        return cls

    __ror__ = __or__

    def __len__(cls):
        return 0

    def __bool__(cls):
        return False

    def __hash__(cls):
        return type.__hash__(cls)

    def __add__(cls, other):
        return other

    def __radd__(cls, other):
        return other

    def __lt__(cls, other):
        return False

    __le__ = __gt__ = __ge__ = __lt__


def _inert(name):
    def new(cls, *args, **kwargs):
        CALLED.add(name)
        # As a decorator: what is decorated stays as it is.
        if cls.__dict__.get("_is_stub") and len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        if cls.__dict__.get("_is_stub"):
            return _decorator_or_inert(cls)
        return object.__new__(cls)

    return _InertMeta(name, (), {"__new__": new, "__init__": lambda self, *a, **k: None,
                                 "__getattr__": _instance_getattr, "_is_stub": True})


def _instance_getattr(self, name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _inert(name)


def _decorator_or_inert(cls):
    """What `stub(...)` gives: usable as a decorator, as a context manager and as a value."""
    instance = object.__new__(_Value)
    return instance


class _Value:
    def __call__(self, *args, **kwargs):
        if len(args) == 1 and not kwargs and callable(args[0]):
            return args[0]
        return self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False

    def __iter__(self):
        return iter(())

    def __bool__(self):
        return False

    def __getitem__(self, item):
        return self

    def __or__(self, other):
        return self

    __ror__ = __or__


class _StubModule(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if any(os.path.exists(os.path.join(path, name + end))
               for path in self.__path__ for end in (".py", "/__init__.py")):
            return importlib.import_module(f"{self.__name__}.{name}")
        value = _inert(name)
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, never, only, log):
        self.never = never
        self.only = only
        self.log = log

    def find_spec(self, fullname, path=None, target=None):
        package_name = fullname.split(".")[0]
        if package_name in self.never | sys.stdlib_module_names or self.only and package_name not in self.only:
            return None
        parent = fullname.rpartition(".")[0]
        if parent and not isinstance(sys.modules.get(parent), _StubModule):
            return None  # a part that a real package lacks is its own affair
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec):
        self.log.append(spec.name)
        return _StubModule(spec.name)

    def exec_module(self, module):
        module.__path__ = []


def install(never=(), only=()):
    """Stubs what cannot be found from now on, but for the packages in `never`, or those in `only` alone; returns the growing list of
    names."""
    log = []
    sys.meta_path.append(_Finder(frozenset(never), frozenset(only), log))
    return log


def package(name, path):
    """Makes `name` a package whose modules lie in `path`, without running its __init__.py: what that would have
    named is inert."""
    module = _StubModule(name)
    module.__path__ = [str(path)]
    module.__package__ = name
    _place(name, module)
    return module


def _place(name, module):
    sys.modules[name] = module
    parent, _, leaf = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], leaf, module)


def stub(*names):
    """Makes modules inert although they could be found: they need what is not there."""
    for name in names:
        module = _StubModule(name)
        module.__path__ = []
        _place(name, module)
