"""The slow path that builds snapshots: YAML, schema, reload, probes, admin."""
