"""What sweeps in stages add: do gains multiply, what is a batch worth, does it learn as well."""
