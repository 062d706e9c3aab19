"""Job x Cluster -> Plan.

Here: which partition, account, GPUs, CPUs, memory and launcher a job gets, each value with its reason.
Not here: files, clocks, processes, environment variables; what is needed of them is handed in.
Nothing is derived after the plan: scripts only write it down.
"""
