"""What is said of the way between the nodes: names, ports, clocks, and how fast an all-reduce goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurmgpu.doctor.amounts import seconds, size
from slurmgpu.doctor.lines import Line, Measured, failure, ok, unknown, warning
from slurmgpu.doctor.thresholds import limit

__all__ = ["clock", "names", "ports", "reduction"]


def names(found: Mapping[str, Measured] | None) -> Line:
    """Of each node's name, whether it led to an address."""
    if found is None:
        return unknown(
            "net.names", "the names of the nodes are not known here: no scontrol (in a container?)"
        )
    lost = [name for name, one in found.items() if one["address"] is None]
    if lost and all(found[name].get("silent") for name in lost):
        return unknown(
            "net.names", f"no name service knows {', '.join(lost)}, and Slurm did not answer", "run it again"
        )
    if lost:
        return failure(
            "net.names",
            f"no address is known for {', '.join(lost)}",
            "torchrun and NCCL meet by name: set MASTER_ADDR to an address, or tell your cluster's support",
        )
    by_slurm = [name for name, one in found.items() if not one["resolves"]]
    if by_slurm:
        return ok(
            "net.names", f"{', '.join(by_slurm)}: by Slurm's address (NodeAddr), no name service knows them"
        )
    return ok("net.names", f"{', '.join(found)} resolve")


def ports(calls: Iterable[Measured], listens: Measured) -> Line:
    """The calls from one node to the others; ``listens`` is its own port."""
    calls = list(calls)
    dead = [call for call in calls if call.get("why")]
    if dead:
        told = "; ".join(
            f"{one['from']} -> {one['to']} ({one['address']}:{one['port']}): {one['why']}" for one in dead
        )
        return failure(
            "net.ports",
            f"not reached: {told}",
            "the nodes' firewall, or another network interface: NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME choose one",
        )
    if listens.get("why"):
        return unknown(
            "net.ports",
            f"the probe could not listen: {listens['why']}",
            "run it again: its port follows the job's id",
        )
    return ok("net.ports", f"{', '.join(call['to'] for call in calls)} reached")


def clock(offsets: Mapping[str, tuple[float, float]]) -> Line:
    """Clocks of other machines minus this one's, in seconds, and by how much each may be wrong."""
    if not offsets:
        return unknown("net.clock", "no other machine's clock could be asked")
    off = {name: max(0.0, abs(offset) - doubt) for name, (offset, doubt) in offsets.items()}
    worst = max(off, key=lambda name: off[name])
    if off[worst] > limit("clock.between"):
        act = "tell your cluster's support: one of the two does not keep its time"
        found = f"{abs(offsets[worst][0]):.1f} s off {worst}'s clock"
        make = failure if off[worst] >= limit("clock.off") else warning
        return make("net.clock", found, act)
    return ok(
        "net.clock",
        f"agrees with {', '.join(offsets)} to {max(max(abs(o), d) for o, d in offsets.values()):.1g} s",
    )


def reduction(found: Measured | None, part: str) -> Line | None:
    """The all-reduce ``within`` a node or ``between`` nodes; None: there was none to measure."""
    check = f"torch.{part}"
    if found is None:
        return None
    if found.get("why"):
        return failure(
            check,
            f"the all-reduce failed: {found['why']}",
            "NCCL_DEBUG=INFO among the job's variables tells more; see the lines net.ports and net.names",
        )
    if part not in found:
        return None
    measured = found[part]
    among = f"{measured['members']} {'processes' if part == 'within' else 'nodes'}"
    speed = measured["bus_bandwidth"] / 1e9
    told = (
        f"{speed:.2f} GB/s measured: {size(measured['bytes'])} of float32 among {among} by {found['backend']}, "
        f"median of 5: {seconds(measured['seconds'])} (bus bandwidth)"
    )
    if not measured["right"]:
        return failure(
            check, f"the sum is wrong: {told}", "do not train on these nodes; tell your cluster's support"
        )
    if found["backend"] == "nccl" and speed < limit(f"allreduce.{part}"):
        return warning(
            check, told, "NCCL_DEBUG=INFO among the job's variables shows which network NCCL has chosen"
        )
    return ok(check, told)
