"""What the sites document, as jobs: each says on which profile it is planned, and what must come of it.

A rule that refuses mostly stands beside the job at its limit that fits. `expected` is `fits`, or what is refused; `says`
must stand in the message; `options` are a part of the plan's sbatch options (None: the option has no value, ABSENT: it
must not be there).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["ABSENT", "REFUSALS", "RULES", "ProfileRule"]

ABSENT = "(absent)"
FITS = "fits"

REFUSALS = {
    "time": r"allows at most [\d:-]+|nodes times time",
    "nodes": r"\d+ nodes? (a job|a user|in all)|such nodes|wants at least",
    "gpus": r"\d+ GPUs? (a job|a user|a node|in all|each)|wants at least|GPUs of each",
    "gpu_type": r"has no |takes no type|\w+ GPUs? a (job|user)",
    "cpus": r"CPUs?\b",
    "memory": r"memory|GiB|MiB",
    "account": r"resources\.account",
    "qos": r"QOS|resources\.qos",
    "partition": r"partition",
    "gres": r"has \d+ \w+ a node",
    "option": r"refuses jobs with --|refuses a request|gives memory by itself",
}
"""What the message of a refusal matches, by what is refused."""


class ProfileRule(NamedTuple):
    """One documented rule of a site as a job."""

    profile: str
    rule: str
    """In words, as the test's name."""
    job: str
    """YAML; a command is added."""
    expected: str = FITS
    says: str = ""
    options: Mapping[str, str | None] = {}

    @property
    def name(self) -> str:
        return f"{self.profile}: {self.rule}"


R = ProfileRule

_ARCHER2 = [
    R(
        "archer2-gpu",
        "CPUs and tasks come with the GPUs and stand on srun's line only",
        "{resources: {account: z01, partition: gpu, qos: gpu-shd, gpus: 2, time: '01:00:00'}}",
        options={"gpus": "2", "cpus-per-task": ABSENT, "ntasks-per-node": ABSENT, "mem": ABSENT},
    ),
    R(
        "archer2-gpu",
        "no more than 8 cores a GPU",
        "{resources: {account: z01, partition: gpu, qos: gpu-shd, gpus: 1, cpus_per_gpu: 9}}",
        "cpus",
    ),
    R(
        "archer2-gpu",
        "--ntasks makes the submission fail",
        "{resources: {account: z01, partition: gpu, qos: gpu-shd, gpus: 1}, sbatch: {ntasks: 1}}",
        "option",
        "--ntasks",
    ),
    R(
        "archer2-gpu",
        "gpu-shd: 2 GPUs",
        "{resources: {account: z01, qos: gpu-shd, gpus: 3}}",
        "gpus",
        "QOS 'gpu-shd'",
    ),
    R(
        "archer2-gpu",
        "gpu-exc: 2 whole nodes",
        "{resources: {account: z01, qos: gpu-exc, nodes: 2, gpus_per_node: 4, time: '12:00:00'}}",
        options={"gpus": "8", "nodes": "2", "exclusive": None, "qos": "gpu-exc"},
    ),
    R(
        "archer2-gpu",
        "more than half a node goes to gpu-exc, which wants --exclusive",
        "{resources: {account: z01, gpus: 4, time: '12:00:00'}}",
        options={"gpus": "4", "qos": "gpu-exc", "exclusive": None},
    ),
    R(
        "archer2-gpu",
        "gpu-shd shares the node",
        "{resources: {account: z01, gpus: 2, time: '12:00:00'}}",
        options={"gpus": "2", "qos": "gpu-shd", "exclusive": ABSENT},
    ),
    R(
        "archer2-gpu",
        "gpu-shd: one node",
        "{resources: {account: z01, qos: gpu-shd, nodes: 2, gpus_per_node: 1}}",
        "nodes",
        "allows at most 1 node a job",
    ),
    R(
        "archer2-gpu",
        "12 hours",
        "{resources: {account: z01, qos: gpu-exc, gpus: 1, time: '12:01:00'}}",
        "time",
    ),
    R(
        "archer2-gpu",
        "no other QOS",
        "{resources: {account: z01, qos: standard, gpus: 1}}",
        "qos",
        "'standard'",
    ),
]

_NERSC = [
    R(
        "nersc-perlmutter",
        "the kind of node is always said, a partition never",
        "{resources: {account: m1234_g, gpus: 1, qos: regular, time: '02:00:00'}}",
        options={"constraint": "gpu", "partition": ABSENT, "qos": "regular"},
    ),
    R(
        "nersc-perlmutter",
        "GPU accounts end in _g",
        "{resources: {account: m1234, gpus: 1, qos: regular}}",
        options={"account": "m1234_g"},
    ),
    R(
        "nersc-perlmutter",
        "a job without a QOS is in debug",
        "{resources: {account: m1234_g, gpus: 1, time: '00:30:00'}}",
        options={"qos": "debug"},
    ),
    R(
        "nersc-perlmutter",
        "debug: half an hour",
        "{resources: {account: m1234_g, gpus: 1, qos: debug, time: '00:31:00'}}",
        "time",
        "allows at most 00:30:00",
    ),
    R(
        "nersc-perlmutter",
        "80 GB are a feature",
        "{resources: {account: m1234_g, gpus: 8, gpu_type: a100-80, qos: regular}}",
        options={"constraint": "gpu&hbm80g", "gpus-per-node": "4", "nodes": "2"},
    ),
    R(
        "nersc-perlmutter",
        "a GPU's memory chooses the feature",
        "{resources: {account: m1234_g, gpus: 4, gpu_memory: 60G, qos: regular}}",
        options={"constraint": "gpu&hbm80g"},
    ),
    R(
        "nersc-perlmutter",
        "32 logical CPUs a GPU",
        "{resources: {account: m1234_g, gpus: 4, qos: regular}, launch: srun}",
        options={"cpus-per-task": "32", "ntasks-per-node": "4"},
    ),
    R(
        "nersc-perlmutter",
        "shared: part of a node",
        "{resources: {account: m1_g, nodes: 2, qos: shared}}",
        "nodes",
    ),
]

_FRONTIER = [
    R(
        "olcf-frontier",
        "up to 91 nodes: 2 hours",
        "{resources: {account: abc, nodes: 91, gpus_per_node: 8, time: '02:00:00', partition: batch}}",
        options={"nodes": "91", "time": "02:00:00", "partition": "batch"},
    ),
    R(
        "olcf-frontier",
        "over 2 hours on 91 nodes",
        "{resources: {account: abc, nodes: 91, gpus_per_node: 8, time: '02:01:00', partition: batch}}",
        "time",
        "allows at most 02:00:00 on up to 91 nodes",
    ),
    R(
        "olcf-frontier",
        "92 to 183 nodes: 6 hours",
        "{resources: {account: abc, nodes: 92, gpus_per_node: 8, time: '06:00:00'}}",
        options={"nodes": "92", "partition": ABSENT},
    ),
    R(
        "olcf-frontier",
        "over 6 hours on 183 nodes",
        "{resources: {account: abc, nodes: 183, gpus_per_node: 8, time: '06:01:00'}}",
        "time",
    ),
    R(
        "olcf-frontier",
        "from 184 nodes: 12 hours",
        "{resources: {account: abc, nodes: 184, gpus_per_node: 8, time: '12:00:00'}}",
    ),
    R(
        "olcf-frontier",
        "over 12 hours on 9472 nodes",
        "{resources: {account: abc, nodes: 9472, gpus_per_node: 8, time: '12:01:00'}}",
        "time",
    ),
    R(
        "olcf-frontier",
        "extended: a day on up to 64 nodes",
        "{resources: {account: abc, nodes: 64, gpus_per_node: 8, time: '1-00:00:00'}}",
        options={"partition": "extended"},
    ),
    R(
        "olcf-frontier",
        "extended: no 65 nodes",
        "{resources: {account: abc, nodes: 65, gpus_per_node: 8, time: '1-00:00:00'}}",
        "nodes",
    ),
    R(
        "olcf-frontier",
        "no GPU option, and srun gets tasks and CPUs",
        "{resources: {account: abc, gpus: 16, time: '00:05:00'}, launch: srun}",
        options={
            "gres": ABSENT,
            "gpus": ABSENT,
            "ntasks-per-node": ABSENT,
            "cpus-per-task": ABSENT,
            "nodes": "2",
        },
    ),
    R(
        "olcf-frontier",
        "the nodes' disk is a feature",
        "{resources: {account: abc, nodes: 1, gpus_per_node: 8, constraint: nvme, time: '01:00:00'}}",
        options={"constraint": "nvme"},
    ),
    R("olcf-frontier", "56 cores a node", "{resources: {account: abc, gpus: 8, cpus_per_gpu: 8}}", "cpus"),
]

_CSCS = [
    R(
        "cscs-clariden",
        "debug: one node for 90 minutes",
        "{resources: {account: a-1, partition: debug, nodes: 1, gpus_per_node: 4, time: '01:30:00'}}",
        options={"partition": "debug", "gres": ABSENT, "gpus-per-node": ABSENT},
    ),
    R(
        "cscs-clariden",
        "debug: two nodes for 45 minutes",
        "{resources: {account: a-1, partition: debug, nodes: 2, gpus_per_node: 4, time: '00:45:00'}}",
    ),
    R(
        "cscs-clariden",
        "debug: not two nodes for 46 minutes",
        "{resources: {account: a-1, partition: debug, nodes: 2, gpus_per_node: 4, time: '00:46:00'}}",
        "time",
        "01:30:00 of nodes times time",
    ),
    R(
        "cscs-clariden",
        "debug: not five nodes",
        "{resources: {account: a-1, partition: debug, nodes: 5, gpus_per_node: 4, time: '00:10:00'}}",
        "nodes",
    ),
    R(
        "cscs-clariden",
        "normal: 12 hours",
        "{resources: {account: a-1, nodes: 2, gpus_per_node: 4, time: '12:01:00'}}",
        "time",
    ),
    R(
        "cscs-clariden",
        "normal need not be named",
        "{resources: {account: a-1, gpus: 8, time: '12:00:00'}}",
        options={"partition": ABSENT, "nodes": "2", "account": "a-1"},
    ),
    R("cscs-daint", "normal: a day", "{resources: {account: a-1, gpus: 8, time: '1-00:00:00'}}"),
    R(
        "cscs-daint",
        "debug: half an hour",
        "{resources: {account: a-1, gpus: 4, partition: debug, time: '00:31:00'}}",
        "time",
    ),
    R(
        "cscs-daint",
        "debug: two nodes",
        "{resources: {account: a-1, gpus: 12, partition: debug, time: '00:30:00'}}",
        "nodes",
    ),
    R(
        "cscs-santis",
        "430 nodes",
        "{resources: {account: a-1, nodes: 431, gpus_per_node: 4, time: '01:00:00'}}",
        "nodes",
        "such nodes",
    ),
]

_UNITS = [
    R(
        "surf-snellius",
        "a quarter of an A100 node: 18 cores and 120 GiB",
        "{resources: {gpus: 1, partition: gpu_a100, time: '5-00:00:00'}}",
        options={"cpus-per-task": "18", "mem": "120G", "gpus-per-node": "1"},
    ),
    R(
        "surf-snellius",
        "a quarter of an H100 node: 16 cores and 180 GiB",
        "{resources: {gpus: 'h100:1', time: '10:00:00'}}",
        options={"partition": "gpu_h100", "cpus-per-task": "16", "mem": "180G"},
    ),
    R("surf-snellius", "120 hours", "{resources: {gpus: 1, partition: gpu_a100, time: '120:01:00'}}", "time"),
    R(
        "it4i-karolina",
        "an eighth of a node: a GPU and 16 cores",
        "{resources: {account: open-00-00, gpus: 2, partition: qgpu}}",
        options={"cpus-per-task": "32", "gpus-per-node": "2"},
    ),
    R(
        "it4i-karolina",
        "qgpu_exp: an hour",
        "{resources: {account: x, gpus: 1, partition: qgpu_exp, time: 61}}",
        "time",
    ),
    R(
        "it4i-karolina",
        "qgpu_exp: 8 nodes a user",
        "{resources: {account: x, nodes: 9, gpus_per_node: 8, partition: qgpu_exp}}",
        "nodes",
        "8 nodes a user",
    ),
    R(
        "it4i-karolina",
        "qgpu_big: over 16 nodes",
        "{resources: {account: x, nodes: 16, gpus_per_node: 8, partition: qgpu_big}}",
        "nodes",
        "at least 17 nodes",
    ),
    R(
        "pawsey-setonix",
        "only GPUs are asked for, and accounts end in -gpu",
        "{resources: {account: pawsey0001, gpus: 1, partition: gpu-dev}}",
        options={"gres": "gpu:1", "mem": ABSENT, "cpus-per-task": ABSENT, "account": "pawsey0001-gpu"},
    ),
    R("pawsey-setonix", "no memory", "{resources: {account: p-gpu, gpus: 1, memory: 10G}}", "option"),
]

_UVA = [
    R(
        "uva-afton",
        "BasePOD jobs over several nodes take all 8 GPUs of each",
        "{resources: {account: g, partition: gpu, nodes: 2, gpus_per_node: 4, gpu_type: a100-80}}",
        "gpus",
        "all 8 GPUs of each",
    ),
    R(
        "uva-afton",
        "all 8 GPUs of two BasePOD nodes",
        "{resources: {account: g, partition: gpu, nodes: 2, gpus_per_node: 8, gpu_type: a100-80}}",
        options={"gres": "gpu:a100:8", "constraint": "a100_80gb"},
    ),
    R(
        "uva-afton",
        "half a BasePOD node alone",
        "{resources: {account: g, partition: gpu, nodes: 1, gpus_per_node: 4, gpu_type: a100-80}}",
    ),
    R(
        "uva-afton",
        "jobs without GPUs stay out of gpu",
        "{resources: {account: g, partition: gpu}}",
        "partition",
        "GPU",
    ),
    R(
        "uva-afton",
        "4 nodes",
        "{resources: {account: g, partition: gpu, nodes: 5, gpus_per_node: 8}}",
        "nodes",
    ),
    R(
        "uva-afton",
        "3 days",
        "{resources: {account: g, partition: gpu, gpus: 1, time: '3-00:01:00'}}",
        "time",
    ),
    R(
        "uva-afton",
        "one slice a job",
        "{resources: {account: g, partition: gpu-mig, gpus: 2}}",
        "gpus",
        "1 GPU a job",
    ),
    R(
        "uva-afton",
        "2 cores with a slice",
        "{resources: {account: g, partition: gpu-mig, gpus: '1g.10gb:1', cpus_per_task: 3}}",
        "cpus",
    ),
    R(
        "uva-afton",
        "interactive: 2 GPUs a user",
        "{resources: {account: g, partition: interactive, gpus: 3, time: '12:00:00'}}",
        "gpus",
        "2 GPUs a user",
    ),
    R(
        "uva-afton",
        "interactive: 24 cores a user",
        "{resources: {account: g, partition: interactive, gpus: 1, cpus_per_task: 25}}",
        "cpus",
        "24 CPUs a user",
    ),
    R(
        "uva-afton",
        "some types are features",
        "{resources: {account: g, partition: gpu, gpus: 'a6000:2'}}",
        options={"gres": "gpu:2", "constraint": "a6000"},
    ),
]

_BUNYA = [
    R(
        "uq-bunya",
        "the type is always named",
        "{resources: {account: a_g, qos: gpu, gpus: 1, partition: gpu_sxm, memory: 10G}}",
        options={"gres": "gpu:h100:1"},
    ),
    R(
        "uq-bunya",
        "48 CPUs an H100 in gpu_sxm",
        "{resources: {account: a_g, qos: gpu, gpus: 'h100:2', partition: gpu_sxm, cpus_per_gpu: 48}}",
        options={"cpus-per-task": "96"},
    ),
    R(
        "uq-bunya",
        "no 49 CPUs an H100 in gpu_sxm",
        "{resources: {account: a_g, qos: gpu, gpus: 'h100:2', partition: gpu_sxm, cpus_per_gpu: 49}}",
        "cpus",
        "48 CPUs for each h100 GPU",
    ),
    R(
        "uq-bunya",
        "24 CPUs an MI355X",
        "{resources: {account: a_g, qos: gpu, gpus: 'mi355x:1', cpus_per_task: 25}}",
        "cpus",
        "24 CPUs for each mi355x GPU",
    ),
    R(
        "uq-bunya",
        "700000 MB an L40",
        "{resources: {account: a_g, qos: gpu, gpus: 'l40:1', memory: 700001M}}",
        "memory",
    ),
    R(
        "uq-bunya",
        "42 CPUs a slice of an A100",
        "{resources: {account: a_g, qos: gpu, gpus: 'nvidia_a100_80gb_pcie_3g.40gb:1', cpus_per_task: 43}}",
        "cpus",
    ),
    R(
        "uq-bunya",
        "slices of either size of a node",
        "{resources: {account: a_g, qos: gpu, gpus: 'nvidia_h100_80gb_pcie_4g.40gb:3', cpus_per_task: 4, memory: 10G}}",
        options={"gres": "gpu:nvidia_h100_80gb_pcie_4g.40gb:3", "partition": "gpu_cuda"},
    ),
    R(
        "uq-bunya",
        "not four slices of one size on a node",
        "{resources: {account: a_g, qos: gpu, nodes: 1, gpus: 'nvidia_h100_80gb_pcie_4g.40gb:4'}}",
        "gpus",
    ),
    R(
        "uq-bunya",
        "QOS gpu: 4 GPUs a user",
        "{resources: {account: a_g, qos: gpu, nodes: 1, gpus: 'mi300x:5'}}",
        "gpus",
        "4 GPUs a user",
    ),
    R(
        "uq-bunya",
        "QOS sdf: 8 GPUs",
        "{resources: {account: a_g, qos: sdf, nodes: 1, gpus: 'mi300x:8'}}",
        options={"qos": "sdf", "gres": "gpu:mi300x:8"},
    ),
    R(
        "uq-bunya",
        "4 H100 a user whatever the QOS",
        "{resources: {account: a_g, qos: short, nodes: 2, gpus_per_node: 'h100:3', partition: gpu_cuda}}",
        "gpu_type",
        "4 h100 GPUs a user",
    ),
    R(
        "uq-bunya",
        "QOS sdf is for gpu_rocm only",
        "{resources: {account: a_g, qos: sdf, gpus: 'h100:2', partition: gpu_cuda}}",
        "qos",
        "legal only in partition 'gpu_rocm'",
    ),
    R(
        "uq-bunya",
        "accounts begin with a_",
        "{resources: {account: g, qos: gpu, gpus: 'l40:1'}}",
        "account",
        "a_mygroup",
    ),
    R(
        "uq-bunya",
        "QOS debug: an hour",
        "{resources: {account: a_g, qos: debug, gpus: 'l40:1', time: 61}}",
        "time",
    ),
    R(
        "uq-bunya",
        "QOS short: 12 hours",
        "{resources: {account: a_g, qos: short, gpus: 'l40:1', time: 721}}",
        "time",
    ),
    R(
        "uq-bunya",
        "a job takes any QOS that has the time",
        "{resources: {account: a_g, gpus: 'l40:1', time: '7-00:00:00'}}",
        options={"qos": "gpu"},
    ),
]

_CAPS = [
    R(
        "nih-biowulf",
        "16 CPUs an A100",
        "{resources: {gpus: 'a100:2', gres: ['lscratch:100'], cpus_per_gpu: 16}}",
        options={"gres": "gpu:a100:2,lscratch:100", "cpus-per-task": "32"},
    ),
    R(
        "nih-biowulf",
        "no 17 CPUs an A100",
        "{resources: {gpus: 'a100:1', cpus_per_task: 17}}",
        "cpus",
        "16 CPUs for each",
    ),
    R(
        "nih-biowulf",
        "14 CPUs a P100",
        "{resources: {gpus: 'p100:2', cpus_per_task: 28}}",
        options={"cpus-per-task": "28"},
    ),
    R("nih-biowulf", "no 15 CPUs a P100", "{resources: {gpus: 'p100:2', cpus_per_task: 29}}", "cpus"),
    R(
        "nih-biowulf",
        "a type is named for who names none",
        "{resources: {gpus: 1}}",
        options={"gres": "gpu:a100:1"},
    ),
    R(
        "csc-mahti",
        "32 cores a GPU",
        "{resources: {account: p, gpus: 'a100:1', cpus_per_task: 33}}",
        "cpus",
    ),
    R(
        "csc-mahti",
        "gpusmall: 2 GPUs",
        "{resources: {account: p, gpus: 'a100:3', partition: gpusmall, time: '1-00:00:00'}}",
        "gpus",
        "2 GPUs a job",
    ),
    R(
        "csc-mahti",
        "one slice a job",
        "{resources: {account: p, gpus: 'a100_1g.5gb:2'}}",
        "gpu_type",
        "1 a100_1g.5gb GPU a job",
    ),
    R(
        "csc-mahti",
        "a slice comes with 4 cores",
        "{resources: {account: p, gpus: 'a100_1g.5gb:1'}}",
        options={"gres": "gpu:a100_1g.5gb:1", "cpus-per-task": "4", "partition": "gpusmall"},
    ),
    R(
        "csc-mahti",
        "memory follows the GPUs",
        "{resources: {account: p, gpus: 'a100:1', memory: 100G}}",
        "option",
    ),
    R(
        "csc-mahti",
        "local disk of a node",
        "{resources: {account: p, gpus: 'a100:1', gres: ['nvme:3501']}}",
        "gres",
        "3500 nvme",
    ),
    R(
        "csc-puhti",
        "10 cores a GPU",
        "{resources: {account: p, gpus: 'v100:2', cpus_per_gpu: 10, gres: ['nvme:900']}}",
        options={"cpus-per-task": "20", "gres": "gpu:v100:2,nvme:900"},
    ),
    R(
        "csc-puhti",
        "no 11 cores a GPU",
        "{resources: {account: p, gpus: 'v100:2', cpus_per_gpu: 11}}",
        "cpus",
        "10 CPUs",
    ),
    R(
        "csc-puhti",
        "gputest: 8 GPUs",
        "{resources: {account: p, gpus: 9, partition: gputest, time: 15}}",
        "gpus",
    ),
    R(
        "csc-roihu",
        "gpularge: no fewer than 4 GPUs",
        "{resources: {account: p, gpus: 2, partition: gpularge}}",
        "gpus",
        "at least 4 GPUs",
    ),
    R(
        "csc-roihu",
        "gpumedium: 4 GPUs",
        "{resources: {account: p, gpus: 5, partition: gpumedium}}",
        "gpus",
        "4 GPUs a job",
    ),
    R(
        "psc-bridges2",
        "GPU-shared: 5 cores a V100",
        "{resources: {gpus: 'v100-32:2', partition: GPU-shared, cpus_per_gpu: 6}}",
        "cpus",
        "5 CPUs for each",
    ),
    R(
        "psc-bridges2",
        "the total and the type",
        "{resources: {gpus: 'v100-32:16', partition: GPU}, launch: srun}",
        options={"gpus": "v100-32:16", "nodes": "2", "cpus-per-task": "5"},
    ),
    R(
        "mit-engaging",
        "15 CPUs an H200",
        "{resources: {gpus: 'h200:1', cpus_per_task: 16}}",
        "cpus",
        "15 CPUs for each h200 GPU",
    ),
    R(
        "mit-engaging",
        "16 CPUs an L40S",
        "{resources: {gpus: 'l40s:1', cpus_per_task: 16}}",
        options={"gpus-per-node": "l40s:1", "cpus-per-task": "16"},
    ),
    R(
        "mit-engaging",
        "2 GPUs a user",
        "{resources: {gpus: 3, partition: mit_normal_gpu}}",
        "gpus",
        "2 GPUs a user",
    ),
    R("mit-engaging", "6 hours", "{resources: {gpus: 1, partition: mit_normal_gpu, time: 361}}", "time"),
    R(
        "smu-superpod",
        "CPUs and memory come by themselves",
        "{resources: {gpus: 2}}",
        options={"gres": "gpu:2", "cpus-per-task": ABSENT, "mem": ABSENT},
    ),
    R(
        "bsc-mn5",
        "memory cannot be requested",
        "{resources: {account: e, qos: acc_ehpc, gpus: 1, memory_per_cpu: 4G}}",
        "option",
    ),
    R(
        "bsc-mn5",
        "acc_debug: 2 hours",
        "{resources: {account: e, qos: acc_debug, gpus: 1, time: '02:01:00'}}",
        "time",
        "QOS 'acc_debug'",
    ),
    R(
        "bsc-mn5",
        "20 cores a GPU",
        "{resources: {account: e, qos: acc_ehpc, gpus: 4, time: '3-00:00:00'}, launch: srun}",
        options={"cpus-per-task": "20", "mem": ABSENT},
    ),
]

_MILA = [
    R(
        "mila",
        "unkillable: a GPU, 6 CPUs and 32 GB",
        "{resources: {gpus: 'l40s:1', time: '2-00:00:00'}}",
        options={"partition": "unkillable", "cpus-per-task": "6", "mem-per-gpu": "32G"},
    ),
    R(
        "mila",
        "unkillable: no second GPU",
        "{resources: {gpus: 2, partition: unkillable}}",
        "gpus",
        "1 GPU a user",
    ),
    R(
        "mila",
        "unkillable: 6 CPUs",
        "{resources: {gpus: 1, partition: unkillable, cpus_per_task: 7}}",
        "cpus",
    ),
    R("mila", "unkillable: 32 GB", "{resources: {gpus: 1, partition: unkillable, memory: 33G}}", "memory"),
    R(
        "mila",
        "short-unkillable: 4 GPUs for 3 hours",
        "{resources: {gpus: 'a100l:4', time: '03:00:00'}}",
        options={"partition": "short-unkillable", "mem-per-gpu": "248G", "cpus-per-task": "64"},
    ),
    R(
        "mila",
        "H100 only in short-unkillable",
        "{resources: {gpus: 'h100:1', partition: long}}",
        "gpu_type",
        "has no h100",
    ),
    R(
        "mila",
        "4 H100 of a node's 8",
        "{resources: {gpus: 'h100:5', nodes: 1, time: '01:00:00', partition: short-unkillable}}",
        "gpus",
        "4 GPUs a user",
    ),
    R(
        "mila",
        "long, by name: whole nodes in a GPU's shares",
        "{resources: {gpus: 'rtx8000:8', partition: long, time: '7-00:00:00'}}",
        options={"mem-per-gpu": "47G", "cpus-per-task": "40"},
    ),
]

_QOS = [
    R(
        "ulhpc-iris",
        "two days without a QOS",
        "{resources: {gpus: 1, partition: gpu, time: '2-00:01:00'}}",
        "time",
        "allows at most 2-00:00:00",
    ),
    R(
        "ulhpc-iris",
        "iris-gpu-long: 14 days",
        "{resources: {gpus: 8, partition: gpu, qos: iris-gpu-long, time: '14-00:00:00'}}",
        options={"qos": "iris-gpu-long", "nodes": "2"},
    ),
    R(
        "ulhpc-iris",
        "iris-gpu-long: 2 nodes",
        "{resources: {gpus: 12, partition: gpu, qos: iris-gpu-long, time: '14-00:00:00'}}",
        "nodes",
        "2 nodes a job",
    ),
    R(
        "ulhpc-iris",
        "iris-hopper-long: 1 GPU",
        "{resources: {gpus: 2, partition: hopper, qos: iris-hopper-long}}",
        "gpus",
        "1 GPU a job",
    ),
    R(
        "ulhpc-iris",
        "iris-gpu-long is for gpu only",
        "{resources: {gpus: 1, partition: hopper, qos: iris-gpu-long}}",
        "qos",
        "legal only in partition 'gpu'",
    ),
    R("ulhpc-iris", "4 nodes", "{resources: {gpus: 20, partition: gpu}}", "nodes", "4 nodes a job"),
    R(
        "ncsu-hazel",
        "short_gpu: 2 hours on partners' nodes",
        "{resources: {gpus: 1, partition: gpu_partners, qos: short_gpu, time: '02:00:00'}}",
        options={"qos": "short_gpu", "partition": "gpu_partners"},
    ),
    R(
        "ncsu-hazel",
        "short_gpu is not legal in gpu",
        "{resources: {gpus: 1, partition: gpu, qos: short_gpu, time: '02:00:00'}}",
        "qos",
    ),
    R(
        "ncsu-hazel",
        "short_gpu: no more than 2 hours",
        "{resources: {gpus: 1, partition: gpu_partners, qos: short_gpu, time: '02:01:00'}}",
        "time",
    ),
    R("ncsu-hazel", "gpu: 4 days", "{resources: {gpus: 1, time: '4-00:01:00'}}", "time"),
    R("fau-alex", "one node", "{resources: {nodes: 2, gpus_per_node: 'a100:8'}}", "nodes", "1 node a job"),
    R(
        "fau-alex",
        "a100multi: several whole nodes",
        "{resources: {nodes: 2, gpus_per_node: 'a100:8', qos: a100multi, time: '1-00:00:00'}}",
        options={"qos": "a100multi", "partition": "a100", "gres": "gpu:a100:8"},
    ),
    R(
        "fau-alex",
        "a100multi: all 8 GPUs",
        "{resources: {nodes: 2, gpus_per_node: 'a100:4', qos: a100multi, partition: a100}}",
        "gpus",
        "all 8 GPUs",
    ),
    R(
        "fau-alex",
        "80 GB are a feature",
        "{resources: {gpus: 'a100-80:8', time: '1-00:00:00'}}",
        options={"gres": "gpu:a100:8", "constraint": "a100_80", "export": "NONE"},
    ),
    R("fau-alex", "a day", "{resources: {gpus: 'a40:1', time: '1-00:01:00'}}", "time"),
    R(
        "cineca-leonardo",
        "a day with the normal QOS",
        "{resources: {account: e, gpus: 4, time: '1-00:01:00'}}",
        "time",
        "allows at most 1-00:00:00",
    ),
    R(
        "cineca-leonardo",
        "boost_qos_lprod: 4 days",
        "{resources: {account: e, gpus: 4, qos: boost_qos_lprod, time: '4-00:00:00'}}",
        options={"qos": "boost_qos_lprod", "gres": "gpu:4"},
    ),
    R(
        "cineca-leonardo",
        "boost_qos_dbg: half an hour",
        "{resources: {account: e, gpus: 4, qos: boost_qos_dbg, time: 31}}",
        "time",
    ),
    R(
        "cineca-leonardo",
        "8 cores a GPU, and a share of the memory",
        "{resources: {account: e, gpus: 4}, launch: srun}",
        options={"cpus-per-task": "8", "mem": "482G"},
    ),
]

_JEAN_ZAY = [
    R(
        "idris-jean-zay",
        "the account ends in the type",
        "{resources: {account: abc, gpus: 'a100:8', time: '20:00:00'}}",
        options={"account": "abc@a100", "constraint": "a100", "partition": "gpu_p5", "gres": "gpu:8"},
    ),
    R(
        "idris-jean-zay",
        "the account of another type is exchanged",
        "{resources: {account: abc@v100, gpus: 'h100:4', time: '20:00:00'}}",
        options={"account": "abc@h100", "constraint": "h100", "partition": "gpu_p6"},
    ),
    R(
        "idris-jean-zay",
        "an account that names its type chooses the partition",
        "{resources: {account: abc@a100, gpus: 1, time: '20:00:00'}}",
        options={"account": "abc@a100", "constraint": "a100", "partition": "gpu_p5"},
    ),
    R(
        "idris-jean-zay",
        "memory of a GPU is looked for in all partitions, whatever the account would end in elsewhere",
        "{resources: {account: abc, gpus: 1, gpu_memory: 40G, time: '20:00:00'}}",
        options={"account": "abc@a100", "constraint": "a100", "partition": "gpu_p5"},
    ),
    R(
        "idris-jean-zay",
        "20 hours without a QOS",
        "{resources: {account: abc@v100, gpus: 'v100-32g:4', time: '20:01:00'}}",
        "time",
    ),
    R(
        "idris-jean-zay",
        "qos_gpu-t4: 100 hours",
        "{resources: {account: abc@v100, gpus: 'v100-32g:4', qos: qos_gpu-t4, time: '100:00:00'}}",
        options={"qos": "qos_gpu-t4", "constraint": "v100-32g"},
    ),
    R(
        "idris-jean-zay",
        "qos_gpu-t3: 512 GPUs",
        "{resources: {account: abc@v100, nodes: 129, gpus_per_node: 'v100-32g:4', qos: qos_gpu-t3}}",
        "gpus",
        "512 GPUs a job",
    ),
    R(
        "idris-jean-zay",
        "a QOS of another type is not legal",
        "{resources: {account: abc, gpus: 'a100:8', qos: qos_gpu_h100-t4}}",
        "qos",
    ),
    R(
        "idris-jean-zay",
        "10 cores a V100",
        "{resources: {account: abc@v100, gpus: 'v100-16g:4'}, launch: srun}",
        options={"cpus-per-task": "10", "hint": "nomultithread"},
    ),
]

_ACCOUNTS = [
    R(
        "lumi-g",
        "accounts are called project_<number>",
        "{resources: {account: myproject, gpus: 8}}",
        "account",
        "project_465000000",
    ),
    R(
        "lumi-g",
        "7 cores a GPU",
        "{resources: {account: project_465000001, gpus: 2, partition: small-g}, launch: srun}",
        options={"cpus-per-task": "7", "gpus-per-node": "2"},
    ),
    R(
        "lumi-g",
        "small-g: 4 nodes",
        "{resources: {account: project_1, gpus: 40, partition: small-g}}",
        "nodes",
    ),
    R(
        "lumi-g",
        "dev-g: 3 hours",
        "{resources: {account: project_1, gpus: 8, partition: dev-g, time: 181}}",
        "time",
    ),
    R(
        "lumi-g",
        "56 cores a node",
        "{resources: {account: project_1, gpus: 8, cpus_per_gpu: 8}}",
        "cpus",
        "56 CPUs",
    ),
    R(
        "uchicago-midway3",
        "accounts are called pi-<group>",
        "{resources: {account: me, gpus: 1}}",
        "account",
        "pi-mygroup",
    ),
    R(
        "uchicago-midway3",
        "36 hours",
        "{resources: {account: pi-me, gpus: 1, partition: gpu, time: 2161}}",
        "time",
    ),
    R(
        "drac-narval",
        "accounts are called def-, rrg- or aip-<name>",
        "{resources: {account: mygroup, gpus: 'a100:1'}}",
        "account",
        "def-pi",
    ),
    R(
        "drac-narval",
        "12 cores a GPU",
        "{resources: {account: def-me, gpus: 'a100:4'}}",
        options={"cpus-per-task": "48", "gres": "gpu:a100:4", "partition": ABSENT},
    ),
    R(
        "drac-rorqual",
        "a slice by its short name",
        "{resources: {account: def-me, gpus: 'h100_1g.10gb:1', cpus_per_task: 1, memory: 33G}}",
        options={"gpus-per-node": "h100_1g.10gb:1", "mem": "33G"},
    ),
    R(
        "drac-nibi",
        "14 cores a GPU",
        "{resources: {account: def-me, gpus: 'h100:1'}}",
        options={"cpus-per-task": "14", "gpus-per-node": "h100:1"},
    ),
    R(
        "drac-fir",
        "a job that names no type gets whole GPUs",
        "{resources: {account: def-me, gpus: 1}}",
        options={"gpus-per-node": "h100:1", "cpus-per-task": "12"},
    ),
    R(
        "drac-killarney",
        "an H100: 6 cores and 240 GiB",
        "{resources: {account: aip-me, gpus: 'h100:2'}}",
        options={"cpus-per-task": "12", "mem": "480G"},
    ),
    R(
        "ncsa-delta",
        "accounts end in -delta-gpu",
        "{resources: {account: abcd, gpus: 1, partition: gpuA40x4}}",
        options={"account": "abcd-delta-gpu", "partition": "gpuA40x4", "cpus-per-task": "16"},
    ),
    R(
        "ncsa-delta",
        "interactive: an hour",
        "{resources: {account: abcd-delta-gpu, gpus: 1, partition: gpuA100x4-interactive, time: 61}}",
        "time",
    ),
    R("ncsa-delta", "gpuH200x8: a node", "{resources: {account: abcd-delta-gpu, gpus: 'h200:16'}}", "nodes"),
]

_OTHERS = [
    R(
        "nesi-mahuika",
        "6 GPUs a user",
        "{resources: {gpus: 'l4:8', time: '10-12:00:00', cpus_per_task: 4, memory: 10G}}",
        "gpus",
        "6 GPUs a user",
    ),
    R(
        "nesi-mahuika",
        "two nodes for ten and a half days",
        "{resources: {nodes: 2, gpus_per_node: 'l4:1', time: '10-12:00:00', cpus_per_task: 4, memory: 10G}}",
    ),
    R(
        "nesi-mahuika",
        "not two nodes for eleven days",
        "{resources: {nodes: 2, gpus_per_node: 'l4:1', time: '11-00:00:00', cpus_per_task: 4, memory: 10G}}",
        "time",
        "nodes times time",
    ),
    R("nesi-mahuika", "21 days", "{resources: {gpus: 1, time: '21-00:01:00'}}", "time"),
    R(
        "nesi-mahuika",
        "no partition",
        "{resources: {gpus: 'a100:1', partition: gpu}}",
        "partition",
        "name no partition",
    ),
    R(
        "ethz-euler",
        "a GPU by its memory",
        "{resources: {gpus: 1, gpu_memory: 20G, cpus_per_task: 4, memory_per_cpu: 8G}}",
        options={"gpus-per-node": "1", "gres": "gpumem:20g", "mem-per-cpu": "8G", "partition": ABSENT},
    ),
    R(
        "ethz-euler",
        "a GPU by its type",
        "{resources: {gpus: 'rtx_3090:1', cpus_per_task: 4, memory_per_cpu: 8G}}",
        options={"gpus-per-node": "rtx_3090:1"},
    ),
    R(
        "nhr-grete",
        "slices of two sizes on a node",
        "{resources: {gpus: '3g.20gb:4', partition: 'gpu-a100:shared:mig'}}",
        options={"partition": "gpu-a100:shared:mig", "gres": "gpu:3g.20gb:4"},
    ),
    R(
        "nhr-grete",
        "4 slices of 20 GB a node",
        "{resources: {nodes: 1, gpus: '3g.20gb:5', partition: 'gpu-a100:shared:mig'}}",
        "gpus",
    ),
    R(
        "nhr-grete",
        "part of a node is cheaper in shared",
        "{resources: {gpus: 'a100:1', time: 60}}",
        options={"partition": "gpu-a100:shared"},
    ),
    R(
        "nrel-kestrel",
        "Slurm itself chooses the partition",
        "{resources: {account: a, gpus: 4, time: '04:00:00'}}",
        options={"partition": ABSENT, "gpus": "4"},
    ),
    R(
        "nrel-kestrel",
        "ten days at most",
        "{resources: {account: a, gpus: 4, time: '10-00:01:00'}}",
        "time",
    ),
    R(
        "nrel-kestrel",
        "debug: 2 GPUs a user",
        "{resources: {account: a, gpus: 3, partition: debug, time: 60}}",
        "gpus",
        "2 GPUs a user",
    ),
    R(
        "nrel-kestrel",
        "65 nodes a user",
        "{resources: {account: a, nodes: 66, gpus_per_node: 4}}",
        "nodes",
        "a user",
    ),
    R(
        "udel-darwin",
        "a partition is always named",
        "{resources: {gpus: 'v100:4'}}",
        options={"partition": "gpu-v100", "gres": "gpu:4"},
    ),
    R(
        "ucr-hpcc",
        "16 cores a job",
        "{resources: {gpus: 1, partition: gpu, cpus_per_task: 17}}",
        "cpus",
        "16 CPUs a job",
    ),
    R("ucr-hpcc", "256 GB a job", "{resources: {gpus: 1, partition: gpu, memory: 257G}}", "memory"),
    R("ucr-hpcc", "4 GPUs a user", "{resources: {gpus: 5, partition: gpu}}", "gpus", "4 GPUs a user"),
    R(
        "tuke-perun",
        "gpu_short: 2 days, gpu_long: 4",
        "{resources: {gpus: 8, time: '2-00:01:00'}}",
        options={"partition": "gpu_long"},
    ),
    R("tuke-perun", "no more than 4 days", "{resources: {gpus: 8, time: '4-00:01:00'}}", "time"),
    R(
        "jhu-dsai",
        "the partition is the type",
        "{resources: {gpus: 'l40s:1', time: '3-00:00:00'}}",
        options={"partition": "l40s", "gres": "gpu:1", "mem": ABSENT},
    ),
    R(
        "dfki-pegasus",
        "a GPU's share",
        "{resources: {gpus: 'h100:2', time: '1-00:00:00'}}",
        options={"partition": "H100", "cpus-per-task": "56", "mem": "448G"},
    ),
    R(
        "dfki-pegasus",
        "a type is known in other letters",
        "{resources: {gpus: 'H100:2', time: '1-00:00:00'}}",
        options={"partition": "H100", "gres": "gpu:2"},
    ),
    R(
        "uppmax-pelle",
        "the type in the site's letters, whatever the job writes",
        "{resources: {account: a, gpus: 'L40S:1', time: '2-00:00:00'}}",
        options={"gpus": "l40s:1", "partition": "gpu"},
    ),
    R(
        "uppmax-pelle",
        "the total and the type",
        "{resources: {account: a, gpus: 'l40s:1', time: '2-00:00:00'}}",
        options={"gpus": "l40s:1", "partition": "gpu"},
    ),
    R(
        "vsc-hortense",
        "a fresh environment",
        "{resources: {account: a, gpus: 'a100-80:4'}}",
        options={"export": "NONE", "get-user-env": "60L", "partition": "gpu_rome_a100_80"},
    ),
    R("izum-vega", "no jobs without GPUs", "{resources: {partition: gpu}}", "partition", "without a GPU"),
    R(
        "cines-adastra",
        "whole nodes by constraint",
        "{resources: {account: a, nodes: 2}}",
        options={"constraint": "MI250", "exclusive": None, "partition": ABSENT, "gres": ABSENT},
    ),
    R(
        "jsc-juwels-booster",
        "4 GPUs a node",
        "{resources: {account: a, nodes: 1, gpus_per_node: 5}}",
        "gpus",
    ),
]

RULES: tuple[ProfileRule, ...] = tuple(
    rule
    for rules in (
        _ARCHER2,
        _NERSC,
        _FRONTIER,
        _CSCS,
        _UNITS,
        _UVA,
        _BUNYA,
        _CAPS,
        _MILA,
        _QOS,
        _JEAN_ZAY,
        _ACCOUNTS,
        _OTHERS,
    )
    for rule in rules
)
