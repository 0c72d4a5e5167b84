"""A simulated cluster: the step as a discrete-event model, with noise, costs and failures."""
