"""First code of the agent on a host: checks the Python, frees fds 0 and 1, imports the rest from memory.

It must compile on any Python, old ones too, so that those get an answer in words: no annotations, no f-strings.
`nvrun.fleet.bundle` appends the call of `boot`.
"""

import os
import sys
import zlib

PACKAGE = "nvrun_agent"


class FromMemory(object):
    """Finder and loader of the modules that travelled. Sources stay readable for tracebacks; code that the launcher's
    Python compiled is taken where this one is the same, since compiling all that an agent needs takes 40 ms."""

    def __init__(self, names, sources, codes):
        self.names, self.packed, self.codes = names, sources, codes
        self.sources = None

    def find_spec(self, name, path=None, target=None):
        if name not in self.names:
            return None
        from importlib.machinery import ModuleSpec

        package = any(other.startswith(name + ".") for other in self.names)
        origin = "nvrun-agent/" + name.replace(".", "/") + ".py"
        spec = ModuleSpec(name, self, origin=origin, is_package=package)  # type: ignore[arg-type]  # duck-typed for Python 2
        spec.has_location = True
        return spec

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        import marshal

        code = self.codes.get(module.__name__)
        if code is None:
            code = compile(self.get_source(module.__name__), module.__spec__.origin, "exec")
        else:
            code = marshal.loads(zlib.decompress(code))
        exec(code, module.__dict__)

    def get_source(self, name):
        if self.sources is None:
            import json

            self.sources = json.loads(zlib.decompress(self.packed).decode("utf-8"))
        return self.sources[name]


def travelled(read):
    """The modules behind this one: their names; their sources; for which Python their code is, and that code."""

    def block():
        return read(int(read(8), 16))

    import marshal
    from importlib.util import MAGIC_NUMBER

    names, sources, python, codes = block().decode().split(), block(), block(), block()
    ours = python == sys.implementation.cache_tag.encode() + MAGIC_NUMBER
    return FromMemory(frozenset(names), sources, marshal.loads(codes) if ours else {})


def boot(read):
    """`read` takes so many bytes of the input and not one more."""
    if sys.version_info < (3, 9):
        found = "Python %d.%d.%d at %s" % (tuple(sys.version_info[:3]) + (sys.executable,))
        node = os.environ.get("SLURMD_NODENAME", "")  # srun merges the answers of its tasks
        refusal = '{"t":"refused","node":"%s","why":"needs Python 3.9 or newer, found %s"}' % (node, found)
        os.write(1, ("\n\x02ffffj.%s\n" % refusal).encode())
        sys.exit(1)
    sys.meta_path.insert(0, travelled(read))
    # From here on no child can eat the protocol's bytes and no stray print can corrupt them.
    into, out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    main = __import__(PACKAGE + ".main", fromlist=["main"])
    main.main(into, out)
