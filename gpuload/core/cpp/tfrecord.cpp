// TFRecord: see tfrecord.hpp.
//
// Assumes: spans of rows lie inside `raw`, and arrays have the sizes that are said; the Python face
// checked both. Nothing is assumed of the bytes: all of them are read by `Reader`.
#include "tfrecord.hpp"

#include <algorithm>
#include <array>

#include "crc32c.hpp"

namespace core {
namespace {

constexpr int64_t HEADER_BYTES = 12, FRAME_BYTES = 16;
constexpr int MAX_DEPTH = 100;  // of groups inside groups, as in protobuf

enum Wire { VARINT, FIXED_64, SPAN, GROUP, GROUP_END, FIXED_32 };

struct Field {
    uint64_t number = 0, value = 0;  // the value of a varint
    Wire wire = VARINT;
    Reader bytes;  // of the other wire types

    bool is(uint64_t other) const { return number == other && wire == SPAN; }
};

struct Place {  // of a reader's bytes in `raw`
    int64_t begin, end;
};

Place place_of(Bytes raw, const Reader& reader) {
    const int64_t begin = reader.place() - raw.data;
    return {begin, begin + int64_t(reader.left())};
}

Reader reader_of(Bytes raw, int64_t begin, int64_t end) {
    return Reader(raw.data + begin, size_t(end - begin));
}

// Reads a field, of a group its beginning or its end by itself.
bool read_field(Reader& message, Field& field) {
    uint64_t tag, size;
    if (!message.varint(tag) || tag < 8 || tag > 0xFFFFFFFF || (tag & 7) > FIXED_32) return false;
    field.number = tag >> 3;
    field.wire = Wire(tag & 7);
    switch (field.wire) {
        case VARINT: return message.varint(field.value);
        case SPAN: return message.varint(size) && message.part(size, field.bytes);
        case FIXED_64: return message.part(8, field.bytes);
        case FIXED_32: return message.part(4, field.bytes);
        default: return true;
    }
}

bool skip_group(Reader& message, uint64_t number) {
    std::array<uint64_t, MAX_DEPTH> open;
    int depth = 0;
    open[size_t(depth++)] = number;
    while (depth > 0) {
        Field field;
        if (!read_field(message, field)) return false;
        if (field.wire == GROUP) {
            if (depth == MAX_DEPTH) return false;
            open[size_t(depth++)] = field.number;
        } else if (field.wire == GROUP_END && open[size_t(--depth)] != field.number) {
            return false;
        }
    }
    return true;
}

// Reads a field; a group is skipped, and its wire type is GROUP. Returns false if no field is
// there.
bool next_field(Reader& message, Field& field) {
    if (!read_field(message, field)) return false;
    if (field.wire == GROUP) return skip_group(message, field.number);
    return field.wire != GROUP_END;
}

// The values of a feature, as far as its lists were read. A list of another kind replaces those
// before it, for of the members of a `oneof` the last holds. Values of the wanted kind are written,
// at most `room` of them.
struct Values {
    List wanted;
    uint8_t* to = nullptr;
    int64_t* to_ends = nullptr;
    int64_t room = 0;
    List kind = NO_LIST;
    int64_t count = 0;

    bool has_room() const { return kind == wanted && count < room; }

    void put(int64_t value) {
        if (has_room()) std::memcpy(to + 8 * count, &value, 8);
        ++count;
    }

    bool put_floats(const Reader& bytes) {
        const int64_t num_floats = int64_t(bytes.left() / 4);
        if (bytes.left() % 4) return false;
        if (has_room())
            std::memcpy(to + 4 * count, bytes.place(),
                        size_t(4 * std::min(num_floats, room - count)));
        count += num_floats;
        return true;
    }

    bool put_ints(Reader bytes) {
        for (uint64_t value; bytes.left();) {
            if (!bytes.varint(value)) return false;
            put(int64_t(value));
        }
        return true;
    }
};

bool read_value(Bytes raw, const Field& field, Values& values) {
    switch (values.kind) {
        case BYTES_LIST:
            if (field.wire == SPAN) {
                const Place place = place_of(raw, field.bytes);
                if (values.has_room()) values.to_ends[values.count] = place.end;
                values.put(place.begin);
            }
            return true;
        case FLOAT_LIST:
            return (field.wire != SPAN && field.wire != FIXED_32) || values.put_floats(field.bytes);
        default:
            if (field.wire == VARINT) values.put(int64_t(field.value));
            return field.wire != SPAN || values.put_ints(field.bytes);
    }
}

bool read_lists(Bytes raw, Reader feature, Values& values) {
    for (Field list; feature.left();) {
        if (!next_field(feature, list)) return false;
        if (list.wire != SPAN || list.number < BYTES_LIST || list.number > INT64_LIST) continue;
        if (values.kind != List(list.number)) {
            values.kind = List(list.number);
            values.count = 0;
        }
        for (Field field; list.bytes.left();) {
            if (!next_field(list.bytes, field)) return false;
            if (field.number == 1 && !read_value(raw, field, values)) return false;
        }
    }
    return true;
}

bool read_values(Bytes raw, Reader feature, bool is_entry, Values& values) {
    if (!is_entry) return read_lists(raw, feature, values);
    for (Field field; feature.left();) {
        if (!next_field(feature, field)) return false;
        if (field.is(2) && !read_lists(raw, field.bytes, values)) return false;
    }
    return true;
}

// Counts the features of an entry's list, and writes where they are if there is room. Returns -1 if
// it cannot be read.
int64_t read_steps(Bytes raw, Reader entry, int64_t* steps, int64_t room) {
    int64_t count = 0;
    for (Field list; entry.left();) {
        if (!next_field(entry, list)) return -1;
        if (!list.is(2)) continue;
        for (Field step; list.bytes.left();) {
            if (!next_field(list.bytes, step)) return -1;
            if (!step.is(1)) continue;
            if (count < room) {
                const Place place = place_of(raw, step.bytes);
                steps[2 * count] = place.begin;
                steps[2 * count + 1] = place.end;
            }
            ++count;
        }
    }
    return count;
}

// Finds a key among those of a section. Most records have their keys in one order: the one at
// `hint` is likely.
int64_t find_key(const Keys& keys, int64_t section, const Reader& key, int64_t hint) {
    for (int64_t step = 0; step < keys.count; ++step) {
        const int64_t number = hint + step < keys.count ? hint + step : hint + step - keys.count;
        const int64_t size = keys.begins[number + 1] - keys.begins[number];
        if (keys.sections[number] == section && size == int64_t(key.left()) &&
            std::equal(key.place(), key.place() + size, keys.text + keys.begins[number]))
            return number;
    }
    return MISSING;
}

// A search for map entries of some keys in the message of one row.
struct Search {
    Bytes raw;
    const Keys& keys;
    int64_t* spans;  // of the row: begin and end of the entry of key k stand at 2 * num_rows * k
    int64_t num_rows;
    int64_t hint = 0;  // the key that probably comes next

    // Reads a map entry, and writes its place if its key is searched for. Returns false if it
    // cannot be read.
    bool read_entry(int64_t section, const Reader& entry) {
        Reader fields = entry, key(entry.place(), 0);
        for (Field field; fields.left();) {
            if (!next_field(fields, field)) return false;
            if (field.is(1)) key = field.bytes;
        }
        const int64_t number = find_key(keys, section, key, hint);
        if (number == MISSING) return true;
        const Place place = place_of(raw, entry);
        int64_t* span = spans + 2 * num_rows * number;
        span[0] = place.begin;
        span[1] = place.end;
        hint = number + 1;
        return true;
    }

    // Reads the sections of a message that may have such entries. Returns false if it cannot be
    // read.
    bool read_message(Reader message, const bool (&has_keys)[3]) {
        for (Field section; message.left();) {
            if (!next_field(message, section)) return false;
            if (section.wire != SPAN || section.number > 2 || !has_keys[section.number]) continue;
            for (Field entry; section.bytes.left();) {
                if (!next_field(section.bytes, entry)) return false;
                if (entry.is(1) && !read_entry(int64_t(section.number), entry.bytes)) return false;
            }
        }
        return true;
    }
};

}  // namespace

std::pair<int64_t, int64_t> frames(Bytes piece, int64_t left, bool verify, int64_t* lengths,
                                   int64_t room) {
    int64_t place = 0, count = 0;
    while (count < room && place <= piece.size - HEADER_BYTES) {
        Reader header(piece.data + place, HEADER_BYTES);
        uint64_t length = 0;
        uint32_t checksum = 0;
        header.little(length);
        header.little(checksum);
        if (verify && masked(crc32c(piece.data + place, 8)) != checksum) break;
        if (left - place < FRAME_BYTES || length > uint64_t(left - place - FRAME_BYTES)) break;
        lengths[count++] = int64_t(length);
        place += int64_t(length) + FRAME_BYTES;
    }
    return {count, place};
}

std::pair<int64_t, int64_t> verify(Bytes raw, const int64_t* begins, const int64_t* ends,
                                   int64_t num_rows) {
    for (int64_t row = 0; row < num_rows; ++row) {
        const int64_t begin = begins[row], size = ends[row] - begin;
        const uint8_t* header = raw.data + begin - HEADER_BYTES;
        Reader front(header, HEADER_BYTES), back(raw.data + ends[row], FRAME_BYTES - HEADER_BYTES);
        uint64_t length = 0;
        uint32_t of_length = 0, of_payload = 0;
        front.little(length);
        front.little(of_length);
        back.little(of_payload);
        if (length != uint64_t(size)) return {row, OTHER_LENGTH};
        if (masked(crc32c(header, 8)) != of_length) return {row, BAD_LENGTH};
        if (masked(crc32c(raw.data + begin, size_t(size))) != of_payload) return {row, BAD_PAYLOAD};
    }
    return {0, GOOD};
}

int64_t find_entries(Bytes raw, const int64_t* begins, const int64_t* ends, int64_t num_rows,
                     const Keys& keys, int64_t* spans) {
    std::fill(spans, spans + 2 * keys.count * num_rows, MISSING);
    // An Example has no feature lists: a field with their number is unknown there, and is skipped.
    bool has_keys[3] = {};
    for (int64_t key = 0; key < keys.count; ++key) has_keys[keys.sections[key]] = true;
    for (int64_t row = 0; row < num_rows; ++row) {
        Search search{raw, keys, spans + 2 * row, num_rows};
        if (!search.read_message(reader_of(raw, begins[row], ends[row]), has_keys)) return row;
    }
    return DONE;
}

int64_t count_steps(Bytes raw, Spans entries, int64_t* counts) {
    for (int64_t row = 0; row < entries.num_rows; ++row) {
        const int64_t *span = entries.places + 2 * row, begin = span[0];
        counts[row] = begin == MISSING
                          ? MISSING
                          : read_steps(raw, reader_of(raw, begin, span[1]), nullptr, 0);
        if (begin != MISSING && counts[row] < 0) return row;
    }
    return DONE;
}

void fill_steps(Bytes raw, Spans entries, int64_t* steps, int64_t room) {
    for (int64_t row = 0, done = 0; row < entries.num_rows && done < room; ++row) {
        const int64_t* span = entries.places + 2 * row;
        if (span[0] == MISSING) continue;
        const int64_t count =
            read_steps(raw, reader_of(raw, span[0], span[1]), steps + 2 * done, room - done);
        done += std::max<int64_t>(count, 0);
    }
}

int64_t count_values(Bytes raw, Spans features, bool are_entries, List kind, int64_t* counts) {
    for (int64_t row = 0; row < features.num_rows; ++row) {
        const int64_t* span = features.places + 2 * row;
        counts[row] = MISSING;
        if (span[0] == MISSING) continue;
        Values values{kind};
        if (!read_values(raw, reader_of(raw, span[0], span[1]), are_entries, values)) return row;
        if (values.kind == NO_LIST) continue;
        if (values.kind != kind) return row;
        counts[row] = values.count;
    }
    return DONE;
}

void fill_values(Bytes raw, Spans features, bool are_entries, const int64_t* counts,
                 const ValueRoom& room) {
    const int64_t item_bytes = room.kind == FLOAT_LIST ? 4 : 8;
    for (int64_t row = 0, done = 0; row < features.num_rows; ++row) {
        const int64_t *span = features.places + 2 * row, count = counts[row];
        if (count <= 0 || span[0] == MISSING) continue;
        if (count > room.size - done) return;
        Values target{room.kind};
        target.to = static_cast<uint8_t*>(room.values) + item_bytes * done;
        if (room.ends != nullptr) target.to_ends = room.ends + done;
        target.room = count;
        read_values(raw, reader_of(raw, span[0], span[1]), are_entries, target);
        done += count;
    }
}

}  // namespace core
