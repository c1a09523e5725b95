"""Settings as operators have them, ConfigMaps of Istio and ours, read and checked once."""
