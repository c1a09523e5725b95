"""What a pod becomes: pure, from the pod and the settings to a JSON patch."""
