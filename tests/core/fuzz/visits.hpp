// Visits: steps of the fuzzer's choice for an image, some of which do not fit it.
#pragma once

#include "../../../gpuload/core/cpp/imagerows.hpp"
#include "target.hpp"

namespace fuzz {

struct Sides {  // of an image, pixels
    int64_t height, width;
};

// Returns the steps of one image of a size. `sides` has the size behind each step, also where a step does not fit.
core::Visit visit_of(Input& input, int64_t channels, Sides image, std::vector<Sides>& sides);

}  // namespace fuzz
