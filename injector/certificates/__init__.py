"""The webhook's own CA and serving certificate, kept and announced."""
