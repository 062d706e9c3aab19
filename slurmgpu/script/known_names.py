"""The variables of NCCL, and what a secret is called and looks like.

From NCCL's guide (docs/userguide/source/env.rst) and source, of 2.3 to 2.30.7, and from ProcessGroupNCCL.hpp of PyTorch, which
put TORCH_ before its own in 2.2 and still reads the old names in 2.13, with a warning.
"""

from __future__ import annotations

import re
from typing import NamedTuple

__all__ = [
    "FORMER",
    "READ",
    "Former",
    "in_address",
    "is_known_key",
    "looks_random",
    "names_secret",
    "surely_names_secret",
]


class Former(NamedTuple):
    """A variable of an earlier release."""

    said: str
    """Return its fate, as the end of a sentence."""
    instead: str
    still_read: bool = False


_TORCH = "is PyTorch's own, and called TORCH_{} since PyTorch 2.2"

FORMER = {
    **{
        name: Former(_TORCH.format(name), f"TORCH_{name}", still_read=True)
        for name in (
            "NCCL_ASYNC_ERROR_HANDLING",
            "NCCL_BLOCKING_WAIT",
            "NCCL_DESYNC_DEBUG",
            "NCCL_ENABLE_TIMING",
            "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK",
        )
    },
    "NCCL_IB_CUDA_SUPPORT": Former("is not read since NCCL 2.4", "NCCL_NET_GDR_LEVEL"),
    "NCCL_IB_GDR_LEVEL": Former("is called NCCL_NET_GDR_LEVEL since NCCL 2.4", "NCCL_NET_GDR_LEVEL"),
    "NCCL_SINGLE_RING_THRESHOLD": Former("is not read since NCCL 2.3", "NCCL_ALGO"),
    "NCCL_LL_THRESHOLD": Former("is not read since NCCL 2.5", "NCCL_PROTO"),
    "NCCL_TREE_THRESHOLD": Former("is not read since NCCL 2.5", "NCCL_ALGO"),
    **{
        f"NCCL_{most}_{old}": Former(f"is given up since NCCL {since}", f"NCCL_{most}_CTAS", still_read=True)
        for most in ("MAX", "MIN")
        for old, since in (("NRINGS", "2.5"), ("NCHANNELS", "2.17"))
    },
}
"""By their names."""

# Those of the guide, and those of the source that look much like one of them. TIMEOUT is not NCCL's: programs read it.
_READ = """
ALGO ALLOC_P2P_NET_LL_BUFFERS BUFFSIZE CGA_CLUSTER_SIZE CHECKS_DISABLE CHECK_MODE CHECK_POINTERS COLLNET_ENABLE
COLLNET_NODE_THRESHOLD COMM_BLOCKING CONF_FILE CROSS_NIC CTA_POLICY CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG DEBUG_FILE
DEBUG_SUBSYS DEBUG_TIMESTAMP_FORMAT DEBUG_TIMESTAMP_LEVELS DMABUF_ENABLE ENV_PLUGIN GIN_ENABLE GIN_PLUGIN
GRAPH_MIXING_SUPPORT GRAPH_REGISTER GRAPH_STREAM_ORDERING IB_ADAPTIVE_ROUTING IB_ADDR_FAMILY IB_ADDR_RANGE
IB_AR_THRESHOLD IB_DISABLE IB_ECE_ENABLE IB_FIFO_TC IB_GID_INDEX IB_HCA IB_MERGE_NICS IB_MQP_RETRY_CNT IB_OOO_RQ
IB_PCI_RELAXED_ORDERING IB_QPS_PER_CONNECTION IB_RETRY_CNT IB_RETURN_ASYNC_EVENTS IB_ROCE_VERSION_NUM IB_SL
IB_SPLIT_DATA_ON_QPS IB_TC IB_TIMEOUT IGNORE_COLLNET_MISMATCH IGNORE_CPU_AFFINITY IGNORE_NET_MISMATCH
IPC_USE_ABSTRACT_SOCKET LAUNCH_MODE LAUNCH_ORDER_IMPLICIT LAUNCH_RACE_FATAL LEGACY_CUDA_REGISTER LL128_BUFFSIZE
LL_BUFFSIZE LOCAL_REGISTER MAX_CTAS MAX_P2P_NCHANNELS MEM_SYNC_DOMAIN MIN_CTAS MIN_P2P_NCHANNELS MNNVL_CLIQUE_ID
MNNVL_ENABLE MNNVL_UUID MULTI_RANK_GPU_ENABLE NET NETDEVS_POLICY NET_GDR_C2C NET_GDR_LEVEL NET_GDR_READ
NET_MERGE_POLICY NET_PLUGIN NET_SHARED_BUFFERS NET_SHARED_COMMS NSOCKS_PERTHREAD NTHREADS NVB_DISABLE NVLS_CHUNKSIZE
NVLS_ENABLE NVLS_NCHANNELS NVTX_DISABLE OOB_NET_ENABLE OOB_NET_IFNAME P2P_DIRECT_DISABLE P2P_DISABLE P2P_LEVEL
P2P_LL_THRESHOLD P2P_NET_CHUNKSIZE P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE P2P_PXN_LEVEL PAT_ENABLE PROFILER_PLUGIN PROTO
PXN_C2C PXN_DISABLE RAS_ADDR RAS_ENABLE RAS_TIMEOUT_FACTOR RMA_DISABLE RUNTIME_CONNECT SET_CPU_STACK_SIZE
SET_STACK_SIZE SET_THREAD_NAME SHM_DISABLE SOCKET_FAMILY SOCKET_IFNAME SOCKET_MAGIC SOCKET_NTHREADS
SOCKET_POLL_TIMEOUT_MSEC SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC SYM_GIN_KERNELS_ENABLE THREAD_THRESHOLD
THREAD_THRESHOLDS TIMEOUT TOPO_DUMP_FILE TOPO_DUMP_FILE_RANK TOPO_FILE TUNER_PLUGIN UID_STAGGER_RATE
UID_STAGGER_THRESHOLD WIN_ENABLE
"""
# IBEXT_DISABLE is read by the plug-in nccl-rdma-sharp (src/ib_plugin.c), of HPC-X and NVIDIA's images.
READ = frozenset(f"NCCL_{name}" for name in f"{_READ} IBEXT_DISABLE".split())
"""Names that some release reads, or did."""

_SURE = (
    r"(?:api|access|secret|private|auth|encryption|signing|wandb|account)[-_]?key"
    r"|(?:auth|access|api|bearer|hf|github|gitlab|wandb|hub|session|refresh|secret)[-_]?token"
    r"|\w*(?:password|passwd|passphrase)|credentials?|\w*secret|pat"
)
# A tokenizer has tokens, a sort has a key: with these the value decides.
_MAYBE = r"key|token"
_KNOWN_KEYS = (
    r"(?<![\w-])(?:hf_[A-Za-z0-9]{20}|sk-[A-Za-z0-9_-]{20}|gh[pousr]_[A-Za-z0-9]{20}|github_pat_\w{20}"
    r"|AKIA[A-Z0-9]{16}|xox[abp]-[A-Za-z0-9-]{10}|glpat-[A-Za-z0-9_-]{15})"
)
_IN_ADDRESS = r"\b[a-z][a-z0-9+.-]*://[^/\s:@'\"]+:(?P<password>[^/\s@'\"$`<{]+)@"


def surely_names_secret(name: str) -> bool:
    """Return True if what is called so is a secret whatever its value: `DB_PASSWORD`, `--api-key`."""
    return re.search(rf"(?i)(?:\A|[-_])(?:{_SURE})\Z", name) is not None


def names_secret(name: str) -> bool:
    """Return True if what is called so may be a secret: as above, or any key or token."""
    return surely_names_secret(name) or re.search(rf"(?i)(?:\A|[-_])(?:{_MAYBE})\Z", name) is not None


def looks_random(value: str) -> bool:
    """Return True if a value looks drawn by chance: long, in one word, with letters and digits, and no path."""
    return (
        len(value) >= 12
        and re.fullmatch(r"[\w+/=.:-]+", value) is not None
        and re.search(r"\d", value) is not None
        and re.search(r"[A-Za-z]", value) is not None
    )


def is_known_key(text: str) -> bool:
    """Return True if a key of a known service stands in a text, which such a key tells by how it begins."""
    return re.search(_KNOWN_KEYS, text) is not None


def in_address(text: str) -> str | None:
    """Return the password of an address `scheme://user:password@host` in a text, if there is one (RFC 3986, 3.2.1)."""
    match = re.search(_IN_ADDRESS, text)
    return match["password"] if match else None
