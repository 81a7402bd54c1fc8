// The fuzzer of the core: `fuzzer -target=NAME` and libFuzzer's arguments. A file as argument is run once: so a finding is
// repeated. `driver.cpp` stands in where the compiler has no libFuzzer.
#include <string>

#include "target.hpp"

namespace {

struct Target {
    const char* name;
    void (*run)(fuzz::Input);
};

void planted(fuzz::Input input) {  // a fault that has to be found
    const fuzz::Block<uint8_t> data = input.rest();
    if (data.size() < 3 || data[0] != 'b') return;
    if (data[1] == 'u') fuzz::ensure(data[data.size() + data[2] % 8] != 1, "a byte is not 1");
}

constexpr Target TARGETS[] = {
    {"blurs", fuzz::blurs},
    {"checksums", fuzz::checksums},
    {"colours", fuzz::colours},
    {"copies", fuzz::copies},
    {"edits", fuzz::edits},
    {"examples", fuzz::examples},
    {"frames", fuzz::frames},
    {"heads", fuzz::heads},
    {"lzw", fuzz::lzw},
    {"maps", fuzz::maps},
    {"permutations", fuzz::permutations},
    {"pillow_resizes", fuzz::pillow_resizes},
    {"planted", planted},
    {"resizes", fuzz::resizes},
    {"roundings", fuzz::roundings},
    {"rows", fuzz::rows},
    {"scans", fuzz::scans},
    {"steps", fuzz::steps},
    {"taps", fuzz::taps},
    {"visits", fuzz::visits},
    {"walks", fuzz::walks},
    {"warps", fuzz::warps},
    {"windows", fuzz::windows},
};

const Target* target = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
    const std::string name = *count > 1 ? (*arguments)[1] : "";
    for (const Target& each : TARGETS)
        if (name == std::string("-target=") + each.name) target = &each;
    if (target == nullptr) {
        std::fprintf(stderr, "the first argument is -target=NAME, NAME one of:");
        for (const Target& each : TARGETS) std::fprintf(stderr, " %s", each.name);
        std::fprintf(stderr, "\n");
        std::exit(2);
    }
    for (int i = 1; i + 1 < *count; ++i) (*arguments)[i] = (*arguments)[i + 1];
    --*count;
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    target->run(fuzz::Input(data, size));
    return 0;
}
