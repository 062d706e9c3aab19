"""Messages of PyTorch, Hugging Face and other libraries on a program's own mistakes."""

from __future__ import annotations

from ..row import Row

__all__ = ["ROWS"]

ROWS = (
    Row(
        "state-dict",
        "loading state_dict",
        r"Error\(s\) in loading state_dict for (?P<model>\w+):\s*"
        r"(?P<message>(?:Missing key|Unexpected key|size mismatch)[^\n]*)?",
        "the checkpoint does not fit the model {model}<: {message}>",
        "load it into the model that wrote it; a prefix such as module. comes from DDP: save model.module.state_dict()",
        where="exception",
    ),
    Row(
        "checkpoint-broken",
        "PytorchStreamReader failed|failed finding central directory|Ran out of input|invalid load key"
        "|SafetensorError|unexpected EOF, expected|Errno 22]",
        r"(?P<message>PytorchStreamReader failed[^\n]*|Ran out of input|invalid load key[^\n]*|[^\n]*Safetensor[^\n]*"
        r"|unexpected EOF, expected[^\n]*|\[Errno 22\] Invalid argument(?=\n[^\n]*PyTorchFileReader))",
        "a checkpoint or data file is not whole: {message}",
        "use the one before it; write to another name and rename, so that an end in the middle leaves the old one",
        where="exception",
    ),
    Row(
        "weights-only",
        "Weights only load failed",
        r"Weights only load failed[^\n]*",
        "torch.load refused a checkpoint that holds more than tensors",
        "of a file that you trust: torch.load(..., weights_only=False), or torch.serialization.add_safe_globals",
        where="exception",
    ),
    Row(
        "numpy-abi",
        "numpy.dtype size changed|compiled using NumPy 1.x cannot be run|_ARRAY_API not found",
        r"(?P<message>numpy\.dtype size changed[^\n]*|compiled using NumPy 1\.x cannot be run[^\n]*|_ARRAY_API not found)",
        "a package was built for another NumPy: {message}",
        "install that package again in this environment, or pip install 'numpy<2'",
        where="exception",
    ),
    Row(
        "unused-parameters",
        "Expected to have finished reduction in the prior iteration",
        r"Expected to have finished reduction in the prior iteration",
        "parameters of the model took no part in the loss, and DDP waits for their gradients",
        "use all parameters in forward, or DistributedDataParallel(..., find_unused_parameters=True)",
        where="exception",
    ),
    Row(
        "not-initialised",
        "Default process group has not been initialized|environment variable RANK expected|environment variable WORLD_SIZE"
        "|environment variable MASTER_ADDR|environment variable MASTER_PORT|environment variable LOCAL_RANK",
        r"(?:Default process group has not been initialized|environment variable (?P<name>\w+) expected)",
        "the process was not told who is who<: {name} is not set>",
        "start it with torchrun or srun (launch:); srun alone sets SLURM_PROCID, which slurmgpu's scripts turn into RANK",
        where="exception",
    ),
    Row(
        "not-finite",
        "nan|NaN|inf",
        r"(?P<message>\b[Ll]oss(?: is| =|:|=)? ?(?:nan|NaN|inf)\b[^\n]*)",
        "numbers became NaN or infinite: {message}",
        "a smaller learning rate, a warm-up, clipping, or bf16 in place of fp16; look at the batch of that step",
        "symptom",
        "line",
    ),
    Row(
        "not-finite",
        "values, but found NaN|is not finite|Function '|returned nan values|Loss is nan|loss is nan|nan loss",
        r"(?:Function '(?P<name>\w+)' returned nan values"
        r"|(?P<message>[^\n]*(?:is not finite|[Ll]oss is nan|nan loss|found NaN)[^\n]*))",
        "numbers became NaN or infinite<: in the gradient of {name}><: {message}>",
        "a smaller learning rate, a warm-up, clipping, or bf16 in place of fp16; look at the batch of that step",
        where="exception",
    ),
    Row(
        "other-device",
        "Expected all tensors to be on the same device|is not on the expected device",
        r"(?:Expected all tensors to be on the same device, but "
        r"(?:found at least two devices, (?P<found>[^\n!]+)!?|(?P<got>[^\n]+))"
        r"|Tensor on device (?P<one>\S+) is not on the expected device (?P<other>[^\s!]+))",
        "tensors are on different devices<: {found}><: {one} and {other}>",
        "move model and batch to the same one: x.to(device); new tensors: device=x.device",
        where="exception",
    ),
    Row(
        "wrapped-model",
        "DataParallel' object has no attribute",
        r"AttributeError: '(?P<wrapper>\w*DataParallel)' object has no attribute '(?P<name>\w+)'",
        "{wrapper} has no {name}: it wraps the model, and hides the model's own attributes",
        "model.module.{name} reaches it; what is trained has to go through model(...): let forward call {name}",
        where="exception",
    ),
    Row(
        "shape",
        "mat1 and mat2 shapes|size mismatch|must match the size of tensor|shape '[|is invalid for input of size"
        "|Given groups=|stack expects each tensor to be equal size|Sizes of tensors must match",
        r"(?P<message>mat1 and mat2 shapes cannot be multiplied[^\n]*|The size of tensor a [^\n]*|shape '\[[^\n]*"
        r"|Given groups=[^\n]*|stack expects each tensor to be equal size[^\n]*|Sizes of tensors must match[^\n]*"
        r"|[^\n]*size mismatch[^\n]*)",
        "shapes do not fit: {message}",
        "print the shapes before that line",
        where="exception",
    ),
    Row(
        "dtype",
        "expected scalar type|expected m1 and m2 to have the same dtype|must have the same dtype|should be the same"
        "|not implemented for '|Found dtype",
        r"(?:^\w+: )?(?P<message>[^\n]*expected scalar type[^\n]*|[^\n]*must have the same dtype[^\n]*|expected m1 and m2[^\n]*"
        r"|Input type \([^\n]*should be the same|[^\n]*not implemented for '\w+'|Found dtype [^\n]*)",
        "types of numbers do not fit: {message}",
        "give both the same dtype, or compute in torch.autocast",
        where="exception",
    ),
    Row(
        "backward-twice",
        "Trying to backward through the graph a second time|does not require grad and does not have a grad_fn"
        "|modified by an inplace operation",
        r"(?P<message>Trying to backward through the graph a second time|element 0 of tensors does not require grad[^\n.]*"
        r"|one of the variables needed for gradient computation has been modified by an inplace operation)",
        "there is no gradient to compute: {message}",
        "compute the loss anew in each step, from parameters that require gradients, without in-place changes",
        where="exception",
    ),
    Row(
        "class-index",
        "is out of bounds|index out of range in self",
        r"(?P<message>Target \d+ is out of bounds|index out of range in self|index \d+ is out of bounds[^\n]*)",
        "an index is beyond its table: {message}",
        "compare it with the number of classes, the size of the vocabulary or the length of the data",
        where="exception",
    ),
    Row(
        "hub-token",
        "GatedRepoError|401 Client Error|403 Client Error|Repository Not Found|RepositoryNotFoundError|Invalid user token"
        "|Access to model|is not a local folder and is not a valid model",
        r"(?:(?P<code>40[13]) Client Error|GatedRepoError|Access to model (?P<model>\S+) is restricted|Repository ?Not ?Found"
        r"|Invalid user token|is not a local folder and is not a valid model)",
        "the Hugging Face Hub did not give what was asked for<: {model}>",
        "accept the model's terms in the browser, and give the token: secrets: [HF_TOKEN]; see that the name is spelled exactly",
        where="exception",
    ),
    Row(
        "hub-offline",
        "couldn't connect to 'https://huggingface.co|LocalEntryNotFoundError|OfflineModeIsEnabled|HF_HUB_OFFLINE"
        "|offline mode is enabled|Cannot reach https://huggingface.co|Couldn't reach",
        r"(?:couldn't connect to 'https://huggingface\.co'|LocalEntryNotFound|OfflineModeIsEnabled|HF_HUB_OFFLINE|"
        r"[Oo]ffline mode is enabled|Cannot reach https://huggingface\.co|Couldn't reach (?P<name>\S+))",
        "a model or data set is not in the cache, and the node has no way to the Hugging Face Hub<: {name}>",
        "fetch it on a login node first (huggingface-cli download), with the same HF_HOME",
        where="exception",
    ),
    Row(
        "certificate",
        "CERTIFICATE_VERIFY_FAILED|certificate verify failed",
        r"(?:host='(?P<host>[^']+)'[\s\S]*)?(?:CERTIFICATE_VERIFY_FAILED|certificate verify failed)",
        "the certificate of a server is not trusted here<: {host}>",
        "name the system's or the site's certificates: SSL_CERT_FILE, REQUESTS_CA_BUNDLE (often "
        "/etc/ssl/certs/ca-certificates.crt or /etc/pki/tls/certs/ca-bundle.crt), or fetch it on a login node",
        where="exception",
    ),
    Row(
        "server-silent",
        "server can't be reached at",
        r"(?P<message>[Tt]he [\w ]*server can't be reached at \S+[^\n]*)",
        "{message}",
        "look at the server's own log: it did not start, or it is on another node or port",
        "symptom",
        "exception",
    ),
    Row(
        "dask-killed",
        "KilledWorker",
        r"KilledWorker: Attempted to run task (?P<task>.+?) on (?P<count>\d+) different workers",
        "{count} workers of Dask died one after the other at the task {task}<: {detail}>",
        "give the workers more memory (memory_limit, fewer workers on a node), or make the task's pieces smaller",
        where="exception",
        nearby=(
            -400,
            r".*distributed\.nanny\S* - WARNING - (?P<detail>.*(?:memory budget|memory limit|signal).*)",
        ),
    ),
    Row(
        "no-network",
        "Network is unreachable|Max retries exceeded|NewConnectionError|ConnectTimeoutError|urlopen error",
        r"(?:host='(?P<host>(?!localhost|127\.|0\.0\.0\.0)[^']+)'|urlopen error (?P<message>[^>\n]+)|Network is unreachable)",
        "the node could not reach the network<: {host}><: {message}>",
        "compute nodes often have no network: fetch data beforehand on a login node, start a server where the nodes reach it, or "
        "use the site's proxy (https_proxy)",
        where="exception",
    ),
    Row(
        "wandb",
        "wandb_manager.py|sock_client.py|wandb service failed|wandb/sdk",
        r"(?P<message>Connection to wandb service failed[^\n]*|(?:BrokenPipe|ConnectionRefused"
        r"|ConnectionReset)Error[^\n]*(?=[\s\S]*wandb/sdk))",
        "wandb's own process is gone: {message}",
        "write to disk alone, and upload later: WANDB_MODE=offline, wandb sync",
        where="exception",
    ),
    Row(
        "lightning-tasks",
        "in your SLURM bash script, but|number of tasks per node configured in SLURM",
        r"(?P<message>You set `(?:--ntasks|devices|num_nodes)=[^\n]*)",
        "{message}",
        "ask for as many tasks a node as GPUs a node, and give Lightning the same: --ntasks-per-node=N (launch: srun), devices=N",
        where="exception",
    ),
    Row(
        "wandb",
        "wandb.errors|wandb: ERROR|Run initialization has timed out",
        r"(?P<message>(?:wandb\.errors[\w.]*|wandb: ERROR|CommError: Run initialization has timed out).*)",
        "wandb: {message}",
        "give the key (secrets: [WANDB_API_KEY]), or write to disk alone: WANDB_MODE=offline",
        where="exception",
    ),
    Row(
        "compiler-too-new",
        "unsupported GNU version",
        r"unsupported GNU version! ?(?P<message>[^\n!]*)",
        "nvcc does not work with this compiler<: {message}>",
        "load an older gcc (module avail gcc), or a newer CUDA, before it is built; NVCC_CCBIN or -ccbin names another compiler",
    ),
    Row(
        "libdevice",
        "libdevice not found|libdevice is required",
        r"libdevice (?:not found|is required)[^\n]*",
        "TensorFlow's or JAX's compiler (XLA) finds no libdevice.10.bc, which comes with CUDA",
        "load a module of CUDA and set XLA_FLAGS=--xla_gpu_cuda_data_dir=$CUDA_HOME; or pip install tensorflow[and-cuda]",
        where="exception",
    ),
    Row(
        "compiler",
        "Ninja is required|MissingCUDAException|Error building extension|BackendCompilerFailed|InductorError"
        "|non-zero exit status|cannot "
        "find -l|Failed to find C compiler|CUDA_HOME",
        r"(?P<message>Ninja is required[^\n]*|InductorError: CalledProcessError[^\n]*|cannot find -l\w+|Error building "
        r"extension '[^']+'|Failed to find C compiler[^\n]*"
        r"|CUDA_HOME (?:environment variable is not set|does not exist)[^\n]*|backend='\w+' raised:[^\n]*\n?[^\n]*)",
        "something could not be compiled: {message}<; {detail}>",
        "load a compiler and CUDA (modules: gcc, cuda), as where it was built; TORCHINDUCTOR_CACHE_DIR on a node's own disk "
        "keeps processes from disturbing each other",
        where="exception",
        nearby=(-80, r".*\bfatal error: (?P<detail>.*)"),
    ),
)
