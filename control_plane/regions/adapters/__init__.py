"""Other regions' gateways over HTTP and gRPC, and the file that lists them."""
