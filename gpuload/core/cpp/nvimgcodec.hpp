// The used part of the C interface of nvImageCodec 0.9, in declarations of our own: nothing of it
// is needed to build the core, and at run time the library is the one of the installed Python
// package (`codec.cpp`).
//
// Each structure begins with its type and size, which the library compares with its own: a
// structure that does not fit is refused by it. `tests/core/test_nvimgcodec.py` compares all of
// them with the header of the installed package.
// Source: nvimgcodec.h of nvImageCodec 0.9.0, https://docs.nvidia.com/cuda/nvimagecodec/
#pragma once

#include <cstddef>
#include <cstdint>

namespace core::nvimgcodec {

// Versions 0.9.x: 1000 * major + 100 * minor + patch.
constexpr uint32_t OLDEST = 900, NEWEST = 999;

enum : int { SUCCESS = 0 };
enum : uint32_t { DECODED = 1 };
enum : int { CPU_ONLY_DEVICE = -99999, CPU_ONLY_BACKEND = 1 };
enum : int { UINT8 = 0x0802, NO_SUBSAMPLING = 0, INTERLEAVED_RGB = 8, SRGB = 1, HOST_MEMORY = 2 };

enum class Type : int {
    properties = 1,
    instance = 2,
    decode_params = 5,
    orientation = 7,
    region = 8,
    view = 9,
    image_info = 11,
    plane = 12,
    backend = 17,
    backend_params = 29,
    execution_params = 30,
};

struct Head {  // of each structure
    Type type;
    size_t size;
    void* next;
};

struct Properties {
    static constexpr Type TYPE = Type::properties;
    Head head;
    uint32_t version, cuda_version;
};

struct InstanceInfo {
    static constexpr Type TYPE = Type::instance;
    Head head;
    int load_builtin_modules, load_extension_modules;
    const char* extension_path;
    int create_messenger;
    const void* messenger;
    uint32_t severity, category;
};

struct Orientation {
    static constexpr Type TYPE = Type::orientation;
    Head head;
    int rotated, flip_x, flip_y;
};

struct Plane {
    static constexpr Type TYPE = Type::plane;
    Head head;
    uint32_t width, height;
    size_t row_stride;
    uint32_t num_channels;
    int sample_type;
    uint8_t precision;
};

struct OutsideSample {
    uint32_t value;
    int type;
};

struct Region {
    static constexpr Type TYPE = Type::region;
    Head head;
    int num_axes, begin[5], end[5];  // rows, then columns
    int outside_policy;
    OutsideSample outside[5];
};

struct ImageInfo {
    static constexpr Type TYPE = Type::image_info;
    Head head;
    char codec_name[256];
    int color_spec, chroma_subsampling, sample_format;
    Orientation orientation;
    uint32_t num_planes;
    Plane planes[32];
    void* buffer;
    int buffer_kind;
    void* cuda_stream;
};

struct View {
    static constexpr Type TYPE = Type::view;
    Head head;
    size_t image_number;
    Region region;
    size_t bitstream_offset;
};

struct BackendParams {
    static constexpr Type TYPE = Type::backend_params;
    Head head;
    float load_hint;
    int load_hint_policy;
};

struct Backend {
    static constexpr Type TYPE = Type::backend;
    Head head;
    int kind;
    BackendParams params;
};

struct ExecutionParams {
    static constexpr Type TYPE = Type::execution_params;
    Head head;
    void *device_allocator, *pinned_allocator;
    int max_num_cpu_threads;
    void* executor;
    int device, initialize_now, skip_synchronization, num_backends;
    const Backend* backends;
};

struct DecodeParams {
    static constexpr Type TYPE = Type::decode_params;
    Head head;
    int apply_exif_orientation;
};

template <class T>
T make() {
    T value{};
    value.head = {T::TYPE, sizeof(T), nullptr};
    return value;
}

using Instance = struct InstanceHandle*;
using Stream = struct StreamHandle*;  // the bytes of a file, or a region of one
using Image = struct ImageHandle*;
using DecoderRef = struct DecoderHandle*;
using Future = struct FutureHandle*;

// The functions of the library; each returns SUCCESS or another number.
struct Functions {
    int (*GetProperties)(Properties*);
    int (*InstanceCreate)(Instance*, const InstanceInfo*);
    int (*CodeStreamCreateFromHostMem)(Instance, Stream*, const unsigned char*, size_t,
                                       const View*);
    int (*CodeStreamGetSubCodeStream)(Stream, Stream*, const View*);
    int (*CodeStreamGetImageInfo)(Stream, ImageInfo*);
    int (*CodeStreamDestroy)(Stream);
    int (*ImageCreate)(Instance, Image*, const ImageInfo*);
    int (*ImageDestroy)(Image);
    int (*DecoderCreate)(Instance, DecoderRef*, const ExecutionParams*, const char*);
    int (*DecoderDecode)(DecoderRef, const Stream*, const Image*, int, const DecodeParams*,
                         Future*);
    int (*FutureWaitForAll)(Future);
    int (*FutureGetProcessingStatus)(Future, uint32_t*, size_t*);
    int (*FutureDestroy)(Future);
};

}  // namespace core::nvimgcodec
