"""Tidegate's control plane: a gateway in front of NVIDIA Triton and what runs it.

One inference request:
    api/v2_http | api/v2_grpc  the front doors, Triton's own protocol
      -> codec                 parse and validate: framing, shapes against bytes, one reading only
      -> services/inference    let it in, bound the time, record how it ended
      -> services/cached_inference     an answer that is kept or under way, else
      -> adapters/triton       send it on by the protocol it came by; the answer passes through byte for byte
      -> Triton
OpenAI's `/v1/embeddings`: api/openai_http -> codec/openai_embeddings -> services/embeddings, which keeps each text by itself -> as above.

One model load:
    api/admin | start | restart of Triton
      -> services/models       what is wanted; which files, in which order
      -> adapters/managed_repository   place the model's files under the root that Triton reads
      -> services/loaded_contents      whether what is loaded is known for certain, by which answers are found again
      -> adapters/triton_grpc  RepositoryModelLoad, with a deadline
      -> Triton

Layers, imports point down (a contract in .importlinter):
    __main__ -> cli -> app -> api | adapters -> services -> ports -> policy | codec -> settings -> domain
`domain`, `policy` and `codec` do no I/O; only adapters import a client library; `app` wires it all by hand.
"""
