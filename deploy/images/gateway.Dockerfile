# Tidegate's gateway and control plane, without a Triton of its own.
#
#   docker build -f deploy/images/gateway.Dockerfile \
#     --build-arg PYTHON_IMAGE=docker.io/library/python:3.11-slim-bookworm@sha256:... -t REGISTRY/tidegate-gateway .
#
# There is no default: an image without its digest is another one tomorrow.
ARG PYTHON_IMAGE
# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE} AS build

WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
COPY dependencies dependencies
# What is pinned, by the digests of its files, and nothing else; then the list of what that is (CycloneDX).
RUN python -m venv /opt/tidegate \
    && python -m dependencies.sections serve extras > /tmp/requirements.txt \
    && /opt/tidegate/bin/python -m pip install --no-cache-dir --no-deps --require-hashes --requirement /tmp/requirements.txt \
    && python -m dependencies.bill serve extras > /opt/tidegate/sbom.cdx.json
COPY control_plane control_plane
COPY python_backends python_backends
RUN /opt/tidegate/bin/python -m pip install --no-cache-dir --no-deps --no-build-isolation --no-index .

# hadolint ignore=DL3006
FROM ${PYTHON_IMAGE}
COPY --from=build /opt/tidegate /opt/tidegate
ENV PATH=/opt/tidegate/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    TIDEGATE_MODEL_REPOSITORY=/models \
    TIDEGATE_STATE_DIR=/var/lib/tidegate
RUN mkdir -p /models /var/lib/tidegate && chown 1000:1000 /var/lib/tidegate
USER 1000:1000
WORKDIR /var/lib/tidegate
EXPOSE 8000 8001 8002
ENTRYPOINT ["tidegate"]
CMD ["serve"]
