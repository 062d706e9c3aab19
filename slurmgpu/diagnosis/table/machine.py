"""The node: disks, memory, limits, the system's own messages (errno(3), signal(7), ld.so(8), bash(1))."""

from __future__ import annotations

from ..row import Row

__all__ = ["ROWS"]

_NEW_LIMIT = (
    "close what is not needed; in the data loader: torch.multiprocessing.set_sharing_strategy('file_system')"
)

ROWS = (
    Row(
        "shm",
        "Bus error|insufficient shared memory|No space left on device: '/dev/shm|unable to open shared memory object"
        "|unable to allocate shared memory|unable to mmap|unable to write to file </torch_",
        r"(?:DataLoader worker \(pid\(?s?\)? (?P<pid>[\d, ]+)\) is killed by signal: Bus error|insufficient shared memory \(shm\)"
        r"|unable to (?:open shared memory object|allocate shared memory|mmap \d+ bytes)(?!.*Too many open files)|'/dev/shm"
        r"|unable to write to file </torch_)",
        "/dev/shm is full: a data-loader worker could not put its batch there",
        "give the container more (docker: --shm-size), use fewer workers, smaller batches or a smaller prefetch_factor, or "
        "torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    Row(
        "loader-killed",
        "is killed by signal",
        r"DataLoader worker \(pid (?P<pid>\d+)\) is killed by signal: (?P<signal>\w[\w ]*)",
        "a data-loader worker was ended by a signal: {signal}",
        "by Killed: most often memory was full, so ask for more (memory:) or use fewer workers; by a fault: workers: 0 shows it",
        where="exception",
    ),
    Row(
        "loader-exited",
        "exited unexpectedly|multiprocessing/connection.py|background workers are no longer alive",
        r"(?:background workers are no longer alive|DataLoader worker \(pid\(?s?\)? (?P<pid>[\d, ]+)\) exited unexpectedly"
        r"|^(?:ConnectionResetError|ConnectionRefusedError|BrokenPipeError|EOFError)\b[\s\S]*multiprocessing/connection\.py)",
        "a data-loader worker ended without a word",
        "most often memory was full, so ask for more (memory:) or use fewer workers; workers=0 shows an error of its own",
        where="exception",
    ),
    Row(
        "disk-quota",
        "isk quota exceeded|Errno 122",
        r"[Dd]isk quota exceeded(?:: ?['\"]?(?P<file>[^'\"\n]+))?",
        "your quota is used up<: {file}>",
        "the site's quota command shows what fills it: bytes, or the number of files; put runs: and caches (HF_HOME, "
        "TORCH_HOME) on scratch",
    ),
    Row(
        "disk-full",
        "No space left on device|Errno 28",
        r"(?<!namespace: )No space left on device(?:: ?['\"]?(?P<file>[^'\"\n]+))?",
        "there is no room left, or no inode<: {file}>",
        "df -h and df -i on that folder show which; TMPDIR, HF_HOME and runs: name others",
    ),
    Row(
        "disk-full",
        "Erroneous write.",
        r"Erroneous write\. Write -?\d+ instead of \d+",
        "Gaussian could not write all of a file: its scratch disk is full, or your quota is",
        "df -h on GAUSS_SCRDIR shows it; name a larger disk there, or bound the files by MaxDisk",
        where="line",
    ),
    Row(
        "disk-full",
        "unexpected pos ",
        r"inline_container\.cc[^\n]*unexpected pos \d+ vs \d+",
        "torch.save could not write all of a file: the disk is full, or your quota is",
        "df -h and df -i on its folder, and the site's quota command, show which; runs: names another folder",
        where="exception",
    ),
    Row(
        "file-size",
        "File too large|Errno 27|File size limit exceeded",
        r"(?:File too large(?:: ?['\"]?(?P<file>[^'\"\n]+))?|File size limit exceeded)",
        "a file would be larger than the limit allows<: {file}>",
        "ulimit -f shows the limit, and the file system has one too: several smaller files, or another folder",
    ),
    Row(
        "read-only",
        "Read-only file system",
        r"Read-only file system(?:: ?['\"]?(?P<file>[^'\"\n]+))?",
        "the file system cannot be written here<: {file}>",
        "write to scratch or to a folder that the container binds; many sites mount home read-only on compute nodes",
    ),
    Row(
        "shared-cache",
        ".triton/cache|torchinductor_|triton/runtime/cache.py",
        r"(?P<folder>/[^\s:']*(?:\.triton/cache|torchinductor_\w+))[^\n]*(?P<why>Stale file handle|No such file or "
        r"directory|cannot open)",
        "processes on several nodes disturbed each other in {folder}: {why}",
        "a cache on each node's own disk: TRITON_CACHE_DIR and TORCHINDUCTOR_CACHE_DIR below $TMPDIR",
        where="exception",
    ),
    Row(
        "stale-file",
        "Stale file handle|Errno 116|Transport endpoint is not connected|Errno 107|Cannot send after transport endpoint"
        "|Remote I/O error|Errno 121",
        r"(?P<message>Stale file handle|Transport endpoint is not connected|Cannot send after transport endpoint shutdown"
        r"|Remote I/O error)(?:: ?['\"]?(?P<file>[^'\"\n]+))?",
        "the shared file system failed: {message}<: {file}>",
        "start it again, and tell the site if it comes back",
    ),
    Row(
        "io-error",
        "Input/output error|Errno 5]",
        r"Input/output error(?:: ?['\"]?(?P<file>[^'\"\n]+))?",
        "a disk failed to read or write<: {file}>",
        "start it again without this node (exclude:), and tell the site",
    ),
    Row(
        "file-lock",
        "Function not implemented|No locks available|unable to lock file|does not appear to support flock|unable to open file",
        r"(?P<message>FileSystem does not appear to support flock|No locks available|[Uu]nable to lock file[^\n]*"
        r"|Errno 3[78]\][^\n]*)",
        "a file could not be locked: {message}",
        "put caches (HF_HOME, TORCH_HOME, TRITON_CACHE_DIR) on a file system that has locks, such as scratch or a node's local "
        "disk; HDF5: HDF5_USE_FILE_LOCKING=FALSE, or close the other writer",
    ),
    Row(
        "open-files",
        "Too many open files|Errno 24|received 0 items of ancdata",
        r"(?:Too many open files|received 0 items of ancdata)",
        "more files are open than the limit allows",
        "ulimit -n $(ulimit -Hn) in setup: raises it; " + _NEW_LIMIT,
    ),
    Row(
        "processes",
        "fork: retry|fork: Resource temporarily|can't start new thread|pthread_create failed|BlockingIOError: [Errno 11]"
        "|libgomp: Thread creation failed|OpenBLAS blas_thread_init|thread: Resource temporarily unavailable",
        r"(?:fork: (?:retry: )?(?:Resource temporarily unavailable|.*)|can't start new thread|pthread_create failed.*"
        r"|BlockingIOError: \[Errno 11\][^\n]*\n[^\n]*(?:fork|_execute_child)|libgomp: Thread creation failed.*"
        r"|OpenBLAS blas_thread_init|thread: Resource temporarily unavailable)",
        "no further process or thread could be started",
        "fewer data-loader workers, and OMP_NUM_THREADS as high as the CPUs of a process; ulimit -u shows the limit",
    ),
    Row(
        "locked-memory",
        "max locked memory|ibv_",
        r"(?:(?P<call>ibv_\w+)(?:\(\))? failed(?: with error|:) Cannot allocate memory|max locked memory)",
        "the limit of locked memory (ulimit -l) is too low for the fast network<: {call} failed>",
        "tell the site: Slurm's daemons must start with an unlimited memlock (PropagateResourceLimitsExcept=MEMLOCK); until then "
        "UCX_TLS=tcp,self,sm, or NCCL_IB_DISABLE=1, uses the slower way",
    ),
    Row(
        "cpu-memory",
        "DefaultCPUAllocator|Cannot allocate memory|cannot allocate vector of size|std::bad_alloc|MemoryError|Unable to allocate"
        "|Errno 12",
        r"(?:DefaultCPUAllocator: (?:can't allocate memory|not enough memory): you tried to allocate (?P<bytes>\d+) bytes"
        r"|(?:Unable to allocate|cannot allocate vector of size) (?P<size>[\d.]+ \w+)[^\n]*|Cannot allocate memory"
        r"|std::bad_alloc|\bMemoryError)",
        "the machine's memory was full<: {bytes} bytes more were wanted><: {size} more were wanted>",
        "ask for more memory (memory:); fewer data-loader workers, or data that is read in parts, need less",
    ),
    Row(
        "glibc",
        "GLIBC_|GLIBCXX_|CXXABI_",
        r"version [`'](?P<version>(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found(?: \(required by (?P<by>[^)]+)\))?",
        "a library needs {version}, and this system's is older<; needed by {by}>",
        "of GLIBC: use a container, or a build for this system; of GLIBCXX: load a newer gcc module, or conda's libstdcxx-ng "
        "first on LD_LIBRARY_PATH",
    ),
    Row(
        "undefined-symbol",
        "undefined symbol",
        r"(?:(?P<file>[\w./+-]+\.so[\w.]*): )?undefined symbol: (?P<symbol>\w+)",
        "a compiled library does not fit the others<: {file}> (undefined symbol {symbol})",
        "build or install it again for this PyTorch; and see which modules put other libraries onto LD_LIBRARY_PATH",
    ),
    Row(
        "shared-library",
        "cannot open shared object file",
        r"(?P<file>[\w./+-]+\.so[\w.]*): cannot open shared object file(?:: (?P<why>[^\n]+))?",
        "the library {file} is missing",
        "load the module that has it (cuda, mpi, ...), or install the package that brings it; ldd shows what is found",
    ),
    Row(
        "illegal-instruction",
        "Illegal instruction",
        r"Illegal instruction",
        "the program was built for another kind of CPU (illegal instruction)",
        "build or install it on a node of the kind that runs it, or name the kind with constraint:",
        where="line",
    ),
    Row(
        "segfault",
        "Segmentation fault|Speicherzugriffsfehler|Erreur de segmentation|Signal 11 (SIGSEGV)",
        r"(?:Segmentation fault|Speicherzugriffsfehler|Erreur de segmentation|Signal 11 \(SIGSEGV\))",
        "the process crashed (segmentation fault)",
        "PYTHONFAULTHANDLER=1 or --debug shows the line of Python; most often a compiled extension, or libraries that do not "
        "fit each other",
        "host",
        "line",
    ),
    Row(
        "bus-error",
        "Bus error|Signal 7 (SIGBUS)",
        r"(?:Bus error|Signal 7 \(SIGBUS\))",
        "the process crashed (bus error)",
        "most often /dev/shm or a disk behind a memory map is full, or a mapped file was cut",
        "host",
        "line",
    ),
    Row(
        "aborted",
        "free(): |munmap_chunk(): |malloc(): |double free or corruption|realloc(): |corrupted ",
        r"(?P<name>(?:free|munmap_chunk|malloc|realloc)\(\): [\w ,().!-]+|double free or corruption[\w ().!]*|corrupted "
        r"(?:size|double)[^\n]*)$",
        "the process ended itself: memory was written that is not its own ({name})",
        "most often a compiled extension, or two versions of a library; PYTHONFAULTHANDLER=1 or --debug shows the line of Python",
        "host",
        "line",
    ),
    Row(
        "aborted",
        "terminate called after throwing",
        r"terminate called after throwing an instance of '(?!c10::Dist|gloo::)(?P<name>[^']+)'",
        "the process ended itself: an error in C++ that nobody caught ({name})<: {detail}>",
        "look at the words behind what():",
        "host",
        "line",
        (3, r"^\s*what\(\):\s+(?P<detail>.+)"),
    ),
    Row(
        "aborted",
        " Aborted |Fatal Python error: Aborted",
        r"(?:: line \d+: +\d+ Aborted\b|Fatal Python error: Aborted)",
        "the process ended itself (SIGABRT)",
        "a library found something wrong and gave up: its own words stand above; PYTHONFAULTHANDLER=1 or --debug shows the line "
        "of Python",
        "host",
        "line",
    ),
)
