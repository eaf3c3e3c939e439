"""`kvpicker replay`: what each strategy would have made of a trace or a generated workload, on simulated engines."""
