"""Every piece of bad advice gets its verdict and its corrected line; healthy environments get none."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nvrun.facts import Address, Cpus, Gid, Gpu, HostFacts, Interface, Network, NvLink, RdmaPort, Software
from nvrun.model import Finding, Severity
from nvrun.nccl import catalogue
from nvrun.nccl.lint import lint_hosts, lint_script, lint_settings
from nvrun.nccl.setting import Setting
from tests.nccl.launcher_lines import NOT_STARTED, STARTED

INFO, WARNING, ERROR = Severity.INFO, Severity.WARNING, Severity.ERROR


def host(
    name: str = "n1",
    *,
    hcas: dict[str, str] | None = None,
    interfaces: tuple[str, ...] = ("eth0", "ib0", "lo"),
    nvswitch: bool | None = True,
    gids: tuple[Gid, ...] = (),
    pkeys: tuple[str, ...] = (),
) -> HostFacts:
    """A host with HCAs (name -> link layer), interfaces that are up, and two GPUs."""
    links = () if nvswitch is None else (NvLink(link=0, active=True, remote_type="switch" if nvswitch else "gpu"),)
    return HostFacts(
        host=name,
        gpus=tuple(
            Gpu(index=i, uuid=f"GPU-{i}", name="NVIDIA H200", pci="0000:01:00.0", nvlinks=links) for i in (0, 1)
        ),
        rdma=tuple(
            RdmaPort(device=device, port=1, link_layer=layer, state="ACTIVE", gids=gids, pkeys=pkeys)
            for device, layer in (hcas or {}).items()
        ),
        network=Network(
            interfaces=tuple(
                Interface(name=each, up=True, addresses=(Address(address="10.0.0.1", prefix=24),))
                for each in interfaces
            )
        ),
    )


IB = {"mlx5_0": "InfiniBand", "mlx5_1": "InfiniBand", "mlx5_10": "InfiniBand"}

VERDICTS: list[tuple[str, str, str, Severity, str]] = [
    # environment, NCCL, code, severity, remedy (or a part of it)
    # names
    ("NCCL_BUFSIZE=4194304", "", "nccl-name-unknown", WARNING, "export NCCL_BUFFSIZE=4194304"),
    ("NCCL_ZZZZZZZZZ=1", "", "nccl-name-unknown", WARNING, "unset NCCL_ZZZZZZZZZ"),
    ("TORCH_NCCL_HEARTBEAT_TIMEOUT=9", "", "nccl-name-unknown", WARNING, "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=9"),
    ("NCCL_NVLS_PATH=/x", "", "nccl-name-invented", WARNING, "NCCL_NVLS_ENABLE"),
    ("NCCL_NVLS_HDR_SIZE=1", "", "nccl-name-invented", WARNING, "NCCL_NVLS_CHUNKSIZE"),
    ("NCCL_NVLS_MEMORY=1", "", "nccl-name-invented", WARNING, "NCCL_NVLS_ENABLE"),
    ("NCCL_ALLREDUCE_ALGO=ctree", "", "nccl-name-invented", WARNING, "NCCL_ALGO"),
    ("NCCL_TIMEOUT=1800", "", "nccl-name-invented", WARNING, "unset NCCL_TIMEOUT"),
    ("NCCL_MIN_CHANNELS=8", "", "nccl-name-invented", WARNING, "export NCCL_MIN_CTAS=8"),
    ("NCCL_MAX_CHANNELS=8", "", "nccl-name-invented", WARNING, "export NCCL_MAX_CTAS=8"),
    ("NCCL_MAX_P2P_PEERS=8", "", "nccl-name-invented", WARNING, "export NCCL_P2P_MAX_PEERS=8"),
    ("NCCL_OFI_PROTOCOL=x", "", "nccl-name-invented", WARNING, "OFI_NCCL_"),
    ("NCCL_BLOCKING_WAIT=1", "", "nccl-name-renamed", WARNING, "export TORCH_NCCL_BLOCKING_WAIT=1"),
    ("NCCL_ASYNC_ERROR_HANDLING=3", "", "nccl-name-renamed", WARNING, "export TORCH_NCCL_ASYNC_ERROR_HANDLING=3"),
    ("NCCL_DESYNC_DEBUG=1", "", "nccl-name-renamed", WARNING, "export TORCH_NCCL_DESYNC_DEBUG=1"),
    ("NCCL_ENABLE_TIMING=1", "", "nccl-name-renamed", WARNING, "export TORCH_NCCL_ENABLE_TIMING=1"),
    ("NCCL_TREE_THRESHOLD=0", "", "nccl-name-removed", WARNING, "NCCL_ALGO"),
    ("NCCL_LL_THRESHOLD=0", "", "nccl-name-removed", WARNING, "NCCL_PROTO"),
    ("NCCL_IB_CUDA_SUPPORT=1", "", "nccl-name-removed", WARNING, "NCCL_NET_GDR_LEVEL"),
    ("NCCL_RINGS=x", "", "nccl-name-removed", WARNING, "NCCL_GRAPH_FILE"),
    ("NCCL_IB_GDR_LEVEL=1", "", "nccl-name-removed", WARNING, "NCCL_NET_GDR_LEVEL"),
    ("NCCL_MNNVL=1", "2.21.5", "nccl-name-removed", WARNING, "NCCL_MNNVL_ENABLE"),
    ("NCCL_WORK_FIFO_DEPTH=1", "2.27.5", "nccl-name-removed", WARNING, "NCCL_WORK_FIFO_BYTES"),
    ("NCCL_CHECKS_DISABLE=1", "", "nccl-name-removed", WARNING, "NCCL_CHECK_MODE"),
    ("NCCL_RAS_ENABLE=1", "2.21.5", "nccl-name-too-new", WARNING, "unset"),
    ("NCCL_MAX_NRINGS=8", "", "nccl-name-deprecated", INFO, "NCCL_MAX_CTAS"),
    ("NCCL_MIN_NCHANNELS=8", "", "nccl-name-deprecated", INFO, "NCCL_MIN_CTAS"),
    ("NCCL_LAUNCH_MODE=GROUP", "", "nccl-debugging-left", INFO, "unset"),
    # numbers
    ("NCCL_BUFFSIZE=4M", "", "nccl-value-misread", ERROR, "export NCCL_BUFFSIZE=4194304"),
    ("NCCL_BUFFSIZE=256K", "", "nccl-value-misread", ERROR, "export NCCL_BUFFSIZE=262144"),
    ("NCCL_BUFFSIZE=1e6", "", "nccl-value-misread", ERROR, "export NCCL_BUFFSIZE=1000000"),
    ("NCCL_BUFFSIZE=8,388,608", "", "nccl-value-misread", ERROR, "export NCCL_BUFFSIZE=8388608"),
    ("NCCL_BUFFSIZE=4194304.0", "", "nccl-value-not-plain", INFO, "export NCCL_BUFFSIZE=4194304"),
    ("NCCL_MAX_CTAS=010", "", "nccl-value-misread", ERROR, "export NCCL_MAX_CTAS=10"),
    ("NCCL_IB_DISABLE=true", "", "nccl-value-misread", ERROR, "export NCCL_IB_DISABLE=1"),
    ("NCCL_IB_DISABLE=off", "", "nccl-value-not-plain", INFO, "export NCCL_IB_DISABLE=0"),
    ("NCCL_P2P_DISABLE=yes", "", "nccl-value-misread", ERROR, "export NCCL_P2P_DISABLE=1"),
    ("NCCL_NVLS_ENABLE=true", "", "nccl-value-misread", ERROR, "export NCCL_NVLS_ENABLE=2"),
    ("NCCL_IB_TIMEOUT=long", "", "nccl-value-misread", ERROR, "unset"),
    ('NCCL_IB_TIMEOUT="22"', "", "nccl-value-quoted", ERROR, "export NCCL_IB_TIMEOUT=22"),
    ("NCCL_BUFFSIZE=99999999999999999999", "", "nccl-value-overflow", WARNING, "unset"),
    ("NCCL_BUFFSIZE=65536", "", "nccl-value-range", ERROR, "unset"),
    ("NCCL_BUFFSIZE=2147483648", "", "nccl-value-range", ERROR, "unset"),
    ("NCCL_BUFFSIZE=5000000", "", "nccl-value-power-of-two", WARNING, "export NCCL_BUFFSIZE=4194304"),
    ("NCCL_WORK_FIFO_BYTES=1000000", "", "nccl-value-power-of-two", WARNING, "=524288"),
    ("NCCL_IB_TIMEOUT=60", "", "nccl-value-range", WARNING, "unset"),
    ("NCCL_IB_RETRY_CNT=10", "", "nccl-value-range", WARNING, "unset"),
    ("NCCL_IB_QPS_PER_CONNECTION=256", "", "nccl-value-range", ERROR, "unset"),
    ("NCCL_SOCKET_NTHREADS=32", "", "nccl-value-range", WARNING, "unset"),
    ("NCCL_MAX_CTAS=64", "2.21.5", "nccl-value-range", WARNING, "unset"),
    ("NCCL_NTHREADS=100", "", "nccl-value-warp", WARNING, "export NCCL_NTHREADS=96"),
    ("NCCL_CROSS_NIC=3", "", "nccl-value-range", WARNING, "unset"),
    ("CUDA_DEVICE_MAX_CONNECTIONS=64", "", "nccl-value-range", WARNING, "unset"),
    ("HOROVOD_FUSION_THRESHOLD=64MB", "", "value-not-a-number", WARNING, "export HOROVOD_FUSION_THRESHOLD=67108864"),
    ("NCCL_SET_THREAD_NAME=yes", "2.30.7", "nccl-value-choice", WARNING, "export NCCL_SET_THREAD_NAME=1"),
    ("NCCL_SET_THREAD_NAME=true", "2.27.5", "nccl-value-misread", ERROR, "export NCCL_SET_THREAD_NAME=1"),
    ("TORCH_NCCL_BLOCKING_WAIT=on", "", "torch-value-raises", ERROR, "export TORCH_NCCL_BLOCKING_WAIT=1"),
    ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=480s", "", "torch-value-suffix", WARNING, "=480"),
    ("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=ten", "", "torch-value-raises", ERROR, "unset"),
    ("NCCL_PROXY_CPUSET=0-3", "", "nccl-value-misread", ERROR, "export NCCL_PROXY_CPUSET=0,1,2,3"),
    # words and levels
    ("NCCL_DEBUG=INFOO", "", "nccl-value-choice", WARNING, "export NCCL_DEBUG=INFO"),
    ("NCCL_DEBUG_SUBSYS=INIT,NETT", "", "nccl-value-choice", WARNING, "export NCCL_DEBUG_SUBSYS=INIT,NET"),
    ("NCCL_DEBUG_SUBSYS=", "", "nccl-value-empty", WARNING, "unset"),
    ("NCCL_DEBUG_SUBSYS=RAS", "2.21.5", "nccl-choice-too-new", WARNING, "unset"),
    ("NCCL_P2P_LEVEL=pxb", "", "nccl-value-choice", WARNING, "export NCCL_P2P_LEVEL=PXB"),
    ("NCCL_P2P_LEVEL=NODE", "", "nccl-value-choice", WARNING, "unset"),
    ("NCCL_P2P_LEVEL=P2C", "2.26.2", "nccl-choice-too-new", WARNING, "unset"),
    ("NCCL_NET_GDR_LEVEL=5", "", "nccl-level-number", WARNING, "export NCCL_NET_GDR_LEVEL=SYS"),
    ("NCCL_NET_GDR_LEVEL=2", "", "nccl-level-number", WARNING, "export NCCL_NET_GDR_LEVEL=PXB"),
    ("NCCL_NET_GDR_LEVEL=-1", "", "nccl-value-choice", WARNING, "unset"),
    ("NCCL_NET_MERGE_LEVEL=port", "", "nccl-value-choice", WARNING, "export NCCL_NET_MERGE_LEVEL=PORT"),
    ("NCCL_SOCKET_FAMILY=af_inet6", "", "nccl-value-choice", WARNING, "export NCCL_SOCKET_FAMILY=AF_INET6"),
    ("NCCL_IB_ADDR_RANGE=10.0.0.0-16", "", "nccl-value-choice", WARNING, "unset"),
    ("NCCL_NETDEVS_POLICY=MAX", "", "nccl-value-choice", WARNING, "unset"),
    ("TORCH_DISTRIBUTED_DEBUG=DETAILS", "", "nccl-value-choice", ERROR, "export TORCH_DISTRIBUTED_DEBUG=DETAIL"),
    ("NCCL_RAS_ADDR=28028", "", "nccl-value-address", ERROR, "unset"),
    ("NCCL_RAS_ADDR=::1:28028", "", "nccl-value-address", ERROR, "unset"),
    ("NCCL_THREAD_THRESHOLDS=1,2,3,4,5,6", "", "nccl-value-choice", WARNING, "'1 2 3 4 5 6'"),
    ("NCCL_NET_PLUGIN=ofi,ucx", "2.21.5", "nccl-choice-too-new", WARNING, "export NCCL_NET_PLUGIN=ofi"),
    # lists
    ("NCCL_IB_HCA=^mlx5_0,^mlx5_1", "", "nccl-list-signs", ERROR, "mlx5_0,mlx5_1"),
    ("NCCL_IB_HCA==^mlx5_0", "", "nccl-list-signs", ERROR, "^=mlx5_0"),
    ("NCCL_IB_HCA=mlx5_0, mlx5_1", "", "nccl-list-blank", ERROR, "export NCCL_IB_HCA=mlx5_0,mlx5_1"),
    ("NCCL_IB_HCA=mlx5_0:", "", "nccl-list-port", ERROR, "export NCCL_IB_HCA=mlx5_0"),
    ("NCCL_IB_HCA=^=mlx5_0:1,mlx5_1:x", "", "nccl-list-port", ERROR, "'^=mlx5_0:1,mlx5_1'"),
    ("NCCL_IB_HCA=mlx5_0:0", "", "nccl-list-port", ERROR, "export NCCL_IB_HCA=mlx5_0"),
    ("NCCL_SOCKET_IFNAME=e", "", "nccl-list-short", WARNING, "unset"),
    ("NCCL_IB_HCA=" + ",".join(f"mlx5_{i}" for i in range(33)), "", "nccl-list-long", WARNING, "fewer"),
    ("NCCL_SOCKET_IFNAME=" + ",".join(f"eth{i}" for i in range(17)), "", "nccl-list-long", WARNING, "fewer"),
    ("NCCL_IB_HCA==mlx5_0:1:0", "2.28.9", "nccl-choice-too-new", WARNING, "devices and ports"),
    ("GLOO_SOCKET_IFNAME=^lo", "", "interface-list-signs", ERROR, "unset"),
    ("GLOO_SOCKET_IFNAME==eth0", "", "interface-list-signs", ERROR, "export GLOO_SOCKET_IFNAME=eth0"),
    # algorithms
    ("NCCL_ALGO=Tree", "2.27.5", "nccl-algo-leaves-none", ERROR, "export NCCL_ALGO=allreduce:tree,ring"),
    ("NCCL_ALGO=Tree", "", "nccl-algo-leaves-none", WARNING, "export NCCL_ALGO=allreduce:tree,ring"),
    ("NCCL_ALGO=NVLS", "2.27.5", "nccl-algo-leaves-none", ERROR, "export NCCL_ALGO=allreduce:nvls,ring"),
    ("NCCL_ALGO=^Ring", "2.27.5", "nccl-algo-leaves-none", ERROR, "add ring"),
    ("NCCL_ALGO=broadcast:tree", "2.27.5", "nccl-algo-leaves-none", ERROR, "add ring"),
    ("NCCL_ALGO=allreduce:tree,ring", "2.21.5", "nccl-algo-syntax", ERROR, "export NCCL_ALGO=tree,ring"),
    ("NCCL_ALGO=Ring;Tree", "2.27.5", "nccl-algo-syntax", ERROR, "unset"),
    ("NCCL_ALGO=Rings", "2.27.5", "nccl-algo-word", ERROR, "export NCCL_ALGO=Ring"),
    ("NCCL_ALGO=Rings", "2.21.5", "nccl-algo-word", WARNING, "export NCCL_ALGO=Ring"),
    ("NCCL_ALGO=alltoall:ring", "2.27.5", "nccl-algo-word", ERROR, "unset"),
    ("NCCL_ALGO=Ring,PAT", "2.21.5", "nccl-choice-too-new", WARNING, "unset"),
    ("NCCL_PROTO=LL129", "2.27.5", "nccl-algo-word", ERROR, "export NCCL_PROTO=LL128"),
    ("NCCL_ALGO=Ring", "2.27.5", "nccl-algo-excludes-nvls", INFO, "nvls,nvlstree"),
    ("NCCL_ALGO=CollNetDirect,Ring", "2.27.5", "nccl-no-effect", WARNING, "NCCL_COLLNET_ENABLE=1"),
    # together
    ("NCCL_P2P_DISABLE=0", "", "nccl-p2p-not-forced", INFO, "NCCL_P2P_LEVEL"),
    ("NCCL_P2P_DISABLE=1", "", "nccl-debugging-left", WARNING, "unset"),
    ("NCCL_P2P_DISABLE=1 NCCL_P2P_LEVEL=NVL", "", "nccl-no-effect", WARNING, "unset NCCL_P2P_LEVEL"),
    ("NCCL_SHM_DISABLE=1", "", "nccl-debugging-left", INFO, "unset"),
    ("NCCL_CHECK_POINTERS=1", "", "nccl-debugging-left", INFO, "unset"),
    ("NCCL_PROTO=Simple", "", "nccl-debugging-left", INFO, "unset"),
    ("CUDA_LAUNCH_BLOCKING=1", "", "nccl-debugging-left", WARNING, "unset"),
    ("NCCL_NSOCKS_PERTHREAD=4", "", "nccl-sockets-without-threads", WARNING, "NCCL_SOCKET_NTHREADS=2"),
    ("NCCL_SOCKET_NTHREADS=16 NCCL_NSOCKS_PERTHREAD=8", "", "nccl-sockets-too-many", WARNING, "PERTHREAD=4"),
    ("NCCL_SOCKET_NTHREADS=4 NCCL_NET=IB", "", "nccl-no-effect", INFO, "unset NCCL_SOCKET_NTHREADS"),
    ("NCCL_SOCKET_NTHREADS=4 FI_PROVIDER=efa", "", "nccl-no-effect", INFO, "unset NCCL_SOCKET_NTHREADS"),
    ("NCCL_IB_GID_INDEX=3", "2.27.5", "nccl-gid-index-pinned", WARNING, "unset NCCL_IB_GID_INDEX"),
    ("NCCL_IB_GID_INDEX=3 NCCL_IB_ROCE_VERSION_NUM=2", "", "nccl-no-effect", WARNING, "unset NCCL_IB_GID_INDEX"),
    ("NCCL_IB_DISABLE=1 NCCL_IB_HCA=mlx5", "", "nccl-no-effect", WARNING, "unset NCCL_IB_HCA"),
    ("NCCL_NET=Socket NCCL_IB_TIMEOUT=22", "", "nccl-no-effect", WARNING, "unset NCCL_IB_TIMEOUT"),
    ("NCCL_NET=IB NCCL_IB_DISABLE=1", "", "nccl-net-contradiction", ERROR, "unset NCCL_IB_DISABLE"),
    ("NCCL_IB_SPLIT_DATA_ON_QPS=1", "", "nccl-no-effect", INFO, "NCCL_IB_QPS_PER_CONNECTION=2"),
    ("NCCL_OOB_NET_IFNAME=eth0", "", "nccl-no-effect", WARNING, "export NCCL_OOB_NET_ENABLE=1"),
    ("NCCL_MIN_CTAS=32 NCCL_MAX_CTAS=16", "", "nccl-min-above-max", WARNING, "export NCCL_MIN_CTAS=16"),
    ("NCCL_MIN_CTAS=8 NCCL_MIN_NCHANNELS=4", "", "nccl-two-names", INFO, "unset NCCL_MIN_NCHANNELS"),
    ("NCCL_MNNVL_ENABLE=1 NCCL_CUMEM_ENABLE=0", "", "nccl-no-effect", WARNING, "unset NCCL_CUMEM_ENABLE"),
    ("NCCL_MNNVL_ENABLE=1 NCCL_P2P_DISABLE=1", "", "nccl-no-effect", WARNING, "unset NCCL_P2P_DISABLE"),
    ("NCCL_NVLS_ENABLE=1", "", "nccl-nvls-unasked", INFO, "unset"),
    ("NCCL_GRAPH_STREAM_ORDERING=0 NCCL_GRAPH_MIXING_SUPPORT=1", "", "nccl-no-effect", WARNING, "MIXING_SUPPORT=0"),
    ("NCCL_DEBUG=INFO NCCL_DEBUG_FILE=/tmp/log", "", "nccl-debug-file-shared", WARNING, "/tmp/log.%h.%p"),
    ("NCCL_DEBUG_FILE=/tmp/%p", "", "nccl-no-effect", WARNING, "export NCCL_DEBUG=INFO"),
    ("NCCL_DEBUG_SUBSYS=NET", "", "nccl-no-effect", WARNING, "export NCCL_DEBUG=INFO"),
    ("NCCL_COMM_ID=10.0.0.1:1234", "", "nccl-comm-id-set", ERROR, "unset"),
    ("NCCL_P2P_NET_CHUNKSIZE=1048576", "", "nccl-chunk-capped", INFO, "=524288"),
    ("NCCL_IB_AR_THRESHOLD=8388608", "", "nccl-adaptive-routing-off", WARNING, "unset"),
    ("CUDA_DEVICE_ORDER=PCI_BUS_ID", "", "cuda-device-order-only-numbers", INFO, "topology"),
    ("RDMAV_FORK_SAFE=1", "", "efa-outdated", INFO, "unset"),
    ("TORCH_NCCL_BLOCKING_WAIT=1 TORCH_NCCL_DESYNC_DEBUG=1", "", "torch-no-effect", WARNING, "unset"),
    ("TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_FR_BUFFER_SIZE=0", "", "torch-no-effect", WARNING, "=2000"),
    ("TORCH_NCCL_ASYNC_ERROR_HANDLING=1", "", "torch-dump-lost", INFO, "=3"),
    # beside NCCL
    ("MASTER_PORT=70000", "", "nccl-value-range", WARNING, "unset MASTER_PORT"),
    ("MASTER_PORT=0", "", "nccl-value-range", WARNING, "unset MASTER_PORT"),
    ("MASTER_PORT=29500x", "", "value-not-a-number", WARNING, "unset MASTER_PORT"),
    ("MASTER_PORT=40000", "", "master-port-unsafe", WARNING, "export MASTER_PORT=29500"),
    ("MASTER_PORT=80", "", "master-port-unsafe", WARNING, "export MASTER_PORT=29500"),
    ("OMP_NUM_THREADS=0", "", "value-not-a-number", WARNING, "unset OMP_NUM_THREADS"),
    ("OMP_NUM_THREADS=-2", "", "value-not-a-number", WARNING, "unset OMP_NUM_THREADS"),
    ("OMP_NUM_THREADS=auto", "", "value-not-a-number", WARNING, "unset OMP_NUM_THREADS"),
]


def variables(text: str) -> dict[str, str]:
    """`A=1 B=2` as a mapping; a word without `=` belongs to the value before it."""
    found: dict[str, str] = {}
    for word in text.split(" "):
        name, equals, value = word.partition("=")
        if equals and name.isupper():
            found[name] = value
        else:
            last = next(reversed(found))
            found[last] += " " + word
    return found


def lint(given: Mapping[str, str], *, nccl: str | None = None, facts: HostFacts | None = None) -> list[Finding]:
    settings = [Setting(name=name, value=value, where="environment") for name, value in given.items()]
    return lint_settings(settings, nccl=nccl, facts=facts)


def coded(findings: list[Finding], code: str) -> list[Finding]:
    return [finding for finding in findings if finding.code == code]


@pytest.mark.parametrize(
    ("environment", "nccl", "code", "severity", "remedy"), VERDICTS, ids=lambda value: str(value)[:40]
)
def test_verdict(environment: str, nccl: str, code: str, severity: Severity, remedy: str) -> None:
    (finding,) = coded(lint(variables(environment), nccl=nccl or None), code)
    assert finding.severity == severity
    assert remedy in finding.remedy
    assert finding.evidence[0].startswith("environment: ")


@pytest.mark.parametrize("row", VERDICTS, ids=lambda row: str(row[0])[:40])
def test_the_line_to_paste_cures(row: tuple[str, str, str, Severity, str]) -> None:
    """Doing what the remedy says, where it is one shell line, removes the finding and brings no worse one."""
    environment, nccl, code, severity, _ = row
    given_ = variables(environment)
    (finding,) = coded(lint(given_, nccl=nccl or None), code)
    verb, _, rest = finding.remedy.partition(" ")
    if verb == "export":
        assignments = dict(word.split("=", 1) for word in shlex.split(rest))
        renamed = finding.code in ("nccl-name-unknown", "nccl-name-invented", "nccl-name-renamed")
        given_ = {name: value for name, value in given_.items() if not (renamed and name == finding.subject)}
        given_ |= assignments
    elif verb == "unset":
        given_.pop(rest.split(";")[0].split(",")[0], None)
    else:
        pytest.skip("advice in words")
    after = lint(given_, nccl=nccl or None)
    assert not coded(after, code) or severity == INFO
    assert all(each.severity <= severity for each in after)


HEALTHY = {
    "EFA p5": "FI_PROVIDER=efa FI_EFA_FORK_SAFE=1 NCCL_DEBUG=INFO NCCL_SOCKET_IFNAME=^docker,lo,veth"
    " NCCL_BUFFSIZE=8388608 NCCL_P2P_NET_CHUNKSIZE=524288 NCCL_TUNER_PLUGIN=/opt/ofi/libnccl-ofi-tuner.so"
    " NCCL_NET_PLUGIN=/opt/aws-ofi-nccl/lib/libnccl-net-ofi.so OFI_NCCL_PROTOCOL=RDMA FI_LOG_LEVEL=warn",
    "TCPX": "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME=eth1,eth2,eth3,eth4 NCCL_GPUDIRECTTCPX_CTRL_DEV=eth0 NCCL_CROSS_NIC=0"
    " NCCL_DYNAMIC_CHUNK_SIZE=524288 NCCL_NET_GDR_LEVEL=PIX NCCL_P2P_PXN_LEVEL=0 NCCL_SOCKET_IFNAME=eth0",
    "TCPXO": "NCCL_FASTRAK_IFNAME=eth1,eth2 NCCL_FASTRAK_CTRL_DEV=eth0 NCCL_FASTRAK_USE_SNAP=1 NCCL_FASTRAK_NUM_FLOWS=2"
    " NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE=/x NCCL_USE_SNAP=1 NCCL_TUNER_CONFIG_PATH=/x",
    "HPC-X": "NCCL_PLUGIN_P2P=ucx NCCL_COLLNET_ENABLE=1 NCCL_SHARP_DISABLE=0 NCCL_IBEXT_DISABLE=0 NCCL_UCX_TLS=rc,cuda"
    " UCX_TLS=rc UCX_NET_DEVICES=mlx5_0:1 NCCL_IB_PCI_RELAXED_ORDERING=1",
    "InfiniBand": "NCCL_IB_HCA==mlx5_0:1,mlx5_3:1 NCCL_IB_TIMEOUT=22 NCCL_IB_QPS_PER_CONNECTION=4 NCCL_NET=IB"
    " NCCL_SOCKET_IFNAME=ib0 NCCL_IB_SL=1 NCCL_DEBUG=WARN NCCL_CUMEM_ENABLE=0",
    "RoCE": "NCCL_IB_TC=106 NCCL_IB_FIFO_TC=106 NCCL_IB_HCA=mlx5 NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0"
    " NCCL_IB_ADAPTIVE_ROUTING=1 NCCL_CROSS_NIC=1",
    "Omni-Path": "NCCL_SOCKET_IFNAME=ib0 NCCL_IB_HCA=hfi1_0 NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH",
    "Slingshot": "NCCL_NET=AWS NCCL_SOCKET_IFNAME=hsn NCCL_CROSS_NIC=1 FI_CXI_DISABLE_HOST_REGISTER=1",
    "virtual machine": "NCCL_TOPO_FILE=/var/run/nvidia-topologyd/virtualTopology.xml NCCL_VERSION=2.27.5-1",
    "multicast off": "NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1",
    "flight recorder": "TORCH_FR_BUFFER_SIZE=2000 TORCH_FR_DUMP_TEMP_FILE=/tmp/fr_ TORCH_NCCL_DUMP_ON_TIMEOUT=1"
    " TORCH_NCCL_ASYNC_ERROR_HANDLING=3 TORCH_NCCL_TRACE_CPP_STACK=false",
    "build": "NCCL_HOME=/usr NCCL_ROOT=/usr NCCL_INCLUDE_DIR=/usr/include OMP_NUM_THREADS=8 CUDA_HOME=/usr/local/cuda",
    "two hosts over sockets": "NCCL_SOCKET_NTHREADS=2 NCCL_NSOCKS_PERTHREAD=2 NCCL_MIN_CTAS=8 NCCL_HOSTID=host0",
}


@pytest.mark.parametrize("nccl", [None, "2.27.5", "2.30.7"])
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_jobs_raise_no_alarm(name: str, nccl: str | None) -> None:
    alarms = [finding for finding in lint(variables(HEALTHY[name]), nccl=nccl) if finding.severity >= WARNING]
    assert alarms == []


def test_what_a_host_has() -> None:
    facts = host(hcas=IB)
    prefix = coded(lint({"NCCL_IB_HCA": "mlx5_1"}, facts=facts), "nccl-list-prefix")
    assert prefix[0].remedy == "export NCCL_IB_HCA==mlx5_1"
    assert "mlx5_10" in prefix[0].message
    for fine in ("=mlx5_1", "mlx5", "^mlx5_0", "mlx5_0:1"):
        assert lint({"NCCL_IB_HCA": fine}, facts=facts) == [], fine
    for nothing in ("mlx4_0", "^mlx5", "mlx5_0:2"):
        (finding,) = lint({"NCCL_IB_HCA": nothing}, facts=facts)
        assert (finding.code, finding.severity, finding.host) == ("nccl-list-matches-nothing", ERROR, "n1")
        assert "mlx5_0" in finding.remedy
    assert coded(lint({"NCCL_SOCKET_IFNAME": "eno1"}, facts=facts), "nccl-list-matches-nothing")
    assert lint({"NCCL_SOCKET_IFNAME": "eth"}, facts=facts) == []
    assert coded(lint({"GLOO_SOCKET_IFNAME": "eth"}, facts=facts), "interface-not-there")
    assert lint({"NCCL_IB_HCA": "mlx4_0"}, facts=HostFacts(host="unread")) == []
    assert coded(lint({"NCCL_IB_HCA": "mlx5_0"}, facts=host(hcas={"rdmap1s0": "Unknown"})), "nccl-list-matches-nothing")
    plugin = Software(python="3.11", executable="/p", nccl_net_plugins=("libnccl-net.so",))
    assert lint({"NCCL_IB_HCA": "mlx4_0"}, facts=msgspec.structs.replace(facts, software=plugin)) == []


def test_what_the_fabric_says() -> None:
    assert coded(lint({"NCCL_IB_TC": "106"}, facts=host(hcas=IB)), "nccl-no-effect")
    assert lint({"NCCL_IB_TC": "106"}, facts=host(hcas={"mlx5_0": "Ethernet"})) == []
    assert coded(lint({"NCCL_SOCKET_NTHREADS": "4"}, facts=host(hcas=IB)), "nccl-no-effect")
    assert lint({"NCCL_SOCKET_NTHREADS": "4"}, facts=host()) == []


@pytest.mark.parametrize(("nvswitch", "severity"), [(True, INFO), (False, WARNING)])
def test_nvls_unasked(nvswitch: bool, severity: Severity) -> None:
    (finding,) = lint({"NCCL_NVLS_ENABLE": "1"}, facts=host(nvswitch=nvswitch))
    assert finding.severity == severity


@pytest.mark.parametrize(
    ("environment", "since", "before"),
    [
        ("NCCL_ALGO=Tree", "2.24.3", "2.23.4"),
        ("NCCL_IB_GID_INDEX=3", "2.21.5", "2.20.5"),
        ("NCCL_SET_THREAD_NAME=yes please", "2.30.7", "2.30.4"),
    ],
)
def test_a_rule_of_new_releases_is_not_one_of_old(environment: str, since: str, before: str) -> None:
    new, old = ({each.code for each in lint(variables(environment), nccl=nccl)} for nccl in (since, before))
    assert new - old


def test_an_old_release_reads_what_a_new_one_does_not() -> None:
    for environment, old, new in (
        ("NCCL_ALGO=allreduce:tree,ring", "2.23.4", "2.24.3"),
        ("NCCL_MAX_CTAS=64", "2.24.3", "2.25.1"),
        ("NCCL_NET_PLUGIN=a,b", "2.26.2", "2.27.3"),
        ("NCCL_IB_HCA==mlx5_0:1:0", "2.30.4", "2.30.7"),
    ):
        assert [each for each in lint(variables(environment), nccl=old) if each.severity >= WARNING]
        assert not [each for each in lint(variables(environment), nccl=new) if each.severity >= WARNING]


@pytest.mark.parametrize(("torch", "codes"), [("2.7.1", []), ("2.8.0", ["nccl-name-deprecated"])])
def test_an_old_name_where_the_new_one_is_not_known_yet(torch: str, codes: list[str]) -> None:
    facts = HostFacts(host="n1", software=Software(python="3.11", executable="/p", torch=torch))
    assert [each.code for each in lint({"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000"}, facts=facts)] == codes


def test_ring_beside_an_nvswitch() -> None:
    ring = {"NCCL_ALGO": "Ring"}
    assert coded(lint(ring, facts=host()), "nccl-algo-excludes-nvls")[0].severity == WARNING
    assert not coded(lint(ring, facts=host(nvswitch=False)), "nccl-algo-excludes-nvls")
    assert not coded(lint(ring | {"NCCL_NVLS_ENABLE": "0"}, facts=host()), "nccl-algo-excludes-nvls")


def test_gid_index_against_the_table() -> None:
    table = (Gid(index=0, gid="fe80::1", type="IB/RoCE v1"), Gid(index=3, gid="::ffff:10.0.0.1", type="RoCE v2"))
    facts = host(hcas={"mlx5_0": "Ethernet"}, gids=table)
    (wrong,) = lint({"NCCL_IB_GID_INDEX": "0"}, facts=facts, nccl="2.19.3")
    assert (wrong.code, wrong.expected) == ("nccl-gid-index-wrong", "one of 3")
    assert lint({"NCCL_IB_GID_INDEX": "3"}, facts=facts, nccl="2.19.3") == []
    (right,) = lint({"NCCL_IB_GID_INDEX": "3"}, facts=facts, nccl="2.27.5")
    assert right.severity == INFO


def test_ib_is_demanded_where_there_is_none() -> None:
    """NCCL fails at init; that a list leaves none of several is another finding."""
    efa = host(hcas={"rdmap1s0": "Unknown"})
    assert coded(lint({"NCCL_NET": "IB"}, facts=efa), "nccl-net-contradiction")[0].severity == ERROR
    shut = with_ports(host(hcas=IB), uverbs_openable=False)
    assert coded(lint({"NCCL_NET": "ib"}, facts=shut), "nccl-net-contradiction")
    assert not lint({"NCCL_NET": "IB"}, facts=host(hcas=IB))
    assert not lint({"NCCL_NET": "Socket"}, facts=efa)
    assert not lint({"NCCL_NET": "IB"}, facts=HostFacts(host="n1"))  # nobody looked


def with_ports(known: HostFacts, **changes: object) -> HostFacts:
    ports = tuple(msgspec.structs.replace(port, **changes) for port in known.rdma or ())
    return msgspec.structs.replace(known, rdma=ports)


def test_only_the_tables_of_ports_in_use_count() -> None:
    """Storage on RoCE beside InfiniBand, or a management port without that entry, is nothing to NCCL."""
    table = (Gid(index=0, gid="fe80::1", type="IB/RoCE v1"),)
    facts = host(hcas={"mlx5_0": "InfiniBand", "mlx5_bond_0": "Ethernet"}, gids=table)
    pinned = {"NCCL_IB_GID_INDEX": "3", "NCCL_IB_HCA": "=mlx5_0"}
    assert not coded(lint(pinned, facts=facts, nccl="2.19.3"), "nccl-gid-index-wrong")
    empty = coded(lint({"NCCL_IB_GID_INDEX": "3"}, facts=facts, nccl="2.19.3"), "nccl-gid-index-wrong")
    assert empty[0].severity == ERROR
    version_1 = coded(lint({"NCCL_IB_GID_INDEX": "0"}, facts=facts, nccl="2.19.3"), "nccl-gid-index-wrong")
    assert version_1[0].severity == WARNING
    assert coded(lint({"NCCL_IB_TC": "106", "NCCL_IB_HCA": "=mlx5_0"}, facts=facts), "nccl-no-effect")


@pytest.mark.parametrize(
    ("value", "remedy"),
    [("0", None), ("1", None), ("0x8001", "export NCCL_IB_PKEY=1"), ("32769", "export NCCL_IB_PKEY=1"),
     ("0x8005", "unset NCCL_IB_PKEY"), ("2", "unset NCCL_IB_PKEY")],
)  # fmt: skip
def test_a_partition_is_named_by_its_place(value: str, remedy: str | None) -> None:
    findings = lint({"NCCL_IB_PKEY": value}, facts=host(hcas=IB, pkeys=("0x7fff", "0x8001")))
    assert [(each.code, each.remedy) for each in findings] == ([("nccl-pkey-index-wrong", remedy)] if remedy else [])


def test_a_place_of_the_table_that_a_partition_left_has_no_key() -> None:
    table = ("0xffff", "0x0000", "0x8001")
    (finding,) = lint({"NCCL_IB_PKEY": "1"}, facts=host(hcas=IB, pkeys=table))
    assert (finding.code, finding.expected) == ("nccl-pkey-index-wrong", "one of 0, 2")
    assert not lint({"NCCL_IB_PKEY": "2"}, facts=host(hcas=IB, pkeys=table))


def test_hosts_that_must_agree_or_differ() -> None:
    (finding,) = lint_hosts({"a": {"NCCL_ALGO": "Ring"}, "b": {"NCCL_ALGO": "Ring"}, "c": {}})
    assert (finding.code, finding.host, finding.remedy) == ("nccl-hosts-disagree", "c", "export NCCL_ALGO=Ring")
    (finding,) = lint_hosts({"a": {"NCCL_HOSTID": "x"}, "b": {"NCCL_HOSTID": "x"}})
    assert finding.code == "nccl-hostid-constant"
    assert lint_hosts({"a": {"NCCL_HOSTID": "x"}, "b": {"NCCL_HOSTID": "y"}}) == []
    (finding,) = lint_hosts({"a": {"NCCL_DEBUG_FILE": "/n/%p"}, "b": {"NCCL_DEBUG_FILE": "/n/%p"}})
    assert finding.remedy == "export NCCL_DEBUG_FILE=/n/%p.%h"
    assert lint_hosts({"a": {"NCCL_SOCKET_IFNAME": "eth0"}, "b": {"NCCL_SOCKET_IFNAME": "eth1"}}) == []


CORPUS = Path(__file__).parents[3] / "shared/corpus/nccl"


@pytest.mark.parametrize("path", sorted(CORPUS.glob("ok_*.txt")), ids=lambda path: path.stem)
def test_healthy_jobs_on_record(path: Path) -> None:
    """What the logs of healthy jobs say was set; a GID index that such a job pins is the one thing worth a warning."""
    text = path.read_text()
    said = dict(re.findall(r"(NCCL_\w+) set by environment to (.*?)\.?$", text, re.MULTILINE))
    loaded = re.search(r"NCCL version (\S+)", text)
    findings = lint(said, nccl=loaded[1] if loaded else None)
    assert {each.code for each in findings if each.severity >= WARNING} <= {"nccl-gid-index-pinned"}


SCRIPT = """\
#!/bin/bash
#SBATCH --export=ALL,NCCL_IB_TIMEOUT=60,NCCL_IB_HCA=mlx5_0,mlx5_1
# export NCCL_NVLS_PATH=/commented/out
export NCCL_BUFFSIZE=4M  # NCCL_NVLS_PATH=/in/a/comment
NCCL_ALGO="Tree" NCCL_P2P_LEVEL=pxb python train.py
mpirun -x NCCL_NET_GDR_LEVEL=5 \\
  -x "NCCL_SOCKET_IFNAME=^lo, docker0" --env NCCL_NSOCKS_PERTHREAD=4 \\
  -x NCCL_DEBUG
docker run -e NCCL_CUMEM_ENABLE=true -eNCCL_HOSTID=one image
export NCCL_MAX_CTAS=${NCCL_MAX_CTAS:-1e1} NCCL_IB_RETRY_CNT=$N
export NCCL_TREE_THRESHOLD=0
unset NCCL_TREE_THRESHOLD
"""


def places(text: str, name: str, nccl: str | None = "2.27.5") -> dict[str, str]:
    """`file:line` -> code of the findings that are warnings or worse."""
    return {
        finding.evidence[0].split(": ")[0] + " " + finding.subject: finding.code
        for finding in lint_script(text, name, nccl=nccl)
        if finding.severity >= WARNING
    }


def test_job_script() -> None:
    assert places(SCRIPT, "job.sh") == {
        "job.sh:2 NCCL_IB_TIMEOUT": "nccl-value-range",
        "job.sh:2 NCCL_IB_HCA": "nccl-list-cut",
        "job.sh:4 NCCL_BUFFSIZE": "nccl-value-misread",
        "job.sh:5 NCCL_ALGO": "nccl-algo-leaves-none",
        "job.sh:5 NCCL_P2P_LEVEL": "nccl-value-choice",
        "job.sh:6 NCCL_NET_GDR_LEVEL": "nccl-level-number",
        "job.sh:7 NCCL_SOCKET_IFNAME": "nccl-list-blank",
        "job.sh:7 NCCL_NSOCKS_PERTHREAD": "nccl-sockets-without-threads",
        "job.sh:9 NCCL_CUMEM_ENABLE": "nccl-value-misread",
        "job.sh:9 NCCL_HOSTID": "nccl-hostid-constant",
        "job.sh:10 NCCL_MAX_CTAS": "nccl-value-misread",
    }


@pytest.mark.parametrize(
    ("name", "text", "remedy"),
    [
        ("Dockerfile", "FROM x\nENV NCCL_BUFFSIZE=4M\n", "ENV NCCL_BUFFSIZE=4194304"),
        ("Dockerfile.gpu", "FROM x\nENV NCCL_BUFFSIZE 4M\n", "ENV NCCL_BUFFSIZE=4194304"),
        ("job.yaml", 'env:\n- name: NCCL_BUFFSIZE\n  value: "4M"\n', '{name: NCCL_BUFFSIZE, value: "4194304"}'),
        ("job.yml", "env:\n- {name: NCCL_BUFFSIZE, value: 4M}\n", '{name: NCCL_BUFFSIZE, value: "4194304"}'),
        ("job.yaml", "env:\n  NCCL_BUFFSIZE: 4M # big\n", '{name: NCCL_BUFFSIZE, value: "4194304"}'),
        ("job.yaml", "run: |\n  export NCCL_BUFFSIZE=4M\n", '{name: NCCL_BUFFSIZE, value: "4194304"}'),
        ("nccl.conf", "# x\nNCCL_BUFFSIZE=4M\n", "NCCL_BUFFSIZE=4194304"),
        ("train.py", '#\nos.environ["NCCL_BUFFSIZE"] = "4M"\n', 'os.environ["NCCL_BUFFSIZE"] = "4194304"'),
        ("train.py", '#\nos.environ.setdefault("NCCL_BUFFSIZE", "4M")\n', 'os.environ["NCCL_BUFFSIZE"] = "4194304"'),
        ("go.csh", "#\nsetenv NCCL_BUFFSIZE 4M\n", "setenv NCCL_BUFFSIZE 4194304"),
        ("go", "#!/bin/sh\nsrun --export=ALL,NCCL_BUFFSIZE=4M x\n", "export NCCL_BUFFSIZE=4194304"),
    ],
)
def test_other_files(name: str, text: str, remedy: str) -> None:
    (finding,) = coded(lint_script(text, name), "nccl-value-misread")
    assert finding.evidence == (f"{name}:2: NCCL_BUFFSIZE=4M",)
    assert finding.remedy == remedy


def test_conf_file_traps() -> None:
    findings = lint_script('NCCL_ALGO =Ring\nexport NCCL_IB_TIMEOUT=22\nNCCL_IB_SL="1"\n', "/etc/nccl.conf")
    assert [(f.code, f.remedy) for f in findings] == [
        ("nccl-value-quoted", "NCCL_IB_SL=1"),
        ("nccl-name-blank", "NCCL_ALGO=Ring"),
        ("nccl-name-blank", "NCCL_IB_TIMEOUT=22"),
    ]
    assert coded(lint_script("NCCL_DEBUG=INFO\n", "/etc/nccl.conf", nccl="2.28.9"), "nccl-debug-in-conf")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("job.sh", "export NCCL_IB_TIMEOUT=$T NCCL_BUFFSIZE=$((4*1024)) NCCL_IB_SL=$(cat x) NCCL_IB_TC=`cat y`"),
        ("job.yaml", "env:\n- name: NCCL_IB_TIMEOUT\n  value: {{ timeout }}\n- {name: NCCL_IB_SL, value: ${SL}}\n"),
        ("train.py", 'os.environ["NCCL_IB_TIMEOUT"] = str(t)\nos.environ["NCCL_IB_SL"] = f"{x}"\n'),
        ("Dockerfile", "ARG T\nENV NCCL_IB_TIMEOUT=${T}\n"),
    ],
)
def test_what_only_running_would_tell_is_not_judged(name: str, text: str) -> None:
    assert lint_script(text, name) == []
    bad = lint_script(text.replace("NCCL_IB_TIMEOUT", "NCCL_IB_TIMEOUTS"), name)
    assert [each.code for each in bad] == ["nccl-name-unknown"], "the name is"


def test_threads_and_ports_against_the_host() -> None:
    cpus = Cpus(online=(), allowed=tuple(range(16)))
    known = msgspec.structs.replace(host(), cpus=cpus, network=Network(interfaces=(), ephemeral_range=(20000, 30000)))
    (finding,) = lint({"OMP_NUM_THREADS": "32"}, facts=known)
    assert (finding.code, finding.severity, finding.host) == ("omp-threads-too-many", WARNING, "n1")
    (finding,) = lint({"OMP_NUM_THREADS": "9"}, facts=known)
    assert (finding.code, finding.severity) == ("omp-threads-too-many", INFO)
    assert lint({"OMP_NUM_THREADS": "8"}, facts=known) == []
    assert lint({"OMP_NUM_THREADS": "4,2"}, facts=known) == []
    assert coded(lint({"MASTER_PORT": "29500"}, facts=known), "master-port-unsafe")
    assert lint({"MASTER_PORT": "40000"}, facts=known) == []


TASKS = "#!/bin/bash\n#SBATCH -N 2 --ntasks-per-node={tasks}  # x\n{before}\nsrun {flags} \\\n  {launcher}\n"


@pytest.mark.parametrize(
    ("tasks", "before", "flags", "launcher", "found"),
    [
        ("8", "", "", "torchrun --nproc_per_node=8 train.py", "8 launchers on each node, and each starts 8 ranks"),
        ("8", "", "", "python -m torch.distributed.run --nproc-per-node gpu train.py", "starts gpu ranks"),
        ("8", "N=8", "", "torchrun --nproc_per_node $N train.py", "each starts 8 ranks"),
        ("8", "N=8\nL='torchrun --nproc_per_node ${N}'", "", 'bash -c "$L train.py"', "each starts 8 ranks"),
        ("8", "", "", "torchrun --nproc_per_node=$SLURM_GPUS_ON_NODE train.py", "8 launchers"),
        ("1", "", "--ntasks-per-node=4", "torchrun --nproc_per_node=4 train.py", "4 launchers"),
        ("1", "", "-N2 -n 8", "torchrun --nproc_per_node=4 train.py", "4 launchers"),
        ("1", "", "", "torchrun --nproc_per_node=8 train.py", ""),
        ("8", "", "--ntasks-per-node=1", "torchrun --nproc_per_node=8 train.py", ""),
        ("8", "", "-N 2 -n 2", "torchrun --nproc_per_node=8 train.py", ""),
        ("8", "", "", "python train.py", ""),
        ("8", "", "", "torchrun --nproc_per_node=1 train.py", ""),
        ("8", "", "", "torchrun train.py", ""),
        ("$T", "", "", "torchrun --nproc_per_node=8 train.py", ""),
        ("8", "torchrun --nproc_per_node=8 train.py", "", "hostname", ""),
        ("8", "# srun torchrun --nproc_per_node=8 train.py", "", "hostname", ""),
    ],
)
def test_tasks_times_ranks(tasks: str, before: str, flags: str, launcher: str, found: str) -> None:
    text = TASKS.format(tasks=tasks, before=before, flags=flags, launcher=launcher)
    said = coded(lint_script(text, "job.sbatch"), "slurm-tasks-times-ranks")
    assert [found in each.message for each in said] == [True] * bool(found)
    for each in said:
        number = text.split("\n").index(f"srun {flags} \\") + 1
        assert each.evidence[0].startswith(f"job.sbatch:{number}: srun")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("torchrun --nproc_per_nodes 8 train.py", "did you mean --nproc-per-node?"),
        ("srun --nodes=2 torchrun --nnodes=2:1 train.py", "expected N or MIN:MAX"),
        ("CUDA_VISIBLE_DEVICES=0 nohup python3 -m torch.distributed.run --nprocs 2 train.py", "--nprocs is no flag"),
        ("cd /x && nvrun --hang-afte 30 train.py", "did you mean --hang-after?"),
        ("nvrun --nodes", "needs a value"),
        ("torchrun --nproc_per_node=$(nvidia-smi -L | wc -l) --nnodes=$N train.py --lr 1", ""),
        ('torchrun "${ARGS[@]}" --whatever train.py', ""),
        ("torchrun --nproc_per_node=`nvidia-smi -L | wc -l` train.py", ""),
        ("srun --container-image=x numactl --cpunodebind=0 torchrun -r 3 --tee 3 train.py > out 2>&1 &", ""),
        ("torchrun --nproc-per-node 8 --rdzv_id=$RANDOM train.py --nnodes=x", ""),
        ("nvrun check --prometheus /x", ""),
        ("nvrun --hosts a,b --hang-after 30 -- train.py --x", ""),
        ("echo torchrun --foo; which torchrun --bar; pip install nvrun --baz", ""),
        ("torchrun --nproc_per_nodes 'open", ""),
        ("python -m torch.distributed.launch --use_env train.py", ""),
        ("# torchrun --foo", ""),
        ("srun bash -c '\ntorchrun --bad train.py\n'", "--bad is no flag"),
        ('srun --label bash -lc "cd /x && torchrun --nnodes=\\$N --bad train.py"', "--bad is no flag"),
        ("sbatch <<EOF\ntorchrun --nnodes=2 train.py\nEOF\n", ""),
        ("usage() { cat >&2 <<'EOF'\nUsage:\ntorchrun --bad train.py\nEOF\n}", ""),
        ("echo 'for example\ntorchrun --bad train.py\n'", ""),
        ("srun -N 2 echo torchrun --bad", ""),
        ("sudo apt install torchrun --yes", ""),
        ("uv pip install nvrun --upgrade; python -m pip install nvrun --upgrade", ""),
        ("docker build -t torchrun --no-cache .; docker run --name torchrun --gpus all image", ""),
        ("srun -J nvrun --ntasks 2 train.sh", ""),
        ("python train.py -m nvrun --bad", ""),
        ("torchrun --help; torchrun --nproc-per-node {{ gpus }} train.py", ""),
        ("conda run -n e torchrun --nnodes 2 train.py # torchrun --bad", ""),
        ('CMD=(\n  torchrun\n  --nnodes 2\n)\n"${CMD[@]}" train.py', ""),
    ],
)
def test_flags_that_a_launcher_would_refuse(line: str, says: str) -> None:
    found = coded(lint_script(f"#!/bin/bash\n{line}\n", "job.sh"), "launcher-refuses")
    assert [says in each.message for each in found] == [True] * bool(says), found
    for each in found:
        assert each.severity == (ERROR if "nvrun" in line else WARNING)
        assert each.evidence[0].startswith("job.sh:2: ")


def test_a_list_that_the_shell_ends_at_a_blank() -> None:
    found = lint_script("#!/bin/bash\nexport NCCL_IB_HCA=mlx5_0 , mlx5_1\n", "job.sh")
    assert [each.code for each in found] == ["nccl-list-cut"]


def test_a_script_without_settings() -> None:
    assert lint_script("#!/bin/bash\necho $NCCL_BUFFSIZE ${NCCL_DEBUG:-x}\ntorchrun train.py\n", "job.sh") == []


@example({"NCCL_BUFFSIZE": "-1"}, None)
@given(
    st.dictionaries(
        st.sampled_from(sorted(catalogue.variables())) | st.text("NCL_ABZ", max_size=12).map("NCCL_".__add__),
        st.text(max_size=20) | st.text("0123456789KMx^=,:;- |%", max_size=20),
        max_size=6,
    ),
    st.sampled_from([None, "2.19.3", "2.24.3", "2.30.7"]),
)
def test_lint_answers_whatever_it_is_given(environment: dict[str, str], nccl: str | None) -> None:
    for finding in lint(environment, nccl=nccl, facts=host(hcas=IB)):
        assert finding.message
        assert finding.evidence


@given(st.text(max_size=200) | st.text("NCL_A=\"'\\#$(){}:\n -x", max_size=200))
def test_any_text_can_be_a_script(text: str) -> None:
    for name in ("a.sh", "a.yaml", "Dockerfile", "a.py", "a.csh", "nccl.conf"):
        lint_script(text, name)


def refused(line: str) -> list[Finding]:
    return coded(lint_script(f"#!/bin/bash\n{line}\n", "job.sh"), "launcher-refuses")


def test_a_launcher_is_seen_where_it_is_started_and_nowhere_else() -> None:
    missed = [line for line in STARTED if not any("--bad is no flag" in each.message for each in refused(line))]
    assert not missed
    wrong = {line: found for line in NOT_STARTED if (found := refused(line))}
    assert not wrong


def test_a_launcher_is_told_by_the_line_where_it_is_started() -> None:
    text = "#!/bin/bash\nx='a\nb'\nsbatch <<EOF\n# c\nsrun \\\n  torchrun \\\n  --bad t.py\nEOF\ntorchrun --bad t.py\n"
    found = coded(lint_script(text, "job.sh"), "launcher-refuses")
    assert [each.evidence for each in found] == [
        ("job.sh:6: srun torchrun --bad t.py",),
        ("job.sh:10: torchrun --bad t.py",),
    ]
    stray = "#!/bin/bash\n" + "echo $(\n" * 99 + "torchrun --bad t.py\n"
    (once,) = coded(lint_script(stray, "job.sh"), "launcher-refuses")
    assert once.evidence == ("job.sh:101: torchrun --bad t.py",)


@pytest.mark.parametrize(
    "piece",
    [
        "$(",
        "`\n",
        "'\n",
        '"$(',
        "(",
        "env ",
        "srun -a b ",
        "A=$A$A$A\nsrun $A\n",
        "eval ",
        "bash <<E\n",
        "cat <<A\nA\n",
    ],
)
def test_a_long_text_is_read_once(piece: str) -> None:
    """What would be read over and over takes minutes at this length."""
    text = "torchrun --bad t.py\n" + piece * (100_000 // len(piece)) + "torchrun"
    begun = time.process_time()
    assert refused(text)
    assert time.process_time() - begun < 2.0
