"""Stand-ins that a script for GPUs needs on a CPU; Python reads this first, where the folder is on PYTHONPATH.

Where CUDA is there, nothing changes. Elsewhere

- the backend ``nccl`` of a process group means gloo;
- in a job that asks for GPUs, devices called cuda are the CPU;
- a script that starts its processes by ``mp.spawn`` is told of the GPUs that its job has, so that it starts as many;
- ``mp.spawn`` of no process at all is an error: nothing would be trained, and the job would end with 0;
- Accelerate, which Transformers' Trainer is built on, joins its processes on the CPU instead of training in each alone;
- JAX meets at the address that the job's script has found: the names of pretended nodes are nobody's;
- a script that fails because it asks for a GPU itself is told so.

Standard library only, for any Python 3.9 or newer: it runs in the user's own.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.machinery
import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

_INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_SPAWNS = re.compile(r"\b(?:spawn|start_processes)\s*\(")


def _has_cuda() -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_available())


def _say(text: str) -> None:
    """Once for all processes: the first one speaks."""
    if os.environ.get("RANK", "0") == "0" and text not in _said:
        _said.add(text)
        print(f"slurmgpu: no GPU here: {text}", file=sys.stderr, flush=True)


_said: set[str] = set()


def _process_groups(module: Any) -> None:
    """torch.distributed.distributed_c10d: gloo for nccl."""

    def on_cpu(original: Callable[..., Any], position: int) -> Callable[..., Any]:
        @functools.wraps(original)
        def changed(*args: Any, **kwargs: Any) -> Any:
            backend = kwargs.get("backend", args[position] if len(args) > position else None)
            if _has_cuda():
                return original(*args, **kwargs)
            _let_threads_end()
            if not isinstance(backend, str) or "nccl" not in backend.lower():
                return original(*args, **kwargs)
            _say(f"backend {backend!r} is gloo")
            gloo = backend.lower().replace("nccl", "gloo")
            kwargs.pop("device_id", None)  # a GPU
            if "backend" in kwargs:
                return original(*args, **{**kwargs, "backend": gloo})
            return original(*args[:position], gloo, *args[position + 1 :], **kwargs)

        return changed

    module.init_process_group = on_cpu(module.init_process_group, 0)
    module.new_group = on_cpu(module.new_group, 2)
    if _pretended_gpus():
        barrier = module.barrier
        module.barrier = lambda *args, device_ids=None, **kwargs: barrier(
            *args, **kwargs, **({"device_ids": device_ids} if _has_cuda() else {})
        )


@functools.cache
def _let_threads_end() -> None:
    """Give gloo's threads a moment before Python ends.

    One that still holds the tensors of the last collective then wants the interpreter's lock, and aborts the process
    (pytorch/pytorch#179291; seen once in some 40 runs on a busy machine).
    """
    atexit.register(time.sleep, 0.2)


_FACTORIES = (
    "tensor", "as_tensor", "zeros", "ones", "empty", "full", "rand", "randn", "randint", "randperm", "arange", "linspace",
    "eye", "zeros_like", "ones_like", "empty_like", "full_like", "rand_like", "randn_like",
)  # fmt: skip


def _devices(torch: Any) -> None:
    """torch: what a script that does not ask whether there are GPUs puts onto them stays on the CPU."""
    if not _pretended_gpus() or _has_cuda():
        return
    _cuda(torch.cuda)
    _accelerator(torch)
    _autocast(torch)

    def on_cpu(
        original: Callable[..., Any], place: int | None = None, name: str = "device"
    ) -> Callable[..., Any]:
        """``place``: the device's place among the arguments, where it may stand without its name."""

        def is_gpu(device: object) -> bool:
            if type(device) is int:
                return True
            return isinstance(device, (str, torch.device)) and str(device).startswith("cuda")

        @functools.wraps(original)
        def changed(*args: Any, **kwargs: Any) -> Any:
            if is_gpu(kwargs.get(name)):
                kwargs[name] = "cpu"
                _say("cuda is the CPU")
            elif place is not None and len(args) > place and is_gpu(args[place]):
                args = (*args[:place], "cpu", *args[place + 1 :])
                _say("cuda is the CPU")
            return original(*args, **kwargs)

        return changed

    def stays(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def changed(self: Any, *_: Any, **__: Any) -> Any:
            _say("cuda is the CPU")
            return self

        return changed

    for kind in (torch.Tensor, torch.nn.Module):
        kind.to = on_cpu(kind.to, 1)
        kind.cuda = stays(kind.cuda)
    torch.Tensor.pin_memory = stays(torch.Tensor.pin_memory)
    torch.Tensor.record_stream = lambda *_: None
    torch.load = on_cpu(torch.load, 1, "map_location")
    torch.set_default_device = on_cpu(torch.set_default_device, 0)
    asks = "is_available" in _code()
    for name in () if asks else _FACTORIES:  # they are what TorchScript knows, and compiles
        setattr(torch, name, on_cpu(getattr(torch, name)))


def _autocast(torch: Any) -> None:
    """torch.autocast("cuda"): the same precision on the CPU, where it would be switched off."""
    original = torch.autocast.__init__

    @functools.wraps(original)
    def __init__(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.float16
        original(self, device_type, dtype, *args, **kwargs)

    torch.autocast.__init__ = __init__


def _code() -> str:
    """Return the text of the program: a file, or what stands behind -c; what asks for a GPU where it cannot be read."""
    words: list[str] = getattr(sys, "orig_argv", [])
    if sys.argv[0] == "-c" and "-c" in words:
        return words[words.index("-c") + 1]
    try:
        return Path(sys.argv[0]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return "is_available"


def _accelerator(torch: Any) -> None:
    """torch.accelerator, by which newer tutorials ask for a GPU; torch itself goes on seeing none."""

    def to_scripts(original: Callable[..., Any], answer: Callable[[], Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def changed(*args: Any, **kwargs: Any) -> Any:
            theirs = _INSTALLED.search(sys._getframe(1).f_code.co_filename)
            return original(*args, **kwargs) if theirs else answer()

        return changed

    module, nothing = getattr(torch, "accelerator", None), lambda: None
    answers: dict[str, Callable[[], Any]] = {
        "current_accelerator": lambda: torch.device("cuda"), "device_count": _pretended_gpus, "set_device_index": nothing,
        "set_device_idx": nothing, "synchronize": nothing, "current_device_index": lambda: 0,
    }  # fmt: skip
    for name in answers.keys() & vars(module or object).keys():
        setattr(module, name, to_scripts(getattr(module, name), answers[name]))


def _data_parallel(module: Any) -> None:
    """torch.nn.parallel.distributed: DDP takes no numbers of GPUs for a model on the CPU."""
    original = module.DistributedDataParallel.__init__

    @functools.wraps(original)
    def __init__(
        self: Any, wrapped: Any, device_ids: Any = None, output_device: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        if _pretended_gpus() and not _has_cuda():
            device_ids = output_device = None
        original(self, wrapped, device_ids, output_device, *args, **kwargs)

    module.DistributedDataParallel.__init__ = __init__


class _Done:
    """An event or a stream of torch.cuda on the CPU, where what was called is done."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.at = 0.0

    def record(self, *_: Any) -> None:
        self.at = time.perf_counter()

    def record_event(self, event: _Done | None = None) -> _Done:
        event = event or _Done()
        event.record()
        return event

    def elapsed_time(self, later: _Done) -> float:
        return (later.at - self.at) * 1000

    def query(self) -> bool:
        return True

    def wait(self, *_: Any) -> None: ...

    synchronize = wait_event = wait_stream = wait


def _cuda(module: Any) -> None:
    """torch.cuda, once torch is whole: what is asked of a GPU is answered for the CPU."""
    nothing: dict[str, object] = {
        "set_device": None, "synchronize": None, "empty_cache": None, "reset_peak_memory_stats": None,
        "reset_max_memory_allocated": None, "current_device": 0, "memory_allocated": 0, "max_memory_allocated": 0,
        "memory_reserved": 0, "max_memory_reserved": 0,
        "get_device_name": "CPU", "memory_summary": "no GPU here, and no memory of one",
    }  # fmt: skip
    for name, value in nothing.items():
        setattr(module, name, lambda *_, value=value, **__: value)
    module.get_device_properties = lambda *_: SimpleNamespace(
        name="CPU", total_memory=0, major=0, minor=0, multi_processor_count=0
    )
    module.get_device_capability = module.mem_get_info = lambda *_: (0, 0)
    module.device = lambda *_: contextlib.nullcontext()
    module.Event = module.Stream = module.current_stream = module.default_stream = _Done
    module.stream = lambda *_: contextlib.nullcontext()


def _device_count(module: Any) -> None:
    """torch.cuda: the job's GPUs, for a script that starts a process for each."""
    original = module.device_count

    @functools.wraps(original)
    def device_count() -> int:
        real = int(original())
        asked_by = sys._getframe(1).f_code.co_filename
        pretended = 0 if real else _pretended_gpus()
        if not pretended or not ("LOCAL_RANK" in os.environ or _is_of_a_spawning_script(asked_by)):
            return real
        _say(f"torch.cuda.device_count() is {pretended}, as in the job")
        return pretended

    module.device_count = device_count


def _pretended_gpus() -> int:
    """Return how many GPUs the job has on this node, as a local run or Slurm says."""
    for name in ("SLURMGPU_PRETENDED_GPUS", "SLURM_GPUS_ON_NODE"):
        if os.environ.get(name, "").isdigit():
            return int(os.environ[name])
    # Before 21.08 a batch script is told only which GPUs it has.
    return len(
        [device for device in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.isdigit()]
    )


@functools.cache
def _is_of_a_spawning_script(asked_by: str) -> bool:
    """Return True if this file is the user's own, and it or the script itself starts processes."""
    if _INSTALLED.search(asked_by):
        return False
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    for path in (asked_by, script):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if path and _SPAWNS.search(Path(path).read_text(encoding="utf-8")):
                return True
    return False


def _spawn(module: Any) -> None:
    """torch.multiprocessing.spawn: not a single process is a mistake."""
    original = module.start_processes

    @functools.wraps(original)
    def start_processes(fn: Any, args: Any = (), nprocs: int = 1, *others: Any, **kwargs: Any) -> Any:
        if nprocs == 0 and not _has_cuda():
            raise RuntimeError(
                "slurmgpu: mp.spawn has nprocs=0, so nothing would be trained: there is no GPU here to count; "
                "write nprocs = torch.cuda.device_count() or 2, to try it on the CPU"
            )
        return original(fn, args, nprocs, *others, **kwargs)

    module.start_processes = start_processes


def _accelerate(module: Any) -> None:
    """accelerate.state: the processes of a launcher are one training, on the CPU too."""
    original = module.PartialState.__init__

    @functools.wraps(original)
    def __init__(self: Any, cpu: bool = False, **kwargs: Any) -> None:
        original(self, cpu or ("LOCAL_RANK" in os.environ and not _has_cuda()), **kwargs)

    module.PartialState.__init__ = __init__


def _ray(module: Any) -> None:
    """Ray's count of GPUs: the job's, so that a cluster which the script starts gives its workers as many as on a node."""
    manager = module.NvidiaGPUAcceleratorManager
    original = manager.get_current_node_num_accelerators

    def get_current_node_num_accelerators() -> int:
        real = int(original())
        pretended = 0 if real else _pretended_gpus()
        if pretended:
            _say(f"Ray counts {pretended} GPUs")
            if not os.environ.get("CUDA_VISIBLE_DEVICES"):  # Ray counts names, and no GPU has these
                os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(f"no-gpu-{i}" for i in range(pretended))
        return real or pretended

    manager.get_current_node_num_accelerators = staticmethod(get_current_node_num_accelerators)


_CHANGES: dict[str, Callable[[Any], None]] = {
    "torch.distributed.distributed_c10d": _process_groups,
    "torch": _devices,
    "torch.cuda": _device_count,
    "torch.nn.parallel.distributed": _data_parallel,
    "torch.multiprocessing.spawn": _spawn,
    "accelerate.state": _accelerate,
    "ray._private.accelerators.nvidia_gpu": _ray,
}


class _Changing:
    """Finds the modules of ``_CHANGES`` as the others would, and changes each once it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        change = _CHANGES.get(name)
        if change is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _change_when_loaded(spec.loader, change)
                return spec
        return None


def _change_when_loaded(loader: Any, change: Callable[[Any], None]) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        with contextlib.suppress(AttributeError):  # another release of it
            change(module)

    with contextlib.suppress(AttributeError):
        loader.exec_module = exec_module


def _meet_jax() -> None:
    address, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT")
    if address and port and "SLURM_STEP_NODELIST" in os.environ:
        os.environ.setdefault("JAX_COORDINATOR_ADDRESS", f"{address}:{port}")


_NEEDS_A_GPU = re.compile(
    r"Torch not compiled with CUDA enabled|Found no NVIDIA driver|No CUDA GPUs are available"
    r"|Cannot access accelerator device when none is available|deserialize object on a CUDA device"
)


def _explain_what_needs_a_gpu() -> None:
    """After the traceback of a script that asks for CUDA itself: why it fails here, and what it takes to try it."""
    original = sys.excepthook

    def excepthook(kind: Any, error: Any, trace: Any) -> None:
        original(kind, error, trace)
        if _NEEDS_A_GPU.search(str(error)) and not _has_cuda():
            _say(
                "the script asks for one itself; to try it on the CPU: "
                'device = "cuda" if torch.cuda.is_available() else "cpu"'
            )

    sys.excepthook = excepthook


def _run_the_next() -> None:
    """Another sitecustomize that this one comes before."""
    here = Path(__file__).resolve().parent
    others = [path for path in sys.path if Path(path).resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


sys.meta_path.insert(0, _Changing())
_explain_what_needs_a_gpu()
_meet_jax()
_run_the_next()
