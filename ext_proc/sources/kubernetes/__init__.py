"""Endpoints as a Kubernetes cluster knows them: an InferencePool and its pods, or the EndpointSlices of a Service."""
