// Edits: their codes, of which the core, the kernels and `ops.edits` know by this file alone. An edit is its code, the number of
// its arguments, and the arguments, all in float64.
//
// Those that begin with PIL are Pillow's functions (`ops.colour_pillow`, `ops.pillow`), the others torchvision's (`ops.colour`). A
// weight is 1 - factor, rounded to float.
#pragma once

namespace core {

enum class Code {
    SKIP,  // does nothing, whatever its arguments are
    TABLE,  // a table of 256 bytes, in the memory of 32 numbers
    BRIGHTNESS,  // factor
    CONTRAST,  // factor, weight
    SATURATION,  // factor, weight
    HUE,  // part of a turn
    SHARPNESS,  // weight
    GRAY,
    AUTOCONTRAST,
    EQUALIZE,
    BLUR,  // how many weights down, how many across, and these; see `ops.blur`
    PIL_CONTRAST,  // factor
    PIL_SATURATION,  // factor
    PIL_SHARPNESS,  // factor
    PIL_AUTOCONTRAST,
    PIL_AFFINE,  // which of `edits.FILTERS`, six numbers of a matrix, the fill of three channels
    PIL_TURN,  // quarters of a turn, 1 to 3, counter-clockwise
    PIL_MIX,  // share of the mix, number of chains; of each chain its weight, the count of its numbers, and its edits
    CLAHE,  // limit, tiles down, tiles across; see `ops.clahe`
    PIL_BLUR,  // see `blur_pillow.box`
    NUM_CODES,
};

}  // namespace core
