// The image codec: see codec.hpp. `images/decode.py` has the reason of each rule here.
#include "codec.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace core {
namespace {

using namespace nvimgcodec;

constexpr int FILL = 128;               // of each channel of a block that libjpeg makes up
constexpr int64_t UNIT_ROWS = 16;       // of a JPEG with half the rows of colours
constexpr size_t KEPT_BYTES = 1 << 26;  // of memory that a decoder keeps for the next call
// In the place of the end of a file: the bytes that libjpeg reads in advance, and no end marker.
constexpr uint8_t STRICT_END[] = {0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};

// Owns a handle of the library for one image.
template <class Handle>
class Owner {
  public:
    explicit Owner(int (*destroy)(Handle)) : destroy_(destroy) {}
    Owner(const Owner&) = delete;
    ~Owner() {
        if (handle != nullptr) destroy_(handle);
    }
    Handle handle = nullptr;

  private:
    int (*destroy_)(Handle);
};

template <class Function>
void find(void* library, const char* name, Function& function) {
    function =
        reinterpret_cast<Function>(dlsym(library, (std::string("nvimgcodec") + name).c_str()));
    if (function == nullptr)
        throw std::runtime_error(std::string("it has no function nvimgcodec") + name);
}

bool is_mirrored(int64_t orientation) {
    return orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7;
}
bool is_upside_down(int64_t orientation) {
    return orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8;
}

// Whether a region of the upright image has pixels of the last row of units that are stored.
bool reaches_the_end(const JpegHead& head, const Box& box) {
    int64_t rows = head.height, behind = head.height - box.top - box.height;
    if (head.orientation == 3 || head.orientation == 4) behind = box.top;
    if (head.orientation > 4) {
        rows = head.width;
        behind = head.orientation == 5 || head.orientation == 8 ? head.width - box.left - box.width
                                                                : box.left;
    }
    return behind <= (rows - 1) % UNIT_ROWS;
}

// Whether the last pixel that is stored has the gray of missing blocks, give or take the rounding
// of a conversion.
bool ends_in_gray(const uint8_t* pixels, const JpegHead& head, const Box& box) {
    const int64_t row = is_upside_down(head.orientation) ? 0 : box.height - 1;
    const int64_t column = is_mirrored(head.orientation) ? 0 : box.width - 1;
    const uint8_t* pixel = pixels + 3 * (row * box.width + column);
    for (int channel = 0; channel < 3; ++channel)
        if (std::abs(int(pixel[channel]) - FILL) > 1) return false;
    return true;
}

size_t num_bytes(const Box& box) { return size_t(3 * box.height * box.width); }

uint8_t* reserve(std::vector<uint8_t>& memory, size_t size) {
    if (memory.size() < size) {
        std::vector<uint8_t>().swap(memory);  // its content is not copied
        memory.resize(size);
    }
    return memory.data();
}

}  // namespace

Decoder::Decoder(const Functions& functions, Instance instance)
    : functions_(functions), instance_(instance) {
    auto backend = make<Backend>();
    backend.kind = CPU_ONLY_BACKEND;
    backend.params = make<BackendParams>();
    backend.params.load_hint = 1;
    auto params = make<ExecutionParams>();
    params.max_num_cpu_threads = 1;  // the calling thread alone: none of its own
    params.device = CPU_ONLY_DEVICE;
    params.num_backends = 1;
    params.backends = &backend;
    if (functions_.DecoderCreate(instance_, &decoder_, &params, "") != SUCCESS)
        throw std::runtime_error("it makes no decoder");
}

const uint8_t* Decoder::decode(const uint8_t* data, int64_t size, const JpegHead& head,
                               const Box& region, bool is_whole) {
    if (head.channels != 1 && head.channels != 3) return nullptr;
    if (head.scan_end == 0)
        return decode_into(pixels_, data, size, head, region, is_whole) ? pixels_.data() : nullptr;
    const bool to_the_end = reaches_the_end(head, region);
    const auto decode_endless = [&](std::vector<uint8_t>& pixels) {
        const size_t length = size_t(head.scan_end);
        uint8_t* file = reserve(endless_, length + sizeof STRICT_END);
        std::memcpy(file, data, length);
        std::memcpy(file + length, STRICT_END, sizeof STRICT_END);
        return decode_into(pixels, file, int64_t(length + sizeof STRICT_END), head, region,
                           is_whole);
    };
    if (!to_the_end) return decode_endless(pixels_) ? pixels_.data() : nullptr;
    if (!decode_into(pixels_, data, size, head, region, is_whole)) return nullptr;
    if (!ends_in_gray(pixels_.data(), head, region)) return pixels_.data();
    const bool is_same = decode_endless(again_) &&
                         std::memcmp(again_.data(), pixels_.data(), num_bytes(region)) == 0;
    return is_same ? pixels_.data() : nullptr;
}

void Decoder::shrink() noexcept {
    for (std::vector<uint8_t>* memory : {&pixels_, &again_, &endless_})
        if (memory->size() > KEPT_BYTES) std::vector<uint8_t>().swap(*memory);
}

bool Decoder::decode_into(std::vector<uint8_t>& pixels, const uint8_t* data, int64_t size,
                          const JpegHead& head, const Box& region, bool is_whole) {
    Owner<Stream> file(functions_.CodeStreamDestroy), part(functions_.CodeStreamDestroy);
    Owner<Image> image(functions_.ImageDestroy);
    Owner<Future> future(functions_.FutureDestroy);
    if (functions_.CodeStreamCreateFromHostMem(instance_, &file.handle, data, size_t(size),
                                               nullptr) != SUCCESS)
        return false;
    auto info = make<ImageInfo>();
    if (functions_.CodeStreamGetImageInfo(file.handle, &info) != SUCCESS ||
        !fits(info, head, region))
        return false;
    if (!is_whole) {
        auto view = make<View>();
        view.region = make<Region>();
        view.region.num_axes = 2;
        view.region.begin[0] = int(region.top);
        view.region.begin[1] = int(region.left);
        view.region.end[0] = int(region.top + region.height);
        view.region.end[1] = int(region.left + region.width);
        if (functions_.CodeStreamGetSubCodeStream(file.handle, &part.handle, &view) != SUCCESS)
            return false;
    }
    info.buffer = reserve(pixels, num_bytes(region));
    auto params = make<DecodeParams>();
    params.apply_exif_orientation = 1;
    const Stream stream = is_whole ? file.handle : part.handle;
    uint32_t status = 0;
    size_t count = 1;
    return functions_.ImageCreate(instance_, &image.handle, &info) == SUCCESS &&
           functions_.DecoderDecode(decoder_, &stream, &image.handle, 1, &params, &future.handle) ==
               SUCCESS &&
           functions_.FutureWaitForAll(future.handle) == SUCCESS &&
           functions_.FutureGetProcessingStatus(future.handle, &status, &count) == SUCCESS &&
           status == DECODED;
}

// Turns the library's description of a file into that of the result. Returns false if the library
// sees another image than `read_jpeg_head`: it would write to other places.
bool Decoder::fits(ImageInfo& info, const JpegHead& head, const Box& region) const {
    Plane& plane = info.planes[0];
    const bool is_turned = info.orientation.rotated % 180 != 0;
    const int64_t height = is_turned ? plane.width : plane.height,
                  width = is_turned ? plane.height : plane.width;
    if (is_turned != (head.orientation > 4) || height != head.height || width != head.width)
        return false;
    info.color_spec = SRGB;
    info.chroma_subsampling = NO_SUBSAMPLING;
    info.sample_format = INTERLEAVED_RGB;
    info.num_planes = 1;
    plane.height = uint32_t(region.height);
    plane.width = uint32_t(region.width);
    plane.num_channels = 3;
    plane.row_stride = size_t(3 * region.width);
    plane.sample_type = UINT8;
    plane.precision = 0;
    info.buffer_kind = HOST_MEMORY;
    info.cuda_stream = nullptr;
    return true;
}

Codec::Codec(const std::string& library, const std::string& extensions) {
    void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle == nullptr) throw std::runtime_error(dlerror());
    find(handle, "GetProperties", functions_.GetProperties);
    auto properties = make<Properties>();
    if (functions_.GetProperties(&properties) != SUCCESS)
        throw std::runtime_error("it does not say its version");
    version_ = properties.version;
    if (version_ < OLDEST || version_ > NEWEST)
        throw std::runtime_error("the core knows version 0.9, it is " + version());
    find(handle, "InstanceCreate", functions_.InstanceCreate);
    find(handle, "CodeStreamCreateFromHostMem", functions_.CodeStreamCreateFromHostMem);
    find(handle, "CodeStreamGetSubCodeStream", functions_.CodeStreamGetSubCodeStream);
    find(handle, "CodeStreamGetImageInfo", functions_.CodeStreamGetImageInfo);
    find(handle, "CodeStreamDestroy", functions_.CodeStreamDestroy);
    find(handle, "ImageCreate", functions_.ImageCreate);
    find(handle, "ImageDestroy", functions_.ImageDestroy);
    find(handle, "DecoderCreate", functions_.DecoderCreate);
    find(handle, "DecoderDecode", functions_.DecoderDecode);
    find(handle, "FutureWaitForAll", functions_.FutureWaitForAll);
    find(handle, "FutureGetProcessingStatus", functions_.FutureGetProcessingStatus);
    find(handle, "FutureDestroy", functions_.FutureDestroy);
    auto info = make<InstanceInfo>();  // without a messenger: it is silent
    info.load_builtin_modules = 1;
    info.load_extension_modules = 1;
    info.extension_path = extensions.c_str();
    if (functions_.InstanceCreate(&instance_, &info) != SUCCESS)
        throw std::runtime_error("it cannot be started");
    give_back(take());  // an error of the first decoder is an error here
}

std::string Codec::version() const {
    return std::to_string(version_ / 1000) + "." + std::to_string(version_ % 1000 / 100) + "." +
           std::to_string(version_ % 100);
}

std::unique_ptr<Decoder> Codec::take() {
    {
        const std::lock_guard guard(lock_);
        if (!free_.empty()) {
            auto decoder = std::move(free_.back());
            free_.pop_back();
            return decoder;
        }
        free_.reserve(++num_decoders_);  // so that `give_back` needs no memory
    }
    return std::make_unique<Decoder>(functions_, instance_);
}

void Codec::give_back(std::unique_ptr<Decoder> decoder) noexcept {
    decoder->shrink();
    const std::lock_guard guard(lock_);
    free_.push_back(std::move(decoder));
}

}  // namespace core
