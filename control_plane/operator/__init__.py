"""Kubernetes operator: turns custom resources of kind `Model` into the desired states that `tidegate apply` writes.

`definition` is the CustomResourceDefinition; `controller` brings the fleet's desired states in line with the resources and
writes their status; `app/gateway/model_resources` wires them.
"""
