"""GPUs: their memory, their errors, the driver, what a process may see of them.

Messages: c10/cuda (CUDAException.cpp, CUDACachingAllocator.cpp, CUDAFunctions.cpp), torch/cuda/__init__.py,
aten/src/ATen/cuda/Exceptions.h; the same of HIP.
"""

from __future__ import annotations

from ..row import Row

__all__ = ["ROWS"]

_LESS = (
    "less memory with the same batch: smaller micro-batches with more gradient accumulation, activation checkpointing, bf16; "
    "or shard the model (FSDP), or a GPU with more memory"
)
_SIZE = r"[\d.]+ ?[KMGT]?i?B(?:ytes)?"

_ASSERTED = (-400, r".*(?P<detail>Assertion `[^`']+[`'] failed)")
"""Checks of a kernel, printed before a library noticed that the GPU had stopped."""

ROWS = (
    Row(
        "gpu-memory",
        "out of memory. Tried to allocate",
        r"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate (?P<wanted>" + _SIZE + r")[\s\S]*?"
        r"GPU (?P<gpu>\d+) has a total capa\w+ of (?P<total>" + _SIZE + r")[\s\S]*?"
        r"Process (?P<pid>\d+) has (?P<other>\d{2,}\.\d+ GiB) memory in use[\s\S]*?this process has (?P<own>"
        + _SIZE
        + ")",
        "the GPU is out of memory: {wanted} more were wanted; of the {total} of GPU {gpu} another process ({pid}) has {other}, "
        "this one {own}",
        "see what it is: nvidia-smi on the node; a rank of the same job that is on the wrong GPU "
        "(torch.cuda.set_device(LOCAL_RANK)), an earlier run that has not ended, or somebody else's: slurmgpu doctor --on-gpu",
        where="exception",
    ),
    Row(
        "gpu-memory",
        "out of memory. Tried to allocate",
        r"(?:CUDA|HIP|XPU) out of memory\. Tried to allocate (?P<wanted>" + _SIZE + r")"
        r"(?:\.? GPU (?P<gpu>\d+) has a total capa\w+ of (?P<total>"
        + _SIZE
        + r") of which (?P<free>"
        + _SIZE
        + r") is free)?"
        r"(?:[\s\S]*?this process has (?P<own>" + _SIZE + r") memory in use)?"
        r"(?:[\s\S]*?Of the allocated memory (?P<torch>"
        + _SIZE
        + r") is allocated by PyTorch, and (?P<unused>"
        + _SIZE
        + r"))?"
        r"(?: \(GPU (?P<gpu2>\d+); (?P<total2>"
        + _SIZE
        + r") total capacity; (?P<torch2>"
        + _SIZE
        + r") already allocated; "
        r"(?P<free2>" + _SIZE + r") free)?",
        "the GPU is out of memory: {wanted} more were wanted<; GPU {gpu} has {total}, of which {free} were free>"
        "<; GPU {gpu2} has {total2}, of which {free2} were free><, {torch} were PyTorch's><, {torch2} were PyTorch's>"
        "<, and {unused} more it held unused>",
        _LESS + "; where much is held unused: PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
        where="exception",
    ),
    Row(
        "gpu-memory",
        "CUDA error: out of memory|HIP error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|CUDA_ERROR_OUT_OF_MEMORY"
        "|OOM when allocating tensor|RESOURCE_EXHAUSTED: Out of memory|cudaErrorMemoryAllocation|Cuda failure 2 'out of memory'",
        r"(?:(?:CUDA|HIP) error: out of memory|OOM when allocating tensor[^\n]*GPU|"
        r"CUBLAS_STATUS_ALLOC_FAILED|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation"
        r"|RESOURCE_EXHAUSTED: Out of memory(?: while trying to allocate (?P<wanted>\d+ bytes))?|Cuda failure 2 'out of memory')",
        "the GPU is out of memory<: {wanted} more were wanted>",
        _LESS + "; slurmgpu doctor --on-gpu sees whether a process of somebody else fills it",
        where="exception",
    ),
    Row(
        "container-gpus",
        "CDI devices",
        r"(?P<message>unresolvable CDI devices [^\n]*)",
        "the container cannot get its GPUs on this node: {message}",
        "the site must describe them there (nvidia-ctk cdi generate); apptainer --nv and pyxis do without",
        where="line",
    ),
    Row(
        "gpu-memory-share",
        "less than desired GPU memory utilization",
        r"Free memory on device(?: \S+)? \((?P<free>[\d.]+)/(?P<total>[\d.]+ GiB)\) on startup is less than desired GPU memory "
        r"utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+ GiB)\)",
        "Free memory on device: {free} of {total}, and vLLM wants {wanted} (gpu_memory_utilization {share})",
        "a lower --gpu-memory-utilization, or end what else fills this GPU: slurmgpu doctor --on-gpu sees it",
        where="exception",
    ),
    Row(
        "gpu-memory",
        "Failed to CUDA calloc|Failed to CUDA malloc|NCCL WARN Cuda failure 2|NCCL WARN Cuda failure 'out of memory'",
        r"(?:Failed to CUDA [cm]alloc(?: async)? (?P<wanted>\d+ bytes)|NCCL WARN Cuda failure (?:2 )?'out of memory')",
        "the GPU is out of memory: NCCL had no room left<: {wanted} more were wanted>",
        _LESS + "; slurmgpu doctor --on-gpu sees whether a process of somebody else fills it",
    ),
    Row(
        "gpu-not-ready",
        "system not yet initialized|Error 802|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady",
        r"(?:Error (?P<number>80\d): )?(?P<message>system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY"
        r"|cudaErrorSystemNotReady)",
        "the GPUs of the node are not ready: <error {number}, >{message}",
        "the node's fabric manager most often does not run: start it again without this node (exclude:), and tell the site",
        where="exception",
    ),
    Row(
        "driver-mismatch",
        "Driver/library version mismatch|system has unsupported display driver|API mismatch: the",
        r"(?P<message>Driver/library version mismatch[^\n]*|system has unsupported display driver[^\n]*|API mismatch: the[^\n]*)",
        "the node's NVIDIA driver and its libraries are of different versions: {message}",
        "start it again without this node (exclude:), and tell the site: it must be rebooted or its driver loaded again",
    ),
    Row(
        "device-assert",
        "device-side assert triggered",
        r"(?:CUDA|HIP) error: device-side assert triggered",
        "a check on the GPU failed (device-side assert)<: {assertion}>",
        "most often an index, such as a class or a token, beyond the size of a table or the last layer; CUDA_LAUNCH_BLOCKING=1 "
        "shows the line, and the same batch on the CPU names it",
        where="exception",
    ),
    Row(
        "ecc",
        "uncorrectable ECC error|Uncorrectable ECC|uncorrectable NVLink|NVLink error",
        r"(?P<message>[Uu]ncorrectable (?:ECC|NVLink)[^\n.]*|NVLink error[^\n.]*)",
        "the GPU is faulty: {message}",
        "start it again without this node (exclude:), and tell the site: the GPU must be reset or replaced",
    ),
    Row(
        "xid",
        "Xid (PCI|NVRM: Xid|Xid error|XID ",
        r"X[Ii][Dd] ?(?:\((?P<gpu>PCI:[^)]*)\)|error)?:? ?(?P<number>\d+)(?:, (?P<message>[^\n]*))?",
        "the driver reports an error of the GPU: Xid {number}< of {gpu}><: {message}>",
        "NVIDIA's list says what Xid numbers mean; 31 and 43 are most often the program's own, 48, 63, 64, 74, 79, 94 and 95 "
        "the GPU's: start it again without this node (exclude:), and tell the site",
        where="line",
    ),
    Row(
        "gpu-lost",
        "fallen off the bus|GPU is lost|GPU has fallen|Unable to determine the device handle|cudaErrorDevicesUnavailable"
        "|CUDA-capable device(s) is/are busy or unavailable",
        r"(?P<message>(?:GPU has )?fallen off the bus|GPU is lost|Unable to determine the device handle[^\n]*"
        r"|(?:all )?CUDA-capable device\(?s?\)? (?:is/)?are busy or unavailable|cudaErrorDevicesUnavailable)",
        "the GPU cannot be used: {message}",
        "start it again without this node (exclude:), and tell the site; a GPU in exclusive mode takes one process alone",
    ),
    Row(
        "illegal-access",
        "Memory access fault by GPU",
        r"Memory access fault by GPU node-(?P<gpu>\d+).* Reason: (?P<reason>[^.]*)",
        "a kernel on ROCm's node-{gpu} (CPUs are counted, too) used memory that is not the program's: {reason}",
        "AMD_SERIALIZE_KERNEL=3 shows which call it was; most often an index beyond its tensor, or code for another GPU",
        where="line",
    ),
    Row(
        "illegal-access",
        "an illegal memory access was encountered|misaligned address|an illegal instruction was encountered"
        "|unspecified launch failure|CUDA error: hardware stack error|invalid program counter",
        r"(?:CUDA|HIP) error: (?P<message>an illegal memory access was encountered|misaligned address|an illegal instruction was "
        r"encountered|unspecified launch failure|hardware stack error|invalid program counter)",
        "a kernel on the GPU went wrong: {message}",
        "CUDA_LAUNCH_BLOCKING=1 shows which call it was; most often an own or compiled kernel, or an index beyond its tensor; "
        "if the line changes from run to run, and on one node only, its GPU may be faulty",
        where="exception",
    ),
    Row(
        "device-ordinal",
        "invalid device ordinal",
        r"invalid device ordinal",
        "a process asked for a GPU with a number that it does not have (invalid device ordinal)",
        "use the local rank (LOCAL_RANK), not the rank, and no more processes on a node than GPUs; where each task sees its own "
        "GPU alone, its number is 0",
        where="exception",
    ),
    Row(
        "driver-too-old",
        "driver on your system is too old|CUDA driver version is insufficient|forward compatibility was attempted"
        "|unsupported display driver",
        r"(?:driver on your system is too old \(found version (?P<found>\d+)\)|CUDA driver version is insufficient for CUDA "
        r"runtime version|forward compatibility was attempted on non supported HW|unsupported display driver[^\n]*)",
        "the node's NVIDIA driver is too old for the CUDA of this PyTorch< (the driver has CUDA {found})>",
        "install a PyTorch for an older CUDA (pytorch.org lists them), or use newer nodes; slurmgpu doctor --on-gpu shows both",
        where="exception",
    ),
    Row(
        "cpu-build",
        "Torch not compiled with CUDA enabled|not compiled with GPU support|package doesn't have NCCL built in",
        r"(?:Torch not compiled with CUDA enabled|not compiled with GPU support|package doesn't have NCCL built in)",
        "this PyTorch is a build for CPUs alone",
        "for GPUs install the build for CUDA or ROCm (pip on a machine without a GPU may have chosen the other one): "
        "pytorch.org; to run without GPUs, write x.to(device), with the model's device, and not .cuda()",
        where="exception",
    ),
    Row(
        "no-gpu",
        "No CUDA GPUs are available|no CUDA-capable device is detected|No HIP GPUs are available|Found no NVIDIA driver"
        "|ProcessGroupNCCL is only supported with GPUs|No GPU found|torch.cuda.is_available() is False"
        "|torch.cuda.is_available() should be True|No supported gpu backend found|setup doesn't support bf16/gpu"
        "|no supported devices found for platform CUDA",
        r"(?P<message>No CUDA GPUs are available|no CUDA-capable device is detected|No HIP GPUs are available"
        r"|Found no NVIDIA driver on your system|ProcessGroupNCCL is only supported with GPUs, no GPUs found"
        r"|torch\.cuda\.is_available\(\) (?:is False|should be True)|No supported gpu backend found"
        r"|setup doesn't support bf16/gpu|no supported devices found for platform CUDA)",
        "the process saw no GPU: {message}<; {detail}>",
        "ask for GPUs (gpus:); see that CUDA_VISIBLE_DEVICES is not emptied, and that a container is started with --nv; "
        "slurmgpu doctor --on-gpu shows what a job sees",
        where="exception",
        nearby=(
            -300,
            r".*(?P<detail>kernel version does not match DSO.*|The NVIDIA driver on your system is too old [^.]*)",
        ),
    ),
    Row(
        "no-kernel",
        "no kernel image is available",
        r"no kernel image is available for execution on the device",
        "this build has no code for this model of GPU",
        "install a PyTorch, and own extensions, built for this GPU's generation (TORCH_CUDA_ARCH_LIST), or ask for another "
        "gpu_type",
        where="exception",
    ),
    Row(
        "fork-cuda",
        "Cannot re-initialize CUDA in forked",
        r"Cannot re-initialize CUDA in forked subprocess",
        "a data-loader worker, or another forked process, used the GPU",
        "leave the data to the CPU in the data set, or multiprocessing_context='spawn'",
        where="exception",
    ),
    Row(
        "cudnn",
        "Loaded runtime CuDNN library",
        r"(?P<message>Loaded runtime CuDNN library: .*)",
        "another cuDNN than the program was built with was loaded: {message}",
        "take the cuDNN that the program asks for, and no older one by LD_LIBRARY_PATH or a module",
        "host",
        "line",
    ),
    Row(
        "cudnn",
        "cuDNN error|CUDNN_STATUS|CUDNN_BACKEND|MIOpen Error|miopenStatus|cuDNN version incompat",
        r"(?P<message>cuDNN (?:error|version incompatibility): [^\n]*|CUDNN_STATUS_\w+|miopenStatus\w+)",
        "cuDNN or MIOpen failed: {message}",
        "most often the GPU's memory is nearly full, or another cuDNN is first on LD_LIBRARY_PATH than PyTorch's own",
        where="exception",
    ),
    Row(
        "cublas",
        "CUBLAS_STATUS",
        r"(?P<message>CUBLAS_STATUS_\w+)(?: when calling `?(?P<call>\w+))?",
        "cuBLAS failed: {message}< in {call}><; {detail}>",
        "most often sizes that do not fit, an index beyond its table, or a full GPU: run with CUDA_LAUNCH_BLOCKING=1, or the "
        "same batch on the CPU",
        where="exception",
        nearby=_ASSERTED,
    ),
    Row(
        "nccl-error",
        "NCCL error|NCCL Error|ncclSystemError|ncclUnhandledCudaError|ncclInternalError|ncclInvalidUsage",
        r"(?P<name>unhandled system error|unhandled cuda error|internal error|invalid usage|ncclSystemError|"
        r"ncclUnhandledCudaError|ncclInternalError|ncclInvalidUsage)(?:[\s\S]*?Last error:\s*(?P<message>[^\n]+))?",
        "NCCL failed: {name}<: {message}>",
        "--debug (NCCL_DEBUG=INFO) writes NCCL's own report; slurmgpu doctor --on-gpu tries GPUs and network",
        where="exception",
    ),
    Row(
        "cuda-error",
        "CUDA error: |HIP error: |CUDA driver error: ",
        r"(?P<message>(?:CUDA|HIP|CUDA driver) error: [^\n]*)",
        "{message}",
        "CUDA_LAUNCH_BLOCKING=1 shows which call it was",
        where="exception",
    ),
)
