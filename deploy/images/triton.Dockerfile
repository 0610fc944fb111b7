# Triton as NVIDIA ships it, with Tidegate's Python-based backends and the program that lets a pod drain.
#
#   docker build -f deploy/images/triton.Dockerfile \
#     --build-arg TRITON_IMAGE=nvcr.io/nvidia/tritonserver:26.11-py3@sha256:... -t REGISTRY/tidegate-triton .
#
# 26.11 or newer: older ones free memory that batches still use, and lose cancellations. There is no default: an image
# without its digest is another one tomorrow.
ARG TRITON_IMAGE
# hadolint ignore=DL3006
FROM ${TRITON_IMAGE}

COPY python_backends /opt/tidegate/python_backends
COPY deploy/images/wait_until_drained.py /opt/tidegate/wait_until_drained.py

# Backends of NVIDIA's image stay where they are: ours have names of their own, but for `onnxruntime`, which is there
# already and native.
RUN for backend in /opt/tidegate/python_backends/*/model.py; do \
      name="$(basename "$(dirname "$backend")")"; \
      [ -e "/opt/tritonserver/backends/$name" ] || ln -s "$(dirname "$backend")" "/opt/tritonserver/backends/$name"; \
    done \
    && mkdir -p /models && chown 1000:1000 /models
ENV PYTHONPATH=/opt/tidegate

USER 1000:1000
ENTRYPOINT ["tritonserver"]
CMD ["--model-repository=/models", "--model-control-mode=explicit", "--strict-readiness=false"]
