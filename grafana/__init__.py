"""What watches lbproxy: Grafana dashboards as code, Prometheus rules, and the provisioning of both.

    python -m grafana.build            write grafana/dashboards/*.json
    python -m grafana.build --check    say whether they are up to date

The JSON is committed, so that nobody needs this package to use the dashboards; it ships inside the wheel, too, and
`lbproxy dashboards export DIR` writes it out.
"""
