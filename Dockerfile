# The server. Not for executors: docs/operating/deploy.md has an image for those.
#
#   docker build -t acker:0.2.0 .
#   docker run -e ACKER_INSECURE=true -p 127.0.0.1:7070:7070 -p 127.0.0.1:7071:7071 -v acker-state:/var/lib/acker acker:0.2.0
#
# This publishes the ports on this machine only. Elsewhere give ACKER_TLS_CERT, ACKER_TLS_KEY and ACKER_TOKENS instead of
# ACKER_INSECURE: see docs/operating/security.md.
# Options come as words after the image's name or as variables, -e ACKER_MAX_PENDING=5000000; the health check follows them.

FROM python:3.11-slim AS build
WORKDIR /src
COPY . .
# The last command compiles the kernels, so that no server does at its start. They are for any processor of this kind.
RUN python -m venv /opt/acker \
 && /opt/acker/bin/pip install --no-cache-dir --constraint constraints.txt '.[service,cli]' \
 && NUMBA_CPU_NAME=generic /opt/acker/bin/python -P -c "import acker_service.core.kernels, acker_service.grpc.raw_message"

FROM python:3.11-slim
COPY --from=build /opt/acker /opt/acker
# NUMBA_CPU_NAME must equal the one above, or the kernels do not count. The ready file tells the health check where the
# server is, whatever its ports.
ENV PATH=/opt/acker/bin:$PATH PYTHONUNBUFFERED=1 NUMBA_CPU_NAME=generic \
    ACKER_HOST=0.0.0.0 ACKER_STATE_DIR=/var/lib/acker/state ACKER_READY_FILE=/var/lib/acker/ready.json
RUN useradd --system --uid 10001 --user-group --no-create-home acker \
 && install --directory --owner=acker --group=acker /var/lib/acker /var/lib/acker/state
USER 10001:10001
VOLUME /var/lib/acker
EXPOSE 7070 7071
HEALTHCHECK --interval=10s --start-period=30s CMD ["acker", "health"]
ENTRYPOINT ["acker", "serve"]
CMD ["--log-format", "json"]
