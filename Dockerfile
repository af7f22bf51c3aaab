# docker build -t skit . && docker run --rm -v "$PWD/results:/work/results" skit bench --method all --limit 20
FROM python:3.12-slim AS build
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
COPY . /source
RUN python -m venv /opt/skit \
    && /opt/skit/bin/pip install --no-cache-dir --constraint /source/constraints.txt "/source[all]"

FROM python:3.12-slim
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home skit && mkdir /work && chown skit /work
COPY --from=build /opt/skit /opt/skit
ENV PATH=/opt/skit/bin:$PATH
USER skit
WORKDIR /work
ENTRYPOINT ["skit"]
CMD ["--help"]
