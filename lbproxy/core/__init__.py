"""The deterministic core that decides: no I/O, no clock, no randomness; `now` is an argument."""
