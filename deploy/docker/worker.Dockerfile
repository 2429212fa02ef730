# hearth-worker on the CPU. The image has no model: mount one below /models, read-only.
#   docker build -f deploy/docker/worker.Dockerfile -t hearth-worker:dev .
FROM debian:12.12-slim AS build
WORKDIR /src
COPY deploy/docker/apt-install.sh deploy/docker/
COPY scripts/apt-packages.txt scripts/
RUN deploy/docker/apt-install.sh scripts/apt-packages.txt
COPY . .
ARG HEARTH_VERSION HEARTH_COMMIT
RUN deploy/docker/build.sh /out hearth-worker hearthctl

FROM debian:12.12-slim
COPY deploy/docker/apt-install.sh deploy/docker/runtime-packages.txt \
    deploy/docker/downloader-packages.txt /tmp/
RUN /tmp/apt-install.sh /tmp/runtime-packages.txt /tmp/downloader-packages.txt \
    && rm /tmp/apt-install.sh /tmp/runtime-packages.txt /tmp/downloader-packages.txt
RUN groupadd --gid 10001 hearth \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin hearth \
    && install -d -o hearth -g root -m 0770 /var/cache/hearth
COPY --from=build /out/lib/ /opt/hearth/lib/
COPY --from=build /out/bin/ /usr/local/bin/
COPY deploy/docker/healthcheck.sh /usr/local/bin/hearth-healthcheck
COPY LICENSE NOTICE /usr/share/doc/hearth/

ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="hearth-worker" \
    org.opencontainers.image.description="Worker that serves Gemma 3 on the CPU" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION" \
    org.opencontainers.image.base.name="debian:12.12-slim"

ENV LD_LIBRARY_PATH=/opt/hearth/lib:/opt/hearth/lib/torch/lib \
    PYTHONPATH=/opt/hearth/lib/python \
    HEARTH_WORKER_LISTEN=0.0.0.0:7070 \
    HEARTH_WORKER_METRICS_LISTEN=0.0.0.0:9070 \
    HEARTH_WORKER_HTTP_LISTEN=0.0.0.0:8000 \
    HEARTH_WORKER_MODEL=/models/gemma-3-270m.gguf \
    HEARTH_WORKER_DEVICE=cpu \
    HEARTH_WORKER_DIGEST_CACHE=/var/cache/hearth
EXPOSE 7070 8000 9070
USER 10001:10001
STOPSIGNAL SIGTERM
# Mapping and hashing a large model takes minutes; the gRPC port is bound after that.
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 \
    CMD ["/usr/local/bin/hearth-healthcheck", "7070", "9070"]
ENTRYPOINT ["/usr/local/bin/hearth-worker"]
