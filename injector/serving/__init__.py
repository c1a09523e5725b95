"""The running webhook: sockets, TLS, workers, and where its settings come from."""
