"""The command `kvpicker epp`: a kvpicker that takes the place of the endpoint picker of a gateway."""
