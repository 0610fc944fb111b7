# Triton as NVIDIA ships it, with `tidegate node`, which runs it, Tidegate's Python-based backends, and the programs
# that let a pod drain and say whether it is alive.
#
#   docker build -f deploy/images/triton.Dockerfile \
#     --build-arg TRITON_IMAGE=nvcr.io/nvidia/tritonserver:26.11-py3@sha256:... -t REGISTRY/tidegate-triton .
#
# 26.11 or newer: older ones free memory that batches still use, and lose cancellations. There is no default: an image
# without its digest is another one tomorrow.
#
# `--build-arg STUBS=gpu` adds what the repository's variants by TensorRT take; its libraries are fetched from NVIDIA's index.
ARG TRITON_IMAGE
# hadolint ignore=DL3006
FROM ${TRITON_IMAGE} AS build
ARG STUBS=""

WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
COPY dependencies dependencies
# The environment of the node and of Triton's stubs, which find the image's own packages behind these, also such as a layer
# adds. Without a pip in it, which that image could not give it: the image's own installs there. What is pinned, by the
# digests of its files.
RUN python3 -m venv --without-pip --system-site-packages /opt/tidegate/node \
    && python3 -m dependencies.sections serve extras ${STUBS} > /tmp/requirements.txt \
    && python3 -m pip --python /opt/tidegate/node install --ignore-installed --no-cache-dir --no-deps --require-hashes --requirement /tmp/requirements.txt \
    && python3 -m dependencies.bill serve extras ${STUBS} > /opt/tidegate/sbom.cdx.json
COPY control_plane control_plane
COPY python_backends python_backends
RUN python3 -m pip --python /opt/tidegate/node install --no-cache-dir --no-deps --no-build-isolation --no-index .

# hadolint ignore=DL3006
FROM ${TRITON_IMAGE}
COPY --from=build /opt/tidegate /opt/tidegate
COPY python_backends /opt/tidegate/python_backends
COPY deploy/images/wait_until_drained.py deploy/images/is_alive.py /opt/tidegate/
# A checkout by somebody with umask 077 has files that only he may read, and COPY keeps their modes.
RUN mkdir -p /models /var/lib/tidegate && chown 1000:1000 /models /var/lib/tidegate \
    && chmod -R a+rX /opt/tidegate/python_backends /opt/tidegate/wait_until_drained.py /opt/tidegate/is_alive.py
# Triton's own limit of a body over HTTP is half of the gateway's (TIDEGATE_MAX_BODY_BYTES).
ENV TIDEGATE_TRITONSERVER=/opt/tritonserver/bin/tritonserver \
    TIDEGATE_PYTHON_BACKENDS=/opt/tidegate/python_backends \
    TIDEGATE_TRITON_ARG=--http-max-input-size=134217728 \
    TIDEGATE_MODEL_REPOSITORY=/models \
    TIDEGATE_STATE_DIR=/var/lib/tidegate

USER 1000:1000
WORKDIR /var/lib/tidegate
EXPOSE 8000 8001 8002 8500
ENTRYPOINT ["/opt/tidegate/node/bin/tidegate"]
CMD ["node"]
