"""`kvpicker doctor`: what configured engines can do for routing, and what to switch on."""
