// Memory: rows of arrays, bytes of files at any place, steps of records, and the permutation of records.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "../../../gpuload/core/cpp/copies.hpp"
#include "../../../gpuload/core/cpp/maps.hpp"
#include "../../../gpuload/core/cpp/queue.hpp"
#include "../../../gpuload/core/cpp/random.hpp"
#include "target.hpp"

namespace fuzz {
namespace {

constexpr int64_t SIZES[] = {0, 1000, 20000, 70000};  // of the files; the last two are worth a map
constexpr int64_t NUM_FILES = 4;
constexpr uint8_t UNTOUCHED = 0xA5;

uint8_t content(int64_t file, int64_t offset) { return uint8_t(offset * 31 + offset / 256 + file); }

class Files {  // in a folder of their own, that goes when the process ends
  public:
    std::string names;
    Block<int64_t> bounds{size_t(NUM_FILES + 1)};
    Block<uint32_t> folder_of{size_t(NUM_FILES)};
    Block<int64_t> stamps{size_t(3 * NUM_FILES)};

    Files() {
        std::string folder = std::string(std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp") + "/fuzz-XXXXXX";
        ensure(mkdtemp(folder.data()) != nullptr, "a folder for files can be made");
        folder_ = folder;
        for (int64_t file = 0; file < NUM_FILES; ++file) {
            bounds[file] = int64_t(names.size());
            folder_of[file] = 0;
            names += path(file);
            write(file);
        }
        bounds[NUM_FILES] = int64_t(names.size());
    }

    core::Paths paths() const {
        static constexpr int64_t NO_FOLDER[] = {0, 0};
        return {nullptr, NO_FOLDER, folder_of.data(), reinterpret_cast<const uint8_t*>(names.data()), bounds.data()};
    }

    ~Files() {
        for (int64_t file = 0; file < NUM_FILES; ++file) unlink(path(file).c_str());
        rmdir(folder_.c_str());
    }

    void write(int64_t file) {
        const auto size = static_cast<size_t>(SIZES[file]);
        Block<uint8_t> bytes(size);
        for (int64_t i = 0; i < bytes.size(); ++i) bytes[i] = content(file, i);
        std::FILE* to = std::fopen(path(file).c_str(), "wb");
        ensure(to != nullptr && std::fwrite(bytes.data(), 1, size, to) == size, "a file can be written");
        std::fclose(to);
        struct stat status;
        ensure(stat(path(file).c_str(), &status) == 0, "a file has a stamp");
        stamps[3 * file] = status.st_size;
        stamps[3 * file + 1] = status.st_mtim.tv_sec * 1'000'000'000 + status.st_mtim.tv_nsec;
        stamps[3 * file + 2] = int64_t(status.st_ino);
    }

    void cut(int64_t file, int64_t size) { ensure(truncate(path(file).c_str(), size) == 0, "a file can be cut"); }

  private:
    std::string path(int64_t file) const { return folder_ + "/" + char('0' + file); }
    std::string folder_;
};

struct Copy {
    Block<int64_t> files, offsets, lengths, begins;
    Block<uint8_t> out;

    Copy(Input& input, int64_t count, int64_t num_bytes)
        : files(size_t(count)), offsets(size_t(count)), lengths(size_t(count)), begins(size_t(count)), out(size_t(num_bytes)) {
        const bool is_wild = input.flag();  // else every extent lies inside
        for (int64_t i = 0; i < count; ++i) {
            files[i] = is_wild ? input.hostile(NUM_FILES) : input.number(0, NUM_FILES - 1);
            const int64_t size = files[i] >= 0 && files[i] < NUM_FILES ? SIZES[files[i]] : 1000;
            const int64_t most = std::min<int64_t>(size, num_bytes);
            lengths[i] = is_wild ? input.hostile(most) : std::min<int64_t>(input.number(0, 1 << 12), most);
            offsets[i] = is_wild ? input.hostile(size) : int64_t(input.word() % uint64_t(size - lengths[i] + 1));
            begins[i] = is_wild ? input.hostile(num_bytes) : int64_t(input.word() % uint64_t(num_bytes - lengths[i] + 1));
        }
        std::fill_n(out.data(), out.size(), UNTOUCHED);
    }

    core::Extents extents() const { return {files.data(), offsets.data(), lengths.data(), files.size()}; }

    bool fits(int64_t i) const {  // in numbers that hold any sum
        using Wide = __int128;
        return files[i] >= 0 && files[i] < NUM_FILES && offsets[i] >= 0 && lengths[i] >= 0 && begins[i] >= 0 &&
               Wide(offsets[i]) + lengths[i] <= SIZES[files[i]] && Wide(begins[i]) + lengths[i] <= out.size();
    }
};

}  // namespace

void copies(Input input) {
    const int64_t num_rows = input.number(0, 9), size = input.number(0, 300), count = input.number(0, 9);
    Block<int64_t> numbers{size_t(count)}, begins{size_t(count)};
    Block<uint8_t> out{size_t(input.number(0, 2000))};
    std::fill_n(out.data(), out.size(), UNTOUCHED);
    const bool is_wild = input.flag();
    for (int64_t i = 0; i < count; ++i) {
        const int64_t places = std::max<int64_t>(out.size() - size + 1, 1);
        numbers[i] = is_wild ? input.hostile(num_rows) : input.number(0, std::max<int64_t>(num_rows - 1, 0));
        begins[i] = is_wild ? input.hostile(places) : input.number(0, places - 1);
    }
    Block<uint8_t> rows{size_t(num_rows * size)};
    for (int64_t i = 0; i < rows.size(); ++i) rows[i] = content(0, i);
    int64_t bad = -1;
    for (int64_t i = count - 1; i >= 0; --i)
        if (numbers[i] < 0 || numbers[i] >= num_rows || begins[i] < 0 || __int128(begins[i]) + size > out.size()) bad = i;
    const int64_t found = core::gather_rows({rows.data(), num_rows, size}, numbers.data(), begins.data(), count, out.data(), out.size());
    ensure(found == bad, "the first row that lies outside is found");
    std::vector<uint8_t> expected(size_t(out.size()), UNTOUCHED);
    for (int64_t i = 0; i < count && bad < 0; ++i)
        for (int64_t k = 0; k < size; ++k) expected[size_t(begins[i] + k)] = rows[numbers[i] * size + k];
    ensure(std::equal(expected.begin(), expected.end(), out.data()), "rows are copied, and nothing else is written");
}

void maps(Input input) {
    static Files files;
    core::Maps maps(files.paths(), files.stamps.data(), NUM_FILES, input.flag() ? input.number(1, 1 << 14) : 0, input.number(0, 2));
    const int64_t broken = input.number(0, 255) < 16 ? input.number(2, NUM_FILES - 1) : -1;
    bool is_cut = false;
    for (int64_t round = input.number(0, 3); round >= 0; --round) {
        Copy copy(input, input.number(0, 12), input.number(0, 9000));
        if (input.flag()) maps.map(copy.extents());
        if (input.flag()) maps.advise(copy.extents(), input.number(1, 1 << 14));
        if (broken >= 0 && input.flag()) {
            files.cut(broken, input.number(0, 9000));
            is_cut = true;
        }
        int64_t bad = -1;
        bool is_touched = false;
        for (int64_t i = copy.files.size() - 1; i >= 0; --i) {
            if (!copy.fits(i)) bad = i;
            is_touched = is_touched || (copy.files[i] == broken && copy.lengths[i] > 0);
        }
        const auto [number, result] = maps.copy(copy.extents(), copy.begins.data(), copy.out.data(), copy.out.size());
        if (bad >= 0) {
            ensure(result == core::Maps::OUTSIDE && number == bad, "the first extent that lies outside is found");
            ensure(std::count(copy.out.data(), copy.out.data() + copy.out.size(), UNTOUCHED) == copy.out.size(), "nothing is written");
        } else if (is_cut && is_touched) {
            ensure(result != core::Maps::COPIED && number == broken, "bytes of a file that was cut are refused");
        } else {
            ensure(result == core::Maps::COPIED, "bytes that are there are copied");
            std::vector<uint8_t> expected(size_t(copy.out.size()), UNTOUCHED);
            std::vector<bool> is_written(expected.size()), is_open(expected.size());  // where two write, either may be last
            for (int64_t i = 0; i < copy.files.size(); ++i)
                for (int64_t k = 0; k < copy.lengths[i]; ++k) {
                    const auto place = size_t(copy.begins[i] + k);
                    const uint8_t value = content(copy.files[i], copy.offsets[i] + k);
                    if (is_written[place] && expected[place] != value) is_open[place] = true;
                    expected[place] = value;
                    is_written[place] = true;
                }
            for (size_t place = 0; place < expected.size(); ++place)
                ensure(is_open[place] || expected[place] == copy.out[int64_t(place)], "bytes are copied, and nothing else is written");
        }
        if (bad >= 0 || result == core::Maps::COPIED) continue;
        break;
    }
    if (is_cut) files.write(broken);
}

// Steps of a plan that is sound, as Python's face sees to it; one file may be shorter than it was.
void steps(Input input) {
    static Files files;
    core::Maps maps(files.paths(), files.stamps.data(), NUM_FILES, 0, input.number(0, 2));
    const int64_t size = input.number(0, 900), num_files = input.number(1, 3), most = int64_t(input.number(0, 9));
    std::vector<int64_t> starts{0}, places, offsets;
    for (int64_t i = 0; i < num_files; ++i) {
        places.push_back(input.number(0, NUM_FILES - 1));
        offsets.push_back(input.number(0, 255) * SIZES[places.back()] / 256);
        const int64_t room = (SIZES[places.back()] - offsets.back()) / std::max<int64_t>(size, 1);
        starts.push_back(starts.back() + std::min<int64_t>(room, input.number(0, 30)));
    }
    core::Plan plan;
    for (int64_t end = 0, left = input.number(1, 5); left > 0; --left) plan.ends.push_back(end += input.number(0, 9));
    const float zero = 0, one = 1;  // a maker that changes nothing
    const std::vector<int32_t> still(size_t(2 * plan.ends.back()));
    const core::WalkMaker<uint8_t, uint8_t> maker({1, false, false, 0, &zero, &one, 1, size}, 1, size, still, still);
    core::Rows rows{{&maps, starts.data(), places.data(), offsets.data(), num_files, size}, {}, {}, {}};
    const int64_t cut = input.number(0, size);  // records are one part, or two that are made beside one another
    rows.parts.push_back({0, size, 0, size > 0 && input.flag() ? &maker : nullptr});
    if (input.flag()) rows.parts.push_back({cut, size - cut, 1, nullptr});
    const bool has_all_rows = input.flag();
    std::vector<int64_t> number_of(size_t(plan.ends.back()), -1);
    for (int64_t row = 0; row < plan.ends.back() && starts.back() > 0; ++row) {
        if (!has_all_rows && input.flag()) continue;
        number_of[size_t(row)] = input.number(0, starts.back() - 1);
        rows.numbers.push_back(number_of[size_t(row)]);
        if (!has_all_rows) rows.rows.push_back(row);
    }
    plan.rows.push_back(rows);
    const auto num_steps = int64_t(plan.ends.size()), first = input.number(0, num_steps - 1);
    const int64_t count = input.number(1, num_steps - first), begin = plan.begin(first);
    Block<uint8_t> out{size_t((plan.ends[size_t(first + count - 1)] - begin) * size)};
    std::fill_n(out.data(), out.size(), UNTOUCHED);
    Block<uint8_t> ends{size_t((plan.ends[size_t(first + count - 1)] - begin) * (size - cut))};
    std::fill_n(ends.data(), ends.size(), UNTOUCHED);
    const int64_t broken = input.number(0, 255) < 32 ? input.number(1, NUM_FILES - 1) : -1;
    if (broken >= 0) files.cut(broken, 10);
    {
        core::Queue queue;
        core::Copies copies(plan, first, count, 1 + most, {{out.data(), out.size()}, {ends.data(), ends.size()}});
        queue.submit(copies);
        for (int64_t step = 0; step < count; ++step) {
            core::Work::State state = core::Work::NOT_DONE;
            while (state == core::Work::NOT_DONE) state = queue.wait(copies, step, std::chrono::milliseconds(20));
            bool is_broken = false;
            for (int64_t row = plan.begin(first + step); row < plan.ends[size_t(first + step)]; ++row) {
                const int64_t number = number_of[size_t(row)];
                int64_t file = num_files - 1;
                while (file > 0 && (number < 0 || number < starts[size_t(file)])) --file;
                is_broken = is_broken || (number >= 0 && size > 0 && places[size_t(file)] == broken);
                for (int64_t k = 0; k < size && state == core::Work::DONE; ++k) {
                    const int64_t offset = offsets[size_t(file)] + (number - starts[size_t(file)]) * size + k;
                    const uint8_t expected = number < 0 ? UNTOUCHED : content(places[size_t(file)], offset);
                    ensure(out[(row - begin) * size + k] == expected, "a row has its record, and no other is written to");
                    const bool is_end = rows.parts.size() > 1 && k >= cut;
                    ensure(!is_end || ends[(row - begin) * (size - cut) + k - cut] == expected, "a row has the end of its record");
                }
            }
            ensure((state == core::Work::FAILED) == is_broken, "steps fail that read the file that was cut, and no others");
        }
        queue.withdraw(copies);
    }
    if (broken >= 0) files.write(broken);
}

void permutations(Input input) {
    const int64_t length = input.number(1, 5000), num_rounds = 2 * input.number(0, 4);
    Block<uint32_t> keys{size_t(2 * num_rounds)};
    for (int64_t i = 0; i < keys.size(); ++i) keys[i] = uint32_t(input.word());
    uint32_t low = 1;
    while (int64_t(low) * low < length) ++low;
    const auto high = uint32_t((length + low - 1) / low);
    Block<int64_t> positions{size_t(length)}, out{size_t(length)};
    for (int64_t i = 0; i < length; ++i) positions[i] = i;
    core::permute(positions.data(), length, {length, high, low, keys.data(), num_rounds}, out.data());
    std::vector<bool> is_reached(static_cast<size_t>(length));
    for (int64_t i = 0; i < length; ++i) {
        ensure(out[i] >= 0 && out[i] < length, "a record lies in the source");
        is_reached[size_t(out[i])] = true;
    }
    ensure(std::count(is_reached.begin(), is_reached.end(), true) == length, "each record is reached once");
}

}  // namespace fuzz
