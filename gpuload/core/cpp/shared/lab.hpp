// Lab: one colour of 8 bits to CIE L*a*b* and back by tables; `kernels.lab` says what these are,
// and where numbers are rounded.
//
// Assumes: levels from 0 to 255. No place in a table is out of its range, whatever they are.
#pragma once

#include "numbers.hpp"

namespace core {

constexpr int NUM_ROOTS = 256 * 3 / 2 * 8, MATRIX_BITS = 12;
constexpr int ONE_ROOT = 1 << 15, ONE_LIGHT = 1 << 14, ONE_RESULT = 1 << 12;  // 1 in the tables
constexpr int LEAST_ROOT = -8145, NUM_LIGHTS = ONE_LIGHT * 9 / 4;
constexpr int LIGHTNESS_SCALE = (116 * 255 + 50) / 100;
constexpr int LIGHTNESS_SHIFT = (16 * 255 * ONE_ROOT + 50) / 100;

struct LabTables {  // in the order of `kernels.lab.Tables`
    int linear[256], roots[NUM_ROOTS], y[256], root_of_y[256], lights[NUM_LIGHTS];
    int values[ONE_RESULT], to_xyz[3][3], from_xyz[3][3];
};

struct Lab {
    int lightness, a, b;
};

struct Levels {
    int red, green, blue;
};

SHARED int product(int x, int y, int z, const int* row, int bits) {
    return (x * row[0] + y * row[1] + z * row[2] + (1 << (bits - 1))) >> bits;
}

SHARED Lab to_lab(const LabTables& tables, Levels levels) {
    const int half = ONE_ROOT / 2, middle = 128 * ONE_ROOT;
    const int red = tables.linear[levels.red], green = tables.linear[levels.green];
    const int blue = tables.linear[levels.blue];
    const int x = tables.roots[product(red, green, blue, tables.to_xyz[0], MATRIX_BITS)];
    const int y = tables.roots[product(red, green, blue, tables.to_xyz[1], MATRIX_BITS)];
    const int z = tables.roots[product(red, green, blue, tables.to_xyz[2], MATRIX_BITS)];
    return {byte_of((LIGHTNESS_SCALE * y + (half - LIGHTNESS_SHIFT)) >> 15),
            byte_of((500 * (x - y) + (middle + half)) >> 15),
            byte_of((200 * (y - z) + (middle + half)) >> 15)};
}

SHARED int level_of(const LabTables& tables, int x, int y, int z, int channel) {
    const int place = product(x, y, z, tables.from_xyz[channel], MATRIX_BITS + 2);
    return tables.values[clipped(place, ONE_RESULT)];
}

SHARED Levels from_lab(const LabTables& tables, Lab lab) {
    const int y = tables.y[lab.lightness], root = tables.root_of_y[lab.lightness];
    const int root_x = root + ((5 * lab.a * 53687 + (1 << 7)) >> 13) - 128 * ONE_LIGHT / 500;
    const int root_z = root - ((lab.b * 41943 + (1 << 4)) >> 9) + 128 * ONE_LIGHT / 200 - 1;
    const int x = tables.lights[root_x - LEAST_ROOT], z = tables.lights[root_z - LEAST_ROOT];
    return {level_of(tables, x, y, z, 0), level_of(tables, x, y, z, 1),
            level_of(tables, x, y, z, 2)};
}

}  // namespace core
