// Scans of a JPEG: see scans.hpp.
//
// Assumes: `size` bytes can be read from `data` on. Nothing is assumed of places, segments and
// bytes: each place is compared with the size before it is read.
#include "scans.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace core {
namespace {

constexpr int64_t NUM_ZEROS = 256;  // in a row that no data have
constexpr unsigned EOI = 0xD9, SOS = 0xDA, DHT = 0xC4, DRI = 0xDD;

bool is_sequential(unsigned kind) { return kind == 0xC0 || kind == 0xC1 || kind == 0xC9; }
bool is_huffman(unsigned kind) { return kind == 0xC0 || kind == 0xC1; }
bool is_restart(unsigned marker) { return (marker & 0xF8) == 0xD0; }
bool is_segment(unsigned marker) {  // that may stand behind a scan
    return marker == DHT || marker == 0xCC || (marker >= 0xDB && marker <= DRI) ||
           (marker & 0xF0) == 0xE0 || marker == 0xFE;
}

struct Channel {
    unsigned id, across, down;  // how many samples it has across and down, of the most
};

struct Data {  // of a scan
    int64_t end, num_restarts, last_restart;
    bool is_in_turn;  // the numbers of the restart markers
};

class File {
  public:
    File(const uint8_t* data, int64_t size, int64_t max_scans)
        : data_(data), size_(size), max_scans_(max_scans) {}

    Scans read(int64_t frame, int64_t place, const std::vector<Segment>& segments) {
        const Scans damaged{-1, 0};
        for (const Segment& segment : segments)
            if (!read_segment(unsigned(segment.marker), segment.place)) return damaged;
        if (!read_frame(frame)) return damaged;
        const bool has_single_scan =
            is_sequential(kind_) && has(place, 3) && data_[place + 2] == channels_.size();
        for (const Channel& channel : channels_) missing_.push_back(channel.id);
        Scans scans{0, 0};
        const int64_t most = has_single_scan ? 1 : max_scans_;
        for (unsigned marker = SOS; marker != EOI && scans.number < most; ++scans.number) {
            if (!read_scan(place, scans.end, marker)) return damaged;
            if (has_single_scan && marker != EOI) return damaged;
        }
        if (!missing_.empty() && scans.number < max_scans_) return damaged;
        if (!has_single_scan || !is_huffman(kind_)) scans.end = 0;
        return scans;
    }

  private:
    bool has(int64_t place, int64_t count) const {
        return place >= 0 && place <= size_ && count <= size_ - place;
    }
    int64_t big_16(int64_t place) const { return int64_t(data_[place]) << 8 | data_[place + 1]; }

    // Reads the scan with its header at `place`. Writes where its data end, and which marker
    // follows it, SOS or EOI; then `place` is behind that. Returns false if it is damaged.
    bool read_scan(int64_t& place, int64_t& end, unsigned& marker) {
        int64_t begin = 0, num_restarts = 0;
        if (!read_header(place, begin)) return false;
        const Data data = read_data(begin);
        if (data.end < 0 || (interval_ > 0 && !count_restarts(num_restarts))) return false;
        if (is_huffman(kind_) && has_zero_codes() && lost_bytes(begin, data.end)) return false;
        if (is_sequential(kind_) || data_[begin - 3] == 0)  // the scan has the means of the blocks
            for (const Channel& channel : scan_channels_)
                missing_.erase(std::remove(missing_.begin(), missing_.end(), channel.id),
                               missing_.end());
        end = data.end;
        if (!next_header(data.end, marker, place)) return false;
        return (num_restarts <= 0 && data.num_restarts == 0) ||
               restarts_are_right(data, num_restarts);
    }

    // Returns true if zero bits are values other than 0 in this scan: then no data have a long run
    // of them.
    bool has_zero_codes() const {
        return std::any_of(tables_.begin(), tables_.end(),
                           [this](unsigned table) { return first_values_[table] & 15; });
    }

    // Reads a segment that sets something for the scans behind it. Returns false if it does not lie
    // in the file.
    bool read_segment(unsigned marker, int64_t place) {
        if (!has(place, 2) || !has(place, big_16(place))) return false;
        const int64_t end = place + big_16(place);
        if (marker == DRI && end == place + 4) interval_ = big_16(place + 2);
        if (marker != DHT) return true;
        for (place += 2; place + 17 < end;) {
            const unsigned table = data_[place];
            if (table >= 16) first_values_[table - 16] = data_[place + 17];
            int64_t num_codes = 0;
            for (int i = 1; i <= 16; ++i) num_codes += data_[place + i];
            place += 17 + num_codes;
        }
        return true;
    }

    bool read_frame(int64_t frame) {
        if (frame < 1 || !has(frame, 8) || data_[frame + 7] < 1 || data_[frame + 7] > 4 ||
            !has(frame, 8 + 3 * data_[frame + 7]))
            return false;
        kind_ = data_[frame - 1];
        height_ = big_16(frame + 3);
        width_ = big_16(frame + 5);
        for (int i = 0; i < data_[frame + 7]; ++i) {
            const uint8_t* at = data_ + frame + 8 + 3 * i;
            const Channel channel{at[0], unsigned(at[1] >> 4), unsigned(at[1] & 15)};
            Channel* before = find(channel.id);
            if (before != nullptr)
                *before = channel;
            else
                channels_.push_back(channel);
        }
        return true;
    }

    Channel* find(unsigned id) {
        for (Channel& channel : channels_)
            if (channel.id == id) return &channel;
        return nullptr;
    }

    // Reads the header of a scan: which channels it has, with which tables, and where its data
    // begin.
    bool read_header(int64_t place, int64_t& begin) {
        if (!has(place, 3)) return false;
        const int64_t length = big_16(place), count = data_[place + 2];
        if (count < 1 || count > 4 || length != 6 + 2 * count || !has(place, length + 1))
            return false;
        begin = place + length;
        scan_channels_.clear();
        tables_.clear();
        for (int64_t at = place + 3; at < place + 3 + 2 * count; at += 2) {
            const Channel* channel = find(data_[at]);
            if (channel == nullptr) return false;
            for (const Channel& other : scan_channels_)
                if (other.id == channel->id) return false;
            scan_channels_.push_back(*channel);
            tables_.push_back(data_[at + 1] & 15);
        }
        return true;
    }

    // Finds where the data of a scan end: at the first marker that is no restart marker; -1 if
    // there is none.
    Data read_data(int64_t begin) const {
        Data data{-1, 0, 0, true};
        for (int64_t place = begin; place < size_ - 1; ++place) {
            const void* next = std::memchr(data_ + place, 0xFF, size_t(size_ - 1 - place));
            if (next == nullptr) break;
            place = static_cast<const uint8_t*>(next) - data_;
            const unsigned marker = data_[place + 1];
            if (marker == 0 || marker == 0xFF) continue;  // a value; fill bytes before a marker
            if (!is_restart(marker)) {
                data.end = place;
                break;
            }
            data.is_in_turn = data.is_in_turn && int64_t(marker & 7) == data.num_restarts % 8;
            ++data.num_restarts;
            data.last_restart = place;
        }
        return data;
    }

    // Counts the restart markers that the data of a scan must have (T.81, A.2).
    bool count_restarts(int64_t& expected) const {
        unsigned most_across = 0, most_down = 0;
        for (const Channel& channel : channels_) {
            if (channel.across < 1 || channel.across > 4 || channel.down < 1 || channel.down > 4)
                return false;
            most_across = std::max(most_across, channel.across);
            most_down = std::max(most_down, channel.down);
        }
        const bool is_single = scan_channels_.size() == 1;
        const int64_t across = is_single ? scan_channels_[0].across : 1,
                      down = is_single ? scan_channels_[0].down : 1;
        const int64_t units = divided_up(width_ * across, 8 * most_across) *
                              divided_up(height_ * down, 8 * most_down);
        expected = divided_up(units, interval_) - 1;
        return true;
    }

    static int64_t divided_up(int64_t number, int64_t divisor) {
        return (number + divisor - 1) / divisor;
    }

    static bool restarts_are_right(const Data& data, int64_t expected) {
        if (data.num_restarts == expected + 1 && data.last_restart + 2 == data.end) ++expected;
        return data.num_restarts == expected && data.is_in_turn;
    }

    // Returns true if a long run of zeros stands in front of other data.
    bool lost_bytes(int64_t begin, int64_t end) const {
        while (end - begin >= NUM_ZEROS) {
            const int64_t last = begin + NUM_ZEROS - 1;
            if (data_[last] != 0) {
                begin = last + 1;
                continue;
            }
            int64_t first = last, after = last + 1;
            while (first > begin && data_[first - 1] == 0) --first;
            while (after < end && data_[after] == 0) ++after;
            if (after - first >= NUM_ZEROS) return after < end;
            begin = after;
        }
        return false;
    }

    // Reads the segments behind the data of a scan, up to the next header or the end of the image.
    bool next_header(int64_t end, unsigned& marker, int64_t& place) {
        for (;;) {
            if (!has(end, 2) || data_[end] != 0xFF) return false;
            for (place = end; place < size_ && data_[place] == 0xFF;) ++place;
            if (place == size_) return false;
            marker = data_[place++];
            if (marker == SOS || marker == EOI) return true;
            if (!is_segment(marker) || !has(place, 2) || big_16(place) < 2 ||
                !read_segment(marker, place))
                return false;
            end = place + big_16(place);
        }
    }

    const uint8_t* data_;
    int64_t size_, max_scans_;
    unsigned kind_ = 0;
    int64_t height_ = 0, width_ = 0;
    std::vector<Channel> channels_, scan_channels_;
    std::vector<unsigned> missing_;  // channels without a scan
    std::vector<unsigned> tables_;   // of the AC codes of the channels of a scan
    int64_t interval_ = 0;           // of restart markers, in units; 0 for none
    // Of each AC table the value with the code of zeros alone.
    std::array<uint8_t, 240> first_values_{};
};

}  // namespace

Scans read_scans(const uint8_t* data, int64_t size, int64_t frame, int64_t place,
                 const std::vector<Segment>& segments, int64_t max_scans) {
    return File(data, size, max_scans).read(frame, place, segments);
}

}  // namespace core
