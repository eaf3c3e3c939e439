"""The commands for operators: `kvpicker endpoints`, `drain`, `undrain` and `cordon`."""
