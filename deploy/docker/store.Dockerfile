# hearth-store, the cache node. The image has no model, no torch and no Python.
#   docker build -f deploy/docker/store.Dockerfile -t hearth-store:dev .
FROM debian:12.12-slim AS build
WORKDIR /src
COPY deploy/docker/apt-install.sh deploy/docker/
COPY scripts/apt-packages.txt scripts/
RUN deploy/docker/apt-install.sh scripts/apt-packages.txt
COPY . .
ARG HEARTH_VERSION HEARTH_COMMIT
RUN deploy/docker/build.sh /out hearth-store hearthctl

FROM debian:12.12-slim
COPY deploy/docker/apt-install.sh deploy/docker/runtime-packages.txt /tmp/
RUN /tmp/apt-install.sh /tmp/runtime-packages.txt \
    && rm /tmp/apt-install.sh /tmp/runtime-packages.txt
RUN groupadd --gid 10001 hearth \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin hearth \
    && install -d -o hearth -g root -m 0770 /var/lib/hearth
COPY --from=build /out/bin/ /usr/local/bin/
COPY deploy/docker/healthcheck.sh /usr/local/bin/hearth-healthcheck
COPY LICENSE NOTICE /usr/share/doc/hearth/

ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="hearth-store" \
    org.opencontainers.image.description="Store of KV prefixes for Gemma 3" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION" \
    org.opencontainers.image.base.name="debian:12.12-slim"

ENV HEARTH_STORE_LISTEN=0.0.0.0:7080 \
    HEARTH_STORE_METRICS_LISTEN=0.0.0.0:9080 \
    HEARTH_STORE_DATA_DIR=/var/lib/hearth
VOLUME /var/lib/hearth
EXPOSE 7080 9080
USER 10001:10001
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=3 \
    CMD ["/usr/local/bin/hearth-healthcheck", "7080", "9080"]
ENTRYPOINT ["/usr/local/bin/hearth-store"]
