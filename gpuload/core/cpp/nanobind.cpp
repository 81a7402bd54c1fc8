// nanobind: its own code, compiled with ours. `setup.py` names the folder; a source of an extension
// must lie below it.
#include <nb_combined.cpp>
