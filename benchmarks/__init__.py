"""lbproxy side by side with nginx, HAProxy, Envoy and Caddy, on one machine and in interleaved rounds.

    python -m benchmarks              every load, every proxy whose binary is found; tables on stdout
    python -m benchmarks --write      the same, and RESULTS.md
    python -m benchmarks.quick        small keyed GETs against nginx and HAProxy in under 40 s
    python -m benchmarks.profile      lbproxy alone under load, for perf, py-spy or cProfile

The proxy has one core to itself; wrk and the backends share another. Two cores of one machine are noisy, so a figure
means little and a ratio within one run means much: every round measures every proxy once, and medians are compared.
A round with an error, a status that is not 2xx, or requests that did not reach a backend ends the run: there are no
silent numbers. Nothing here touches any address but 127.0.0.1.
"""
