"""Tidegate's control plane: a gateway in front of NVIDIA Triton and what runs it.

One inference request:
    frontends/http, frontends/grpc      connections: bytes in, requests out
      -> frontends/kserve               who asks, for what: the KServe protocol and Triton's extensions
      -> protocols                      parse and validate: framing, shapes against bytes, one reading only
      -> inference/inference            let it in (admission, auth), bound the time, record how it ended
      -> inference/caching/cached_inference     a cached response, or that of an equal request under way, else
      -> fleet/routing                  which Triton, where there are several
      -> triton/adapters/connected      send it on by the protocol it came by; the answer passes through byte for byte
      -> Triton
OpenAI's `/v1/embeddings`: frontends/openai -> embeddings/embeddings, which caches each text by itself -> as above.
OpenAI's completions and chats: frontends/completions -> generation/generation, a stream over gRPC -> as above.

One model load:
    admin/api | start | restart of Triton
      -> models/model_service                 what is wanted; which files, in which order
      -> models/adapters/managed_repository   place the model's files under the root that Triton reads
      -> models/loaded_contents               whether what is loaded is known for certain, which cache keys are made of
      -> triton/adapters/control              RepositoryModelLoad, with a deadline
      -> Triton

A folder is a capability, and layered inside: adapters -> services -> ports -> domain. Between folders imports point
down, in the order of ARCHITECTURE.md's map (contracts in .importlinter): `domain`, `core` and `protocols` do no I/O;
only adapters import a client library; `app` wires it all by hand.
"""
