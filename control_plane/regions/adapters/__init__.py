"""Clients of other regions' gateways over HTTP and gRPC, and the file that lists the regions."""
