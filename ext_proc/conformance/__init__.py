"""`kvpicker conformance`: plays Envoy's part against any ext_proc endpoint picker and checks what it answers.

Nothing here knows kvpicker's server. Messages are envoy-data-plane's, which have every field of Envoy's protocol (the
minimal ones in `protos/` would hide what a picker must not set) and a codec that shares no code with protobuf's.
"""
