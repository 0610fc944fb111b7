"""Tidegate's control plane: a gateway in front of NVIDIA Triton and what runs it.

One inference request:
    frontends/http, frontends/grpc      connections: bytes in, requests out
      -> frontends/kserve               the caller and the call: the KServe protocol and Triton's extensions
      -> protocols                      parse and validate: framing, shapes against the number of bytes
      -> inference/inference            authorise and admit it, bound its time, record how it ended
      -> inference/caching/cached_inference     answer from the cache, or join an equal request in flight; otherwise
      -> fleet/routing                  choose the server, where there are several
      -> triton/adapters/connected      send it in the protocol it came in; the answer is forwarded byte for byte
      -> Triton
OpenAI's `/v1/embeddings`: frontends/openai -> embeddings/embeddings, which caches each text by itself -> as above.
OpenAI's completions and chats: frontends/completions -> generation/generation, a stream over gRPC -> as above.

One model load:
    admin/api | start | restart of Triton
      -> models/model_service                 remember the desired state, and order the steps of the load
      -> models/adapters/managed_repository   place the model's files in the repository that Triton reads
      -> models/loaded_contents               fingerprint what is loaded; cache keys contain the fingerprint
      -> triton/adapters/control              RepositoryModelLoad, with a deadline
      -> Triton

A folder is a capability, and layered inside: adapters -> services -> ports -> domain. Between folders imports point
down, in the order of ARCHITECTURE.md's map (contracts in .importlinter): `domain`, `core` and `protocols` do no I/O;
only adapters import a client library; `app` wires it all by hand.
"""
