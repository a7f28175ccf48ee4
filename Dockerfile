# The server. Not for executors: those need `acker[spark]` in Spark's own image.
#
#   docker build -t acker .
#   docker run -p 127.0.0.1:7070:7070 -p 127.0.0.1:7071:7071 -v acker-state:/var/lib/acker acker

FROM python:3.11-slim AS build
WORKDIR /src
COPY . .
RUN python -m venv /opt/acker \
 && /opt/acker/bin/pip install --no-cache-dir --constraint constraints.txt '.[service,cli]'

FROM python:3.11-slim
COPY --from=build /opt/acker /opt/acker
# Kernels are compiled at the first start and kept beside the state, so that the second start is quick.
ENV PATH=/opt/acker/bin:$PATH PYTHONUNBUFFERED=1 NUMBA_CACHE_DIR=/var/lib/acker/kernels
RUN useradd --system --uid 10001 --user-group --no-create-home acker \
 && install --directory --owner=acker --group=acker /var/lib/acker /var/lib/acker/state
USER 10001:10001
VOLUME /var/lib/acker
EXPOSE 7070 7071
HEALTHCHECK --interval=10s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:7071/readyz', timeout=5)"]
# There is no authentication yet: publish these ports only where you trust whoever reaches them.
ENTRYPOINT ["acker", "serve", "--host", "0.0.0.0", "--state-dir", "/var/lib/acker/state"]
CMD ["--log-format", "json"]
