"""`make deploy` and `make undeploy`: Kubernetes manifests (`kubernetes/`), images (`images/`), and the program
that applies the one made of the other to a cluster.

It imports nothing of `control_plane`: it runs where `kubectl` is, against whatever version is deployed.
"""
