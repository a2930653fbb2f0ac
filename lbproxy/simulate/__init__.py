"""The simulator: the core that routes, run on an imagined clock with imagined or recorded traffic.

What is simulated is not a copy. `machine` holds the pools, accounts and cells that a worker's data plane would hold,
and `engine` calls them in the order in which events would have called them. Everything else here makes traffic, counts
what became of it, or shows it. Only `lbproxy.core` and the standard library are needed.
"""
