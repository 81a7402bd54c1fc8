"""Pipeline: from a position in the order to finished batches, worked on ahead of the consumer.

recipe.py     the way from a step to a batch: fields, memory, ops; frozen, made once a loader
stretch.py    records, places and draws of many steps at once, before they are done
step.py       one step on its way: records, draws, slot, arrays
ring.py       slots: the memory that steps live in, bounded in bytes
tray.py       the place where threads put finished items, and the consumer takes them
workers.py    the threads that do steps ahead, and copy records in a queue of the core
settings.py   how many threads and steps ahead, chosen by measurements
tuning.py     measures a loop, and applies the choice
batches.py    the thread that feeds an executor which runs whole batches
session.py    the resources of one loader: all of these
epoch.py      the iterator over the batches of one epoch
"""
