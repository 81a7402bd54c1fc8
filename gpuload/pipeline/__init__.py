"""Pipeline: from a position in the order to finished batches, worked on ahead of the consumer.

setup.py      the arguments of a loader, checked
recipe.py     the way from a step to a batch: fields, memory, ops; frozen, made once a session
stretch.py    records, places and draws of many steps at once, before they are done
step.py       one step on its way: the threads that do it, and its content when it is done
rows.py       the records of a step, and the slot that holds them
part.py       some rows of a step, done by a worker: read, decoded, drawn for, run through ops
mend.py       a part with other records in the place of damaged ones, which damage.py chooses
ring.py       slots: the memory that steps live in, bounded in bytes
tray.py       the place where threads put finished items, and the consumer takes them
board.py      the state that threads of an epoch share with the object that started them
workers.py    the threads that do steps ahead, and copy records in a queue of the core
settings.py   how many threads and steps ahead, chosen by measurements
tuning.py     measures a loop, and applies the choice
batches.py    the thread that feeds an executor which runs whole batches
upload.py     the fields of a step on a GPU, and those of a batch as frameworks take them
outcome.py    the result of a step, or its error
session.py    the resources of one loader: all of these
sessions.py   the session of a loader now, and those of feeds and of before
cursor.py     where an iterator is, and where a loader is
epoch.py      the iterator over the batches of one epoch
handover.py   the batch of a finished step, as the caller gets it
course.py     the position of a loader, its states, and the iterators that read ahead
port.py       all that a bridge may ask of a loader
"""
