"""What goes wrong in a trial, named: errors as outcomes, deadlines, what is left behind."""
