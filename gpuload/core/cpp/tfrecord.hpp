// TFRecord: the frames of records, and where values lie in serialized tf.train.Examples. The
// messages are those of example.proto; the numbers of fields:
//
//     Example          features = 1       SequenceExample  context = 1, feature_lists = 2
//     Features         feature = 1        FeatureLists     feature_list = 1
//                                         maps: entries of key = 1, value = 2
//     FeatureList      feature = 1        Feature          bytes_list = 1, float_list = 2,
//                                         int64_list = 3: one of them
//     BytesList, FloatList, Int64List     value = 1
//
// Errors: a function returns the number of the row that it cannot read. `formats/tfrecord/wire.py`
// reads that row again and says why.
// Source: https://protobuf.dev/programming-guides/encoding: varints, tags, packed fields, the last
// value of a field wins, messages that occur twice are merged; groups, and unknown fields, are
// skipped.
#pragma once

#include <cstdint>
#include <utility>

#include "reader.hpp"

namespace core {

constexpr int64_t MISSING = -1;  // a feature that is not there
constexpr int64_t DONE = -1;     // in place of a row: all were read

enum List : int64_t { NO_LIST, BYTES_LIST, FLOAT_LIST, INT64_LIST };
enum Damage : int64_t { GOOD, OTHER_LENGTH, BAD_LENGTH, BAD_PAYLOAD };

struct Spans {              // begin and end of some bytes of each row; MISSING where there are none
    const int64_t* places;  // [num_rows, 2]
    int64_t num_rows;
};

struct Bytes {
    const uint8_t* data;
    int64_t size;
};

// Finds records that begin in a piece of a file, at its first byte; `left` is how many bytes the
// file has from there on. Writes the lengths of their payloads, at most `room`. Returns how many
// there are, and where the next record begins, or bytes begin that are no record. Without `verify`
// the checksums of lengths are not compared.
std::pair<int64_t, int64_t> frames(Bytes piece, int64_t left, bool verify, int64_t* lengths,
                                   int64_t room);

// Compares records with their frames: each payload lies from begins[i] to ends[i]. Returns the
// first that is damaged.
std::pair<int64_t, int64_t> verify(Bytes raw, const int64_t* begins, const int64_t* ends,
                                   int64_t num_rows);

struct Keys {
    const uint8_t* text;      // all keys, one after the other
    const int64_t* begins;    // where each begins and the last ends, [count + 1]
    const int64_t* sections;  // 1 for a key of features or of a context, 2 for one of feature lists
    int64_t count;
};

// Finds the map entries of some keys in the messages of all rows; of a key that occurs twice the
// last one. Writes `spans`, [num_keys, num_rows, 2]. Returns DONE, or the row that cannot be read.
int64_t find_entries(Bytes raw, const int64_t* begins, const int64_t* ends, int64_t num_rows,
                     const Keys& keys, int64_t* spans);

// Counts the features of the feature list of each entry; MISSING where there is no entry. Returns
// as above.
int64_t count_steps(Bytes raw, Spans entries, int64_t* counts);

// Writes begin and end of each feature of lists that were counted, one list after the other, at
// most `room` of them.
void fill_steps(Bytes raw, Spans entries, int64_t* steps, int64_t room);

// Counts the values of each feature, or of the entry that holds it; MISSING for a feature that is
// not there or holds no list. Returns DONE, or the row of a feature that cannot be read, or holds
// another kind of values.
int64_t count_values(Bytes raw, Spans features, bool are_entries, List kind, int64_t* counts);

// Memory for values of a kind: int64, float, or for bytes where each begins and where it ends.
struct ValueRoom {
    List kind;
    void* values;
    int64_t* ends;
    int64_t size;
};

// Writes the values of features that were counted, one feature after the other, as far as there is
// room.
void fill_values(Bytes raw, Spans features, bool are_entries, const int64_t* counts,
                 const ValueRoom& room);

}  // namespace core
