// TFRecord: frames, their checksums, and the values of Examples, in any bytes; the checksum of ZIP and gzip, too.
#include <string>

#include "../../../gpuload/core/cpp/crc32.hpp"
#include "../../../gpuload/core/cpp/crc32c.hpp"
#include "../../../gpuload/core/cpp/tfrecord.hpp"
#include "target.hpp"

namespace fuzz {
namespace {

constexpr uint32_t CASTAGNOLI = 0x82F63B78, ZIP = 0xEDB88320;  // RFC 3720, appendix B.4; RFC 1952, section 8

uint32_t bit_by_bit(const Block<uint8_t>& data, uint32_t polynomial) {
    uint32_t sum = ~0u;
    for (int64_t i = 0; i < data.size(); ++i) {
        sum ^= data[i];
        for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ (sum & 1 ? polynomial : 0);
    }
    return ~sum;
}

void write(Block<uint8_t>& data, int64_t place, uint32_t value) {
    for (int i = 0; i < 4; ++i) data[place + i] = uint8_t(value >> (8 * i));
}

// Writes right checksums as far as there are frames, so that what is behind a checksum is reached, too.
void seal(Block<uint8_t>& data) {
    for (int64_t place = 0; place + 16 <= data.size();) {
        uint64_t length;
        std::memcpy(&length, data.data() + place, 8);
        write(data, place + 8, core::masked(core::crc32c(data.data() + place, 8)));
        if (length > uint64_t(data.size() - place - 16)) return;
        const int64_t end = place + 12 + int64_t(length);
        write(data, end, core::masked(core::crc32c(data.data() + place + 12, size_t(length))));
        place = end + 4;
    }
}

void check_spans(const Block<int64_t>& spans, int64_t begin, int64_t end) {
    for (int64_t i = 0; i < spans.size(); i += 2) {
        if (spans[i] == core::MISSING) continue;
        ensure(begin <= spans[i] && spans[i] <= spans[i + 1] && spans[i + 1] <= end, "a span lies in its bytes");
    }
}

// Counts the values of features as each kind, and writes them with just the room that they need, and with less.
void check_values(core::Bytes raw, core::Spans features, bool are_entries, int64_t less) {
    for (int64_t kind = core::BYTES_LIST; kind <= core::INT64_LIST; ++kind) {
        Block<int64_t> counts(size_t(features.num_rows));
        if (core::count_values(raw, features, are_entries, core::List(kind), counts.data()) != core::DONE) continue;
        int64_t total = 0;
        for (int64_t row = 0; row < counts.size(); ++row) total += counts[row] > 0 ? counts[row] : 0;
        ensure(total <= raw.size * features.num_rows, "each value has a byte");
        for (const int64_t room : {total, total > less ? total - less : 0}) {
            const bool is_bytes = kind == core::BYTES_LIST;
            Block<uint8_t> values(size_t(room * (kind == core::FLOAT_LIST ? 4 : 8)));
            Block<int64_t> ends(size_t(is_bytes ? room : 0));
            int64_t* const to_ends = is_bytes ? ends.data() : nullptr;
            core::fill_values(raw, features, are_entries, counts.data(), {core::List(kind), values.data(), to_ends, room});
            if (!is_bytes || room < total) continue;
            for (int64_t i = 0; i < room; ++i) {
                int64_t begin;
                std::memcpy(&begin, values.data() + 8 * i, 8);
                ensure(0 <= begin && begin <= ends[i] && ends[i] <= raw.size, "a value lies in its bytes");
            }
        }
    }
}

}  // namespace

void checksums(Input input) {
    const int64_t part = input.hostile(64);
    const Block<uint8_t> data = input.rest();
    const uint32_t sum = core::crc32c(data.data(), size_t(data.size()));
    ensure(sum == bit_by_bit(data, CASTAGNOLI), "a checksum is what the specification says");
    ensure(sum == core::crc32c_by_tables(data.data(), size_t(data.size())), "a checksum is that by tables");
    const auto split = data.size() > 0 ? size_t(uint64_t(part) % uint64_t(data.size())) : 0;
    const uint32_t first = core::crc32c(data.data(), split);
    ensure(sum == core::crc32c(data.data() + split, size_t(data.size()) - split, first), "a checksum goes on");
    for (const auto crc32 : {core::crc32, core::crc32_by_128_bits}) {
        const auto before = crc32(data.data(), split, 0);
        if (!before) continue;  // a processor without carry-less multiplication
        const uint32_t zip_sum = bit_by_bit(data, ZIP);
        ensure(*crc32(data.data(), size_t(data.size()), 0) == zip_sum, "a CRC-32 is what the specification says");
        ensure(*crc32(data.data() + split, size_t(data.size()) - split, *before) == zip_sum, "a CRC-32 goes on");
    }
}

void frames(Input input) {
    const bool is_sealed = input.flag(), verify = input.flag();
    const int64_t room = input.number(0, 40), behind = input.hostile(100);
    Block<uint8_t> piece = input.rest();
    if (is_sealed) seal(piece);
    const int64_t left = behind > INT64_MAX - piece.size() ? behind : piece.size() + behind;
    Block<int64_t> lengths(static_cast<size_t>(room));
    const auto [count, next] = core::frames({piece.data(), piece.size()}, left, verify, lengths.data(), room);
    ensure(0 <= count && count <= room, "there are as many frames as there is room");
    std::vector<int64_t> begins, ends;
    int64_t place = 0;
    for (int64_t i = 0; i < count; ++i) {
        ensure(lengths[i] >= 0 && lengths[i] <= left - place - 16, "a record lies in the file");
        if (lengths[i] <= piece.size() - place - 16) {
            begins.push_back(place + 12);
            ends.push_back(place + 12 + lengths[i]);
        }
        place += lengths[i] + 16;
    }
    ensure(place == next, "the next frame begins where the last one ends");
    const auto num_rows = int64_t(begins.size());
    const auto [row, damage] = core::verify({piece.data(), piece.size()}, begins.data(), ends.data(), num_rows);
    ensure(damage != core::OTHER_LENGTH, "a frame has the length that was read");
    ensure(!verify || damage != core::BAD_LENGTH, "a length has the checksum that was read");
    ensure(!is_sealed || damage == core::GOOD, "right checksums are right");
    ensure(damage == core::GOOD ? row == 0 : row < num_rows, "a damaged row is one of the rows");
}

void examples(Input input) {
    const int64_t num_rows = input.number(0, 3), num_keys = input.number(0, 4), less = input.number(1, 9);
    std::vector<int64_t> key_begins = {0}, sections;
    std::string text;
    constexpr const char* KEYS[] = {"i", "f", "b", "", "image/encoded", "label"};
    for (int64_t key = 0; key < num_keys; ++key) {
        text += KEYS[input.number(0, 5)];
        key_begins.push_back(int64_t(text.size()));
        sections.push_back(input.number(1, 2));
    }
    std::vector<uint64_t> words;
    for (int64_t row = 0; row <= num_rows; ++row) words.push_back(input.word());
    const Block<uint8_t> data = input.rest(), keys(reinterpret_cast<const uint8_t*>(text.data()), text.size());
    const core::Bytes raw{data.data(), data.size()};
    std::vector<int64_t> begins, ends;
    for (int64_t row = 0; row < num_rows; ++row) {  // an input without numbers has rows of all of its bytes
        const int64_t begin = int64_t(words[size_t(row)] % uint64_t(data.size() + 1));
        begins.push_back(begin);
        ends.push_back(data.size() - int64_t(words[size_t(row) + 1] / 7 % uint64_t(data.size() - begin + 1)));
    }
    Block<int64_t> spans(size_t(2 * num_keys * num_rows));
    const core::Keys all{keys.data(), key_begins.data(), sections.data(), num_keys};
    const int64_t bad = core::find_entries(raw, begins.data(), ends.data(), num_rows, all, spans.data());
    ensure(core::DONE <= bad && bad < num_rows, "a bad row is one of the rows");
    check_spans(spans, 0, data.size());
    for (int64_t key = 0; key < num_keys; ++key) {
        const core::Spans entries{spans.data() + 2 * num_rows * key, num_rows};
        check_values(raw, entries, true, less);
        Block<int64_t> counts(static_cast<size_t>(num_rows));
        if (core::count_steps(raw, entries, counts.data()) != core::DONE) continue;
        int64_t total = 0;
        for (int64_t row = 0; row < num_rows; ++row) total += counts[row] > 0 ? counts[row] : 0;
        for (const int64_t room : {total, total > less ? total - less : 0}) {
            Block<int64_t> steps(size_t(2 * room));
            core::fill_steps(raw, entries, steps.data(), room);
            check_spans(steps, 0, data.size());
            check_values(raw, {steps.data(), room}, false, less);
        }
    }
}

}  // namespace fuzz
