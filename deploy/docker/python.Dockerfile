# The programs of the Python package: the container's arguments are a module and its flags.
#   docker build -f deploy/docker/python.Dockerfile -t hearth-python:dev .
#   docker run hearth-python:dev hearth_cache.events --store STORE:7080
FROM debian:12.12-slim AS build
WORKDIR /src
COPY deploy/docker/apt-install.sh deploy/docker/python-packages.txt deploy/docker/
RUN deploy/docker/apt-install.sh deploy/docker/python-packages.txt
COPY . .
ARG HEARTH_VERSION
RUN python3 -m venv /opt/hearth \
    && /opt/hearth/bin/pip install --no-cache-dir --constraint scripts/constraints.txt \
        './python[events]'

FROM debian:12.12-slim
COPY deploy/docker/apt-install.sh deploy/docker/python-packages.txt /tmp/
RUN /tmp/apt-install.sh /tmp/python-packages.txt \
    && rm /tmp/apt-install.sh /tmp/python-packages.txt
RUN groupadd --gid 10001 hearth \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent \
        --shell /usr/sbin/nologin hearth
COPY --from=build /opt/hearth/ /opt/hearth/
COPY LICENSE NOTICE /usr/share/doc/hearth/

ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="hearth-python" \
    org.opencontainers.image.description="Programs of the Python package hearth-cache" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.version="$VERSION" \
    org.opencontainers.image.revision="$REVISION" \
    org.opencontainers.image.base.name="debian:12.12-slim"

USER 10001:10001
# The program ends when it cannot continue: its exit status is its health.
HEALTHCHECK NONE
ENTRYPOINT ["/opt/hearth/bin/python3", "-m"]
CMD ["hearth_cache.events"]
