"""GPU, NIC and NUMA distances of one host, from its facts, from `nvidia-smi topo -m` or from NCCL's XML. Pure."""

from __future__ import annotations

from nvrun.topology.as_facts import as_facts
from nvrun.topology.draw import tree
from nvrun.topology.from_facts import from_facts
from nvrun.topology.matrix import from_matrix
from nvrun.topology.model import Topology
from nvrun.topology.nccl_xml import from_nccl_xml

__all__ = ["Topology", "as_facts", "from_facts", "from_matrix", "from_nccl_xml", "from_text", "tree"]


def from_text(text: str, source: str) -> Topology:
    """The topology in a pasted matrix or in NCCL's XML, whichever it is. UsageError as those two readers raise it."""
    return from_nccl_xml(text, source) if text.lstrip().startswith("<") else from_matrix(text, source)
