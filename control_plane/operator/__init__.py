"""Operator for Kubernetes: resources of kind `Model`, which `kubectl apply` makes, become what `tidegate apply` writes.

`definition` is the kind's definition, `controller` brings the fleet's desired states in line with the resources and
writes back what came of it; `app/gateway/model_resources` wires them.
"""
