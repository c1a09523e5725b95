"""The webhook side of Initless: istio-proxy and istio-validation, and nothing else, into pods."""
