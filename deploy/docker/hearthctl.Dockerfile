# hearthctl, the command line, for warm-up jobs and operators.
#   docker build -f deploy/docker/hearthctl.Dockerfile -t hearthctl:dev .
FROM debian:12.12-slim AS build
WORKDIR /src
COPY deploy/docker/apt-install.sh deploy/docker/
COPY scripts/apt-packages.txt scripts/
RUN deploy/docker/apt-install.sh scripts/apt-packages.txt
COPY . .
ARG HEARTH_VERSION HEARTH_COMMIT
RUN deploy/docker/build.sh /out hearthctl

FROM debian:12.12-slim
COPY deploy/docker/apt-install.sh deploy/docker/runtime-packages.txt /tmp/
RUN /tmp/apt-install.sh /tmp/runtime-packages.txt \
    && rm /tmp/apt-install.sh /tmp/runtime-packages.txt
RUN groupadd --gid 10001 hearth \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin hearth
COPY --from=build /out/bin/ /usr/local/bin/
COPY LICENSE NOTICE /usr/share/doc/hearth/

ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="hearthctl" \
    org.opencontainers.image.description="Command line of Hearth" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION" \
    org.opencontainers.image.base.name="debian:12.12-slim"

USER 10001:10001
# hearthctl runs and ends: its exit status is its health.
HEALTHCHECK NONE
ENTRYPOINT ["/usr/local/bin/hearthctl"]
