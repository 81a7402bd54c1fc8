"""Pipeline: from a position in the order to finished batches, worked on ahead of whoever takes them.

recipe.py     what becomes of a step: fields, memory, ops; frozen, made once a loader
stretch.py    what is found out about many steps at once, before they are done
step.py       one step on its way: records, draws, slot, arrays
ring.py       slots: the memory that steps live in, bounded in bytes
tray.py       where threads put what they have finished
workers.py    the threads that do steps ahead, and copy records in a queue of the core
batches.py    the thread that feeds an executor which runs whole batches
session.py    what one loader holds of all this
epoch.py      the iterator over the batches of one epoch
"""
