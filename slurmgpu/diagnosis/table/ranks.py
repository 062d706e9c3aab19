"""Failures of processes that meet and talk: NCCL, gloo, the store, the launchers.

Messages: torch/csrc/distributed/c10d (ProcessGroupNCCL.cpp, ProcessGroupGloo.cpp, NCCLUtils.hpp, TCPStore.cpp),
gloo/transport/tcp, torch/distributed/elastic.
"""

from __future__ import annotations

from ..row import Row

__all__ = ["ROWS"]

_SAME_STEPS = "all ranks must take the same steps: look for a branch, an early end of data or a save that one rank takes alone"
_LONG = "; should a step of one rank really take so long, a longer timeout (init_process_group(timeout=...))"

_WHY_NOT = (
    -60,
    r".*(?:be retrieved \(|connect to \S+ \(errno: )(?P<detail>gai error: [^)]*|11[03] - [^)]*)\)",
)
"""Earlier words of c10d on the connection: a name that is none, no route, a time that was up."""

ROWS = (
    Row(
        "nccl-timeout",
        "Watchdog caught collective operation timeout",
        r"(?:\[Rank (?P<rank>\d+)\] )?Watchdog caught collective operation timeout: WorkNCCL\(SeqNum=(?P<seq>\d+), "
        r"OpType=(?P<op>\w+).*?Timeout\(ms\)=(?P<ms>\d+)\) ran for (?P<ran>\d+) milliseconds",
        "{op} number {seq} did not end within {ms} ms (NCCL)",
        _SAME_STEPS + _LONG,
        "waiting",
    ),
    Row(
        "monitored-barrier",
        "monitoredBarrier",
        r"(?:Ranks? (?P<missing>[\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d+) ms"
        r"|\[Rank (?P<waiting>\d+)\]: Rank (?P<waited>\d+) failed to pass monitoredBarrier)",
        "rank <{missing}><{waited}> did not come to a barrier< within {ms} ms>",
        _SAME_STEPS + _LONG,
        "waiting",
    ),
    Row(
        "gloo-timeout",
        "Timed out waiting",
        r"Timed out waiting (?P<ms>\d+)ms for (?P<op>send|recv) operation to complete",
        "a collective of gloo waited {ms} ms for another rank",
        _SAME_STEPS + _LONG,
        "waiting",
    ),
    Row(
        "gloo-timeout",
        "Application timeout caused pair closure|Gloo connectFullMesh failed|Socket Timeout",
        r"(?:Application timeout caused pair closure|connectFullMesh failed.*(?:timed? ?out)|Socket Timeout)",
        "a collective of gloo waited for another rank longer than its timeout",
        _SAME_STEPS + _LONG,
        "waiting",
    ),
    Row(
        "too-many-processes",
        "worker_count=",
        r"\(world_size=(?P<world>\d+), worker_count=(?P<count>(?!(?P=world),)\d+)",
        "more processes than the world size: {count} came for {world}",
        "each task of srun starts processes itself: one task a node (ntasks_per_node), or one process a task without mp.spawn",
        where="exception",
    ),
    Row(
        "store-timeout",
        "Timed out after|store barrier|wait timeout after|Timed out waiting for clients|Timed out initializing process group",
        r"(?:Timed out after (?P<s>\d+) seconds waiting for clients. (?P<have>\d+)/(?P<want>\d+) clients joined"
        r"|(?P<message>(?:wait timeout after \d+ms|Timed out initializing process group in store based barrier on rank: \d+"
        r"|.*store.*Timed out after).*))",
        "the processes did not all find each other< within {s} s: {have} of {want} came>< ({message})>",
        "the first error of a process that did not come says why; else MASTER_ADDR, MASTER_PORT or a firewall: "
        "slurmgpu doctor --on-gpu looks at the network",
        "waiting",
    ),
    Row(
        "rendezvous-closed",
        "RendezvousClosedError|RendezvousGracefulExitError",
        r"Rendezvous(?:Closed|GracefulExit)Error",
        "torchrun's rendezvous was closed: another agent had ended before",
        "look at the node whose processes ended first",
        "symptom",
        "exception",
    ),
    Row(
        "rendezvous-timeout",
        "RendezvousTimeoutError|RendezvousConnectionError",
        r"(?P<name>Rendezvous(?:Timeout|Connection)Error)(?:: (?P<message>.*))?",
        "torchrun's agents did not all find each other< ({message})><; {detail}>",
        "all nodes must be given the same address, port and id; slurmgpu doctor --on-gpu looks at the network",
        "waiting",
        "exception",
        _WHY_NOT,
    ),
    Row(
        "rendezvous-timeout",
        "Getting local topologies failed|GetKeyValue() timed out",
        r"(?P<message>(?:Getting local topologies failed|GetKeyValue\(\) timed out with key: \S+)[^\n]*)",
        "JAX's processes did not all find each other: {message}",
        "look at the process that said something else, or nothing; slurmgpu doctor --on-gpu looks at the network",
        "waiting",
        "exception",
    ),
    Row(
        "no-route",
        "No route to host",
        r"(?:connect to [(\[]?(?P<address>[\w.-]+(?::|, )\d+)[^\n]*)?No route to host",
        "there is no way to< {address}>: No route to host",
        "a firewall, or an interface that the other node is not on: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name the one "
        "between the nodes; the host's name must be that of this network",
        "waiting",
        "exception",
    ),
    Row(
        "unknown-address",
        "to connect to (|addresses of (",
        r"(?:to connect to|addresses of) \((?P<host>[\w.-]+\[[\d,-]+\][^,]*), ",
        "the address to meet at is {host}, which names several nodes",
        'take the first one: MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)',
        where="exception",
    ),
    Row(
        "store-timeout",
        "Barrier timed out",
        r"DEADLINE_EXCEEDED: (?P<message>Barrier timed out[^\n]{0,120})",
        "the processes did not all come to JAX's barrier: {message}",
        "look for the process that ended or did not start: its own log, and the first `srun: error`",
        "waiting",
        "exception",
    ),
    Row(
        "connection-refused",
        "APIConnectionError|Max retries exceeded with url|ConnectError",
        r"(?:APIConnectionError: (?P<message>.*)|host='?(?:localhost|127\.0\.0\.1).*Max retries exceeded"
        r"|ConnectError: .*Connection refused)",
        "a server that the program talks to did not answer<: {message}>",
        "look for why the server did not start, or ended: its own log, and what it printed before",
        "symptom",
        "exception",
    ),
    Row(
        "nccl-system",
        "Transport retry count exceeded on ",
        r"(?P<message>Transport retry count exceeded on \S+)",
        "the InfiniBand link was lost: {message}",
        "start it again without the node that says so (exclude:), and tell the site; UCX_RC_TIMEOUT waits longer",
        where="line",
    ),
    Row(
        "connection-refused",
        "errno: 111 - Connection refused|ConnectionRefusedError|client socket has timed out|client socket has failed to connect",
        r"(?:client socket has (?:timed out after \d+ms while trying|failed) to connect to [(\[]?(?P<address>[^)\]\n]+)[)\]]?"
        r"|errno: 111 - Connection refused|ConnectionRefusedError)",
        "nobody answered< at {address}>: the process that others connect to was not there<; {detail}>",
        "look for why the first process did not start; address and port must be the same on all nodes (127.* is each one itself)",
        "waiting",
        "exception",
        _WHY_NOT,
    ),
    Row(
        "unknown-address",
        "Name or service not known|gai error|Temporary failure in name resolution",
        r"(?:(?P<host>[A-Za-z][\w.-]*)[^\w]{1,4}(?:Name or service not known|Temporary failure in name resolution)"
        r"|gai error: (?P<code>\S+)|Name or service not known|Temporary failure in name resolution)",
        "the name of a machine could not be resolved<: {host}>",
        "on the nodes there may be no network outside; for MASTER_ADDR use a name that the nodes know (scontrol show hostnames)",
    ),
    Row(
        "port-in-use",
        "EADDRINUSE|Address already in use",
        r"(?:[^\n]*?(?:\]:|port:? ?)(?P<port>\d{2,5})\b)?[^\n]*(?:EADDRINUSE|[Aa]ddress already in use)",
        "the port< {port}> is in use by another process on the node",
        "leave MASTER_PORT to slurmgpu, which takes it from the job's number; an own one must differ between jobs: "
        "MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))",
    ),
    Row(
        "duplicate-gpu",
        "Duplicate GPU detected",
        r"Duplicate GPU detected ?: rank (?P<one>\d+) and rank (?P<other>\d+) both on CUDA device (?P<device>\w+)",
        "ranks {one} and {other} use the same GPU ({device})",
        "set the device by the local rank: torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
    ),
    Row(
        "watchdog-stuck",
        "watchdog got stuck",
        r"(?:Rank (?P<rank>\d+)\] )?ProcessGroupNCCL's watchdog got stuck for (?P<s>\d+) seconds",
        "NCCL's watchdog was stuck for {s} s: a call of NCCL or CUDA hung",
        _SAME_STEPS + "; a process that only waits may need a longer TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC",
        where="line",
    ),
    Row(
        "nccl-interface",
        "no socket interface found",
        r"no socket interface found",
        "NCCL: no socket interface found on the node",
        "NCCL_SOCKET_IFNAME must name an interface that the node has (ip -br link), or be unset; slurmgpu doctor "
        "--on-gpu shows them",
    ),
    Row(
        "nvls",
        "NVLink SHARP|NVLS",
        r"(?P<message>Failed to bind NVLink SHARP \(NVLS\)[^\n]*)",
        "NCCL: {message}",
        "NCCL_NVLS_ENABLE=0 goes without it; tell the site: the node's fabric manager or NVSwitches are not well",
        where="line",
    ),
    Row(
        "nccl-system",
        "NET/IB",
        r"NCCL WARN (?P<message>.*Got completion from peer (?P<peer>\S+) with status=12.*)",
        "NCCL: {message}",
        "the InfiniBand link to that peer was lost: start it again without the node that says so, or its peer (exclude:), and "
        "tell the site both; NCCL_IB_TIMEOUT=22 waits longer where the network is only busy",
        where="line",
    ),
    Row(
        "nccl-system",
        "NCCL WARN",
        r"NCCL WARN (?P<message>.*(?:NET/IB : Got completion|NET/OFI Request completed with error|transport retry|"
        r"ibv_\w+ failed(?!.*Cannot allocate memory)|Could not find any local path|failed to find reverse path|No such device"
        r"|Cuda failure).*)",
        "NCCL: {message}",
        "slurmgpu doctor --on-gpu tries the network; --debug writes NCCL's own report; NCCL_SOCKET_IFNAME names the interface",
        where="line",
    ),
    Row(
        "shm-nccl",
        "Error while creating shared memory segment|Call to posix_fallocate failed|shmSetup",
        r"(?:Error while creating shared memory segment (?P<name>\S+)(?: \(size (?P<size>\d+)\))?|posix_fallocate failed.*)",
        "NCCL could not make its shared memory<: {size} bytes>: /dev/shm of the container or node is too small",
        "give the container more (docker: --shm-size; apptainer shares the node's), or set NCCL_SHM_DISABLE=1, which is slower",
        where="line",
    ),
    Row(
        "nccl-remote",
        "remote process exited|communicator was aborted|NCCL communicator was aborted|ncclRemoteError|ncclInProgress",
        r"(?:remote process exited|communicator was aborted|ncclRemoteError)",
        "another process was gone (NCCL)",
        "look at the rank that ended first",
        "consequence",
    ),
    Row(
        "connection-lost",
        "onnection closed by peer|onnection reset by peer|Broken pipe|Connection was likely closed|failed to recv, got 0 bytes"
        "|Failed to recv|recvValue failed|Connection was closed|sendBytes failed|recvBytes failed|Read error ["
        "|closed by remote peer|errors while waiting to be unblocked|Socket closed",
        r"(?:[Cc]onnection closed by peer|[Cc]onnection reset by peer|Broken pipe|Connection was likely closed|"
        r"[Ff]ailed to recv|(?:recvValue|sendBytes|recvBytes) failed|Connection was closed|Read error \["
        r"|closed by remote peer|errors while waiting to be unblocked|Socket closed)",
        "another process was gone",
        "look at the rank that ended first",
        "consequence",
    ),
    Row(
        "told-to-end",
        "SignalException|SIGTERMException|received SIGTERM|SIGTERM received|got signal: 15|Received SIGTERM|Received 15",
        r"(?:SignalException: Process \d+ got signal: (?P<number>\d+)|SIGTERM)",
        "it was told to end",
        "look at what failed before",
        "consequence",
    ),
    Row(
        "launcher",
        "ChildFailedError|CalledProcessError|ProcessExitedException|ProcessRaisedException|RayTaskError(Wrap|exits with return",
        r"(?:ChildFailedError|subprocess\.CalledProcessError: Command .*(?:train|torch|launch|accelerate|python)"
        r"|exits with return code)",
        "a process that it had started failed",
        "look at the process that failed",
        "consequence",
    ),
    Row(
        "actor-error",
        "error raised in its creation task",
        r"error raised in its creation task(?:, ray::(?P<name>[\w.]+))?",
        "an actor of Ray failed as it was made<, in {name}><: {detail}>",
        "the error is of the actor's own __init__: Ray's lines above it name the file and the line",
        where="exception",
        nearby=(9, r"(?!ray\.exceptions)(?P<detail>[A-Za-z_][\w.]*(?:Error|Exception): .*)"),
    ),
    Row(
        "actor-died",
        "ActorDiedError: |Worker PID: ",
        r"(?:ActorDiedError: [\s\S]*?pid: (?P<pid>\d+)[\s\S]*?ip: (?P<ip>[\d.]+)|Worker IP address: (?P<ip2>\S+) "
        r".*Worker PID: (?P<pid2>\d+))",
        "process <{pid}><{pid2}> on <{ip}><{ip2}>, a worker of Ray, ended without a word",
        "most often its memory was full, or it crashed: look at the logs of that worker (ray logs worker)",
        "symptom",
    ),
    Row(
        "process-failed",
        "ProcessRaisedException|ProcessExitedException|CheckpointException|RayTaskError(|ExceptionGroup|root cause"
        "|stack trace for",
        r"(?:Process(?:Raised|Exited)Exception|CheckpointException|RayTaskError\(|ExceptionGroup: "
        r"|[Ss]ee (?:the )?(?:root cause|stack trace))",
        "a process that it had started failed",
        "look at the process that failed",
        "consequence",
        "exception",
    ),
    Row(
        "interrupted",
        "KeyboardInterrupt",
        r"KeyboardInterrupt",
        "it was interrupted (SIGINT)",
        "look at what failed before",
        "symptom",
    ),
)
