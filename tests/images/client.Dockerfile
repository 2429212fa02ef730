# A client in the network of the tested containers: Python with the packages openai and grpcio.
FROM debian:12.12-slim
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-pip \
    && pip install --break-system-packages --no-cache-dir openai==3.54.* grpcio==1.85.* \
    && rm -rf /var/lib/apt/lists/*
COPY client.py probe.py /
ENTRYPOINT ["python3", "/client.py"]
