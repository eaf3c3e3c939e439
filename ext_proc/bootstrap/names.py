"""Names that Envoy's configuration, kvpicker and readers of the access log share."""

from __future__ import annotations

from typing import Final

LISTENER: Final = "kvpicker_entry"

ENDPOINTS: Final = "kvpicker_endpoints"
PROCESSORS: Final = "kvpicker_processors"
ACCESS_LOG: Final = "kvpicker_access_log_{}"

EXT_PROC_SERVICE: Final = "envoy.service.ext_proc.v3.ExternalProcessor"

LB_NAMESPACE: Final = "envoy.lb"
SUBSET_NAMESPACE: Final = "envoy.lb.subset_hint"
KVPICKER_NAMESPACE: Final = "kvpicker"
USAGE_NAMESPACE: Final = "kvpicker.usage"

DESTINATION: Final = "x-gateway-destination-endpoint"
SERVED: Final = "x-gateway-destination-endpoint-served"
REFUSED_KEY: Final = "refused"
