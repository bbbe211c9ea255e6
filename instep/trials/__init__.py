"""CHALLENGED: workloads, faults and stories that run the whole road on real parts."""
