"""Who proposes points: Optuna's TPE, random, grid; and a model of what is left to gain."""
