#!/bin/bash
# healthcheck.sh GRPC_PORT METRICS_PORT: succeeds when this container serves.
#
# The gRPC port is bound only once the server is ready (the worker: model loaded), and the metrics
# page answers only while the process is alive. Kubernetes does not use this: it asks the gRPC
# health service. Needs nothing but bash.
set -euo pipefail
grpc_port=$1
metrics_port=$2

exec 3<>"/dev/tcp/127.0.0.1/$grpc_port"
exec 3>&-

exec 4<>"/dev/tcp/127.0.0.1/$metrics_port"
printf 'GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' >&4
read -r -t 3 _ code _ <&4
[[ $code == 200 ]]
