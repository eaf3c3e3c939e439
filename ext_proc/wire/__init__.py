"""The protocols that Envoy speaks with kvpicker: ext_proc, access log, health."""
