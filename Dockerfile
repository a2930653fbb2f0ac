# Compiled in one stage, run from another: the image holds Python, one virtual environment and nothing to build with.
#
#   docker build -t lbproxy .
#   docker run --read-only --cap-drop ALL --security-opt no-new-privileges --stop-timeout 35 \
#     -p 127.0.0.1:8080:8080 -v ./conf:/etc/lbproxy:ro lbproxy    # conf/lbproxy.yaml

FROM python:3.11-slim AS build
WORKDIR /src
# Any version will do, and none of it stays.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY lbproxy lbproxy
COPY grafana grafana
RUN python -m venv /opt/lbproxy \
 && LBPROXY_COMPILE=1 /opt/lbproxy/bin/pip install --no-cache-dir --disable-pip-version-check . \
 && /opt/lbproxy/bin/pip uninstall --yes --quiet pip setuptools

FROM python:3.11-slim
COPY --from=build /opt/lbproxy /opt/lbproxy
# /run/lbproxy is for Unix sockets; with a read-only root, mount a tmpfs there if any are configured. The group's number is
# fixed too, for whoever must name it outside.
RUN groupadd --gid 10001 lbproxy \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin lbproxy \
 && install --directory --owner=lbproxy --group=lbproxy --mode=0755 /run/lbproxy
ENV PATH=/opt/lbproxy/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1
USER 10001
EXPOSE 8080
# SIGTERM drains; give the container longer than drain.timeout (30 s) before it is killed.
STOPSIGNAL SIGTERM
# Asks the admin address as it is by default; another one needs a HEALTHCHECK of its own.
HEALTHCHECK --interval=10s --timeout=3s --start-period=10s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:9901/readyz', timeout=2)"]
ENTRYPOINT ["lbproxy"]
CMD ["run", "-c", "/etc/lbproxy/lbproxy.yaml"]
