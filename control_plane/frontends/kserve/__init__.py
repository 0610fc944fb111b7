"""KServe's v2 protocol with Triton's extensions, over HTTP and gRPC.

`http` and `grpc` have the tables of calls; `http_infer` and `grpc_infer` implement one inference request over each,
`grpc_stream` a stream of them (ModelStreamInfer).
"""
