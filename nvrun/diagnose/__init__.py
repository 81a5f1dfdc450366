"""Rules over logs, exits and facts -> findings, the likely cause first.

Pure: lines in, `model.Finding`s out. `scan` reads one source, `judge` puts sources together, `page` prints.
"""

from __future__ import annotations

from nvrun.diagnose.judge import diagnose
from nvrun.diagnose.scan import Source

__all__ = ["Source", "diagnose"]
