"""The attack: files, states, signals, forks and threads at random, for as long as one likes;
`make attack`.

Each part is a module with ``attack(seconds, seed) -> Report``. It tries one thing after the other,
and each has a seed of its own: the first that of the part, the next one more, and so on. So a
finding is repeated with the seed that stands beside it, ``make attack PART=npy SEED=4711``, as far
as it does not hang on the moment. The input is kept as well.
"""
