# Triton as NVIDIA ships it, with `tidegate node`, which runs it, Tidegate's Python-based backends, and the programs
# that let a pod drain and say whether it is alive.
#
#   docker build -f deploy/images/triton.Dockerfile \
#     --build-arg TRITON_IMAGE=nvcr.io/nvidia/tritonserver:26.11-py3@sha256:... -t REGISTRY/tidegate-triton .
#
# 26.11 or newer: older ones free memory that batches still use, and lose cancellations. There is no default: an image
# without its digest is another one tomorrow.
#
# `--build-arg STUBS=gpu` adds what the repository's variants by TensorRT take, for the Python of Triton's stubs.
ARG TRITON_IMAGE
# hadolint ignore=DL3006
FROM ${TRITON_IMAGE} AS build
ARG STUBS=""

WORKDIR /src
COPY pyproject.toml constraints.txt README.md ./
COPY dependencies dependencies
# An environment of its own beside the packages of NVIDIA's image, which Triton's stubs and models keep. Without a pip in
# it, which that image could not give it: the image's own installs there. What is pinned, by the digests of its files.
RUN python3 -m venv --without-pip /opt/tidegate/node \
    && python3 -m dependencies.sections serve extras > /tmp/requirements.txt \
    && python3 -m pip --python /opt/tidegate/node install --no-cache-dir --no-deps --require-hashes --requirement /tmp/requirements.txt \
    && python3 -m dependencies.sections ${STUBS} > /opt/tidegate/stubs.txt \
    && python3 -m dependencies.bill serve extras ${STUBS} > /opt/tidegate/sbom.cdx.json
COPY control_plane control_plane
COPY python_backends python_backends
RUN python3 -m pip --python /opt/tidegate/node install --no-cache-dir --no-deps --no-build-isolation --no-index .

# hadolint ignore=DL3006
FROM ${TRITON_IMAGE}
COPY --from=build /opt/tidegate /opt/tidegate
COPY python_backends /opt/tidegate/python_backends
COPY deploy/images/wait_until_drained.py deploy/images/is_alive.py /opt/tidegate/
# The image's own Python runs the stubs, whatever else is installed. TensorRT's libraries are fetched from NVIDIA's index.
# A checkout by somebody with umask 077 has files that only he may read, and COPY keeps their modes.
RUN if [ -s /opt/tidegate/stubs.txt ]; then \
        python3 -m pip install --no-cache-dir --break-system-packages --no-deps --require-hashes --requirement /opt/tidegate/stubs.txt; fi \
    && mkdir -p /models /var/lib/tidegate && chown 1000:1000 /models /var/lib/tidegate \
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
