"""KServe's v2 protocol with Triton's extensions, over HTTP and gRPC.

`http` and `grpc` have the tables of calls; `http_infer`, `grpc_infer` and `grpc_stream` are one inference request over each.
"""
