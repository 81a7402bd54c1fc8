// The Python module of the core: `core.face` describes it, and door.hpp says how it is checked.
#include "door.hpp"

NB_MODULE(_native, module) {
    // Objects that a thread uses when Python ends stay in memory.
    nanobind::set_leak_warnings(false);
    module.attr("source") = GPULOAD_SOURCE;  // a checksum of these C++ files: `core.source`
    door::bind_random(module);
    door::bind_memory(module);
    door::bind_copies(module);
    door::bind_records(module);
    door::bind_formats(module);
    door::bind_pixels(module);
    door::bind_visits(module);
}
