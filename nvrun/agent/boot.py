"""First code of the agent on a host: checks the Python, frees fds 0 and 1, imports the rest from memory.

It must compile on any Python, old ones too, so that those get an answer in words: no annotations, no f-strings.
`nvrun.fleet.bundle` appends the call of `boot` with the modules' sources.
"""

import os
import sys

PACKAGE = "nvrun_agent"


class FromMemory(object):
    """Finder and loader of the modules that travelled; sources stay readable for tracebacks."""

    def __init__(self, sources):
        self.sources = sources

    def find_spec(self, name, path=None, target=None):
        if name not in self.sources:
            return None
        from importlib.machinery import ModuleSpec

        package = any(other.startswith(name + ".") for other in self.sources)
        origin = "nvrun-agent/" + name.replace(".", "/") + ".py"
        spec = ModuleSpec(name, self, origin=origin, is_package=package)  # type: ignore[arg-type]  # duck-typed for Python 2
        spec.has_location = True
        return spec

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        source = self.sources[module.__name__]
        exec(compile(source, module.__spec__.origin, "exec"), module.__dict__)

    def get_source(self, name):
        return self.sources[name]


def boot(sources):
    if sys.version_info < (3, 9):
        found = "Python %d.%d.%d at %s" % (tuple(sys.version_info[:3]) + (sys.executable,))
        node = os.environ.get("SLURMD_NODENAME", "")  # srun merges the answers of its tasks
        refusal = '{"t":"refused","node":"%s","why":"needs Python 3.9 or newer, found %s"}' % (node, found)
        os.write(1, ("\n\x02ffffj.%s\n" % refusal).encode())
        sys.exit(1)
    sys.meta_path.insert(0, FromMemory(sources))
    # From here on no child can eat the protocol's bytes and no stray print can corrupt them.
    into, out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    main = __import__(PACKAGE + ".main", fromlist=["main"])
    main.main(into, out)
