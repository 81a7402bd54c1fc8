// Edits: their codes, of which the core, the kernels and `kernels.edits` know by this file alone.
// An edit is its code, the number of its arguments, and the arguments, all in float64.
//
// Those that begin with PIL are Pillow's functions (`kernels.colour_pillow`, `kernels.pillow`), the
// others torchvision's (`kernels.colour`). A weight is 1 - factor, rounded to float.
#pragma once

namespace core {

enum class Code {
    SKIP,        // does nothing, whatever its arguments are
    TABLE,       // a table of 256 bytes, in the memory of 32 numbers
    BRIGHTNESS,  // factor
    CONTRAST,    // factor, weight
    SATURATION,  // factor, weight
    HUE,         // part of a turn
    SHARPNESS,   // weight
    GRAY,
    AUTOCONTRAST,
    EQUALIZE,
    BLUR,            // how many weights down, how many across, and these; see `ops.colour.blur`
    PIL_CONTRAST,    // factor
    PIL_SATURATION,  // factor
    PIL_SHARPNESS,   // factor
    PIL_AUTOCONTRAST,
    PIL_AFFINE,  // which of `kernels.edits.FILTERS`, six numbers of a matrix, three of the fill
    PIL_TURN,    // quarters of a turn, 1 to 3, counter-clockwise
    PIL_MIX,     // share, number of chains; of each its weight, the count of its numbers, its edits
    CLAHE,       // limit, tiles down, tiles across; see `ops.colour.clahe`
    PIL_BLUR,    // see `kernels.blur_pillow.box`
    NUM_CODES,
};

}  // namespace core
