"""A stand-in for nvidia-smi: what `nvidia-smi -q -x` prints of an H100, as far as the doctor reads it, with faults put in."""

from __future__ import annotations

from pathlib import Path

__all__ = ["an_smi", "smi_text"]

_GPU = """\
  <gpu id="00000000:{index:02}:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <mig_mode><current_mig>{mig}</current_mig></mig_mode>
    <mig_devices>None</mig_devices>
    <uuid>GPU-{index}0000000-0000-0000-0000-000000000000</uuid>
    <clocks_event_reasons>
      <clocks_event_reason_gpu_idle>Active</clocks_event_reason_gpu_idle>
      <clocks_event_reason_sw_power_cap>Not Active</clocks_event_reason_sw_power_cap>
      <clocks_event_reason_hw_slowdown>{slow}</clocks_event_reason_hw_slowdown>
      <clocks_event_reason_hw_thermal_slowdown>{slow}</clocks_event_reason_hw_thermal_slowdown>
      <clocks_event_reason_sw_thermal_slowdown>Not Active</clocks_event_reason_sw_thermal_slowdown>
    </clocks_event_reasons>
    <fb_memory_usage><total>81559 MiB</total><reserved>551 MiB</reserved><used>{used} MiB</used></fb_memory_usage>
    <ecc_errors>
      <volatile>
        <sram_correctable>0</sram_correctable>
        <sram_uncorrectable_parity>0</sram_uncorrectable_parity>
        <sram_uncorrectable_secded>0</sram_uncorrectable_secded>
        <dram_correctable>0</dram_correctable>
        <dram_uncorrectable>{ecc}</dram_uncorrectable>
      </volatile>
      <aggregate><dram_uncorrectable>7</dram_uncorrectable></aggregate>
    </ecc_errors>
    <retired_pages><pending_blacklist>N/A</pending_blacklist><pending_retirement>N/A</pending_retirement></retired_pages>
    <remapped_rows>
      <remapped_row_pending>{pending}</remapped_row_pending><remapped_row_failure>No</remapped_row_failure>
    </remapped_rows>
    <processes>{processes}</processes>
  </gpu>
"""
_PROCESS = (
    "<process_info><pid>4242</pid><type>C</type><process_name>python other.py</process_name>"
    "<used_memory>9000 MiB</used_memory></process_info>"
)


def smi_text(
    count: int = 2,
    *,
    driver: str = "570.86.15",
    cuda: str = "12.8",
    ecc: int = 0,
    slow: bool = False,
    pending: bool = False,
    busy: bool = False,
    used: int = 4,
    mig: str = "Disabled",
) -> str:
    """What it prints; the faults are those of GPU 0."""
    gpus = [
        _GPU.format(
            index=index,
            mig=mig,
            slow="Active" if slow and not index else "Not Active",
            used=used if not index else 4,
            ecc=ecc if not index else 0,
            pending="Yes" if pending and not index else "No",
            processes=_PROCESS if busy and not index else "",
        )
        for index in range(count)
    ]
    versions = f"<driver_version>{driver}</driver_version><cuda_version>{cuda}</cuda_version>"
    return f'<?xml version="1.0" ?>\n<nvidia_smi_log>{versions}\n{"".join(gpus)}</nvidia_smi_log>\n'


def an_smi(folder: Path, text: str) -> Path:
    """Write the program into a folder that goes onto PATH; the folder."""
    folder.mkdir(exist_ok=True)
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'EOF'\n{text}EOF\n")
    program.chmod(0o755)
    return folder
