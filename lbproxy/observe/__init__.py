"""What is seen of the traffic: slabs of counters, metrics, access log."""
