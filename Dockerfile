# Headgate as a container. Build: `make dist && docker build -t headgate .`
#
# The data directory is /var/lib/headgate. Give it a volume, or what is not in the store is lost with
# the container. `docker stop` waits 10 s, and a drain takes up to 20 s: stop with `-t 25`.
# examples/compose.yaml runs it with a MinIO.
#
# It listens on loopback. HEADGATE_LISTEN=0.0.0.0:7440 opens it to the container's network, and needs
# HEADGATE_AUTH_FILE (SECURITY.md).

# Pin the base for a release: `docker pull python:3.12-slim` prints its digest, then build with
# --build-arg BASE=python:3.12-slim@sha256:...
ARG BASE=python:3.12-slim
FROM ${BASE}

# An account without a shell, and an environment that belongs to root, so the daemon cannot change it.
RUN useradd --system --uid 7440 --home-dir /var/lib/headgate --create-home \
        --shell /usr/sbin/nologin headgate
COPY constraints.txt tools/install.sh dist/headgate-*.whl /opt/wheel/
RUN python -m venv /opt/headgate \
    && PIP_NO_CACHE_DIR=1 sh /opt/wheel/install.sh /opt/headgate /opt/wheel/constraints.txt \
        /opt/wheel/headgate-*.whl grpc \
    && rm -r /opt/wheel

ENV PATH=/opt/headgate/bin:/usr/local/bin:/usr/bin:/bin \
    HEADGATE_DATA_DIR=/var/lib/headgate \
    HEADGATE_LOG_FORMAT=json

USER headgate
WORKDIR /var/lib/headgate
VOLUME /var/lib/headgate
EXPOSE 7440
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:7440/readyz', timeout=4)"]
ENTRYPOINT ["headgate"]
CMD ["serve"]
