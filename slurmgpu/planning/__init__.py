"""Job x Cluster -> Plan: pure."""
