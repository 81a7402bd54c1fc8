// Operations that were drawn for images, as edits: `ops.policy.policies`, bit for bit.
//
// A policy says by a rule for each operation which edit it is and what becomes of a level. Levels
// are finite and at most MOST_LEVEL, numbers of operations have a rule, and the codes and forms of
// rules are known.
#pragma once

#include <cstdint>

namespace core {

constexpr double MOST_LEVEL = 1e6;
constexpr int64_t NUM_FORMS = 15,
                  EDIT_NUMBERS = 34;  // of an edit, its code and its length among them

// As `policies.LevelRule`: the edit's code; the form of its value; two numbers of the form; which
// number of a matrix the value is, ROTATION for none, or which table.
struct Rule {
    double code, form, first, second, place;
};
static_assert(sizeof(Rule) == 5 * sizeof(double));

// Of `count` images: `layers` operations, levels and marks of cubic interpolation each, and height
// and width.
struct Drawn {
    int64_t count, layers;
    const int32_t* numbers;
    const float* levels;
    const int32_t* cubic;  // null: none is
    const int32_t* sizes;
};

struct Policy {
    const Rule* rules;
    int64_t num_rules;
    const double* filters;  // of edits: that which is not cubic, and the other
    const double* fill;     // of three channels
};

// Writes EDIT_NUMBERS numbers for each operation.
void write_edits(const Drawn& drawn, const Policy& policy, double* out);

}  // namespace core
