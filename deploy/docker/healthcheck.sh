#!/bin/bash
# healthcheck.sh GRPC_PORT METRICS_PORT [HTTP_PORT]: succeeds if this container serves requests.
#
# A server binds its gRPC port only when it is ready (a worker: when the model is loaded), and its
# metrics page answers only while the process is alive. With HTTP_PORT, OpenAI's API must answer
# too; leave HTTP_PORT out if that port uses TLS. Kubernetes does not use this script; it has its
# own probes. Needs only bash.
set -euo pipefail
grpc_port=$1
metrics_port=$2
http_port=${3:-}

exec 3<>"/dev/tcp/127.0.0.1/$grpc_port"
exec 3>&-

# answers PORT PATH: succeeds if a GET of PATH returns status 200.
answers() {
  local code
  exec 4<>"/dev/tcp/127.0.0.1/$1"
  printf 'GET %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n' "$2" >&4
  read -r -t 2 _ code _ <&4
  exec 4>&-
  [[ $code == 200 ]]
}

answers "$metrics_port" /metrics
[[ -z $http_port ]] || answers "$http_port" /health
