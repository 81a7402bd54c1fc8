// A driver for the targets where the compiler has no libFuzzer: it changes inputs at random and keeps those that reach
// code that none before them reached. It takes libFuzzer's arguments, and prints what libFuzzer prints at its end.
//
// Coverage    -fsanitize-coverage=trace-pc, of gcc: a call for each edge, from which its address is taken.
// Findings    Each input is in a file while it is run, which stays there if the process ends with it, whatever ends it. A
//             target that takes longer than -timeout is ended by SIGALRM.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments);
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" void __sanitizer_cov_trace_pc();

namespace {

using Bytes = std::vector<uint8_t>;
namespace fs = std::filesystem;

constexpr size_t NUM_EDGES = 1 << 16;
uint8_t edges[NUM_EDGES];
bool is_watching = false, is_new = false;
size_t num_edges = 0;

Bytes input;
int input_file = -1;

void run(unsigned timeout) {
    const Bytes copy = input;  // a target that reads beyond its size leaves this memory
    if (ftruncate(input_file, 0) != 0 || pwrite(input_file, copy.data(), copy.size(), 0) < 0) std::abort();
    is_watching = true;
    is_new = false;
    alarm(timeout);
    LLVMFuzzerTestOneInput(copy.data(), copy.size());
    is_watching = false;
}

class Changes {
  public:
    explicit Changes(uint64_t seed) : random_(seed) {}

    size_t below(size_t count) { return size_t(random_() % count); }

    void apply(Bytes& bytes, const std::vector<Bytes>& corpus, size_t most) {
        static const uint64_t EDGES[] = {0, 1, 0x7F, 0x80, 0xFF, 0x100, 0x7FFF, 0x8000, 0xFFFF, 1u << 31, ~0u, ~0ull, ~0ull >> 1};
        for (size_t left = 1 + below(6); left > 0; --left) {
            const size_t place = bytes.empty() ? 0 : below(bytes.size()), size = 1 + below(below(4) ? 8 : 64);
            switch (below(7)) {
                case 0:
                    if (!bytes.empty()) bytes[place] = uint8_t(bytes[place] ^ 1u << below(8));
                    break;
                case 1:
                    if (!bytes.empty()) bytes[place] = uint8_t(random_());
                    break;
                case 2: bytes.erase(bytes.begin() + long(place), bytes.begin() + long(std::min(bytes.size(), place + size))); break;
                case 3:
                    for (size_t i = 0; i < size; ++i) bytes.insert(bytes.begin() + long(place), uint8_t(random_()));
                    break;
                case 4: {
                    const uint64_t edge = EDGES[below(std::size(EDGES))];
                    const bool is_big = below(2);
                    const size_t width = size_t(1) << below(4);
                    for (size_t i = 0; i < width && place + i < bytes.size(); ++i)
                        bytes[place + i] = uint8_t(edge >> 8 * (is_big ? width - 1 - i : i));
                    break;
                }
                case 5:
                    for (size_t i = 0; i < size; ++i) bytes.push_back(uint8_t(random_()));  // numbers come from the end
                    break;
                default: {
                    const Bytes& other = corpus[below(corpus.size())];
                    if (other.empty()) break;
                    const size_t from = below(other.size()), count = std::min(size * 4, other.size() - from);
                    bytes.insert(bytes.begin() + long(place), other.begin() + long(from), other.begin() + long(from + count));
                }
            }
        }
        if (bytes.size() > most) bytes.resize(most);
    }

  private:
    std::mt19937_64 random_;
};

Bytes read(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    return Bytes(std::istreambuf_iterator<char>(file), {});
}

}  // namespace

void __sanitizer_cov_trace_pc() {
    if (!is_watching) return;
    const auto address = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
    uint8_t& edge = edges[(address ^ address >> 16) % NUM_EDGES];
    if (edge) return;
    edge = 1;
    ++num_edges;
    is_new = true;
}

int main(int count, char** arguments) {
    LLVMFuzzerInitialize(&count, &arguments);
    std::string prefix;
    unsigned long seconds = 0, seed = 1, most = 4096, timeout = 10, runs = ~0ul;
    std::vector<fs::path> paths;
    for (int i = 1; i < count; ++i) {
        const std::string argument = arguments[i];
        const auto value = [&](const char* name) {
            const std::string start = std::string("-") + name + "=";
            return argument.rfind(start, 0) == 0 ? argument.substr(start.size()) : std::string();
        };
        if (argument[0] != '-') paths.push_back(argument);
        if (const std::string text = value("max_total_time"); !text.empty()) seconds = std::stoul(text);
        if (const std::string text = value("seed"); !text.empty()) seed = std::stoul(text);
        if (const std::string text = value("max_len"); !text.empty()) most = std::stoul(text);
        if (const std::string text = value("timeout"); !text.empty()) timeout = unsigned(std::stoul(text));
        if (const std::string text = value("runs"); !text.empty()) runs = std::stoul(text);
        if (const std::string text = value("artifact_prefix"); !text.empty()) prefix = text;
    }
    const std::string input_path = prefix + "crash-" + std::to_string(getpid());
    input_file = open(input_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    std::vector<Bytes> corpus;
    size_t num_runs = 0, num_new = 0;
    const auto take = [&] {
        run(timeout);
        ++num_runs;
        return is_new;
    };
    for (const fs::path& path : paths) {
        std::vector<fs::path> files;
        if (fs::is_directory(path))
            for (const auto& entry : fs::directory_iterator(path)) files.push_back(entry.path());
        else
            files.push_back(path);
        std::sort(files.begin(), files.end());
        for (const fs::path& file : files) {
            input = read(file);
            take();
            corpus.push_back(input);
        }
    }
    const bool is_repeat = !paths.empty() && !fs::is_directory(paths[0]);
    if (corpus.empty()) corpus.emplace_back();
    Changes changes(seed);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    while (!is_repeat && num_runs < runs && (num_runs % 64 != 0 || std::chrono::steady_clock::now() < end)) {
        input = corpus[changes.below(4) ? corpus.size() - 1 - changes.below(std::min<size_t>(corpus.size(), 64)) : changes.below(corpus.size())];
        changes.apply(input, corpus, most);
        if (!take()) continue;
        corpus.push_back(input);
        ++num_new;
    }
    alarm(0);
    unlink(input_path.c_str());
    std::fprintf(stderr, "#%zu DONE cov: %zu corp: %zu\n", num_runs, num_edges, corpus.size());
    std::fprintf(stderr, "stat::number_of_executed_units: %zu\nstat::new_units_added: %zu\n", num_runs, num_new);
    return 0;
}
