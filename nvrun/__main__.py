"""`python -m nvrun` and the console script."""

from __future__ import annotations

import os
import sys


def main() -> None:
    from nvrun.cli import main as run

    try:
        code = run(sys.argv[1:], dict(os.environ))
        sys.stdout.flush()
    except BrokenPipeError:  # `nvrun ... | head`: nobody reads any more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 141
    sys.exit(code)


if __name__ == "__main__":
    main()
